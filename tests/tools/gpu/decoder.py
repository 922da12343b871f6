"""The decoder of tests/tools/gpu_check: a LLaMA with random weights, as two ONNX files.

``prefill``: a prompt in, the logits of its last position and the keys and values of all out.
``decode``: one token and the keys and values before it in, logits and longer keys and values out.

The weights are random and repeat after a million, each matrix from a place of its own: 3 GiB of
them are made in seconds, and no two are equal, which a runtime would store once. The gains are
random, too, since a lost one would not be seen among ones.

    python -m tests.tools.gpu.decoder FOLDER DECODER VOCAB  makes the files before they are needed
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

from rmsnorm_export.system.packages import pip_install, versions_of
from tests.tools.gpu.part import SkippedError
from tests.tools.lib.command import say
from tests.tools.lib.quiet import quiet

OPSET = 18
KINDS = ("decode", "prefill")
TARGETS = ("portable", "onnx", "ort")
_POOL = 1_000_003  # a prime: rows of a matrix do not repeat with it


@dataclasses.dataclass(frozen=True, slots=True)
class Decoder:
    """Sizes of the model, in float16."""

    vocab: int = 128_256
    hidden: int = 2048
    layers: int = 16
    heads: int = 32
    kv_heads: int = 8
    intermediate: int = 8192

    @property
    def head(self) -> int:
        """Elements of one head."""
        return self.hidden // self.heads

    def cache_names(self, prefix: str) -> list[str]:
        """Of the keys and values: ``past.0.key``."""
        return [f"{prefix}.{i}.{what}" for i in range(self.layers) for what in ("key", "value")]


DECODERS = {
    "1b": Decoder(),
    "tiny": Decoder(vocab=1000, hidden=64, layers=2, heads=4, kv_heads=2, intermediate=128),
}


def decoder_of(name: str, vocab: int | None) -> Decoder:
    """A known decoder, perhaps with another vocabulary."""
    known = DECODERS[name]
    return dataclasses.replace(known, vocab=vocab) if vocab else known


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One shape: ``length`` tokens of prompt, or of past where one token is decoded."""

    kind: str
    batch: int
    length: int

    @property
    def label(self) -> str:
        return f"{self.batch} x {self.length}"

    @property
    def sequence(self) -> int:
        """Tokens that go in."""
        return self.length if self.kind == "prefill" else 1

    @property
    def past(self) -> int:
        """Tokens before them."""
        return 0 if self.kind == "prefill" else self.length

    def inputs(self, decoder: Decoder) -> dict[str, tuple[int, ...]]:
        """Name and shape of every input; ``input_ids`` is int64, the others are float16."""
        cache = (self.batch, decoder.kv_heads, self.past, decoder.head)
        names = decoder.cache_names("past") if self.kind == "decode" else []
        return {"input_ids": (self.batch, self.sequence), **dict.fromkeys(names, cache)}

    def outputs(self, decoder: Decoder) -> dict[str, tuple[int, ...]]:
        """Name and shape of every output, all float16."""
        cache = (self.batch, decoder.kv_heads, self.past + self.sequence, decoder.head)
        names = decoder.cache_names("present")
        return {"logits": (self.batch, 1, decoder.vocab), **dict.fromkeys(names, cache)}


def raw_files(decoder: Decoder, folder: Path) -> dict[str, Path]:
    """Kind -> the raw file in ``folder``, exported unless one of this decoder lies there.

    Raises:
        SkippedError: a package is missing.
    """
    known = {"decoder": dataclasses.asdict(decoder), "opset": OPSET}
    known["versions"] = versions_of(("torch", "transformers", "onnxscript", "onnx-ir"))
    made, stamp = {kind: folder / f"{kind}.raw.onnx" for kind in KINDS}, folder / "made.json"
    with contextlib.suppress(OSError, ValueError):
        if json.loads(stamp.read_text(encoding="utf-8")) == known:
            return made
    folder.mkdir(parents=True, exist_ok=True)
    for module in ("torch", "transformers", "onnxscript"):
        try:
            __import__(module)
        except ImportError as error:
            brings = pip_install("transformers" if module == "transformers" else "[torch]")
            raise SkippedError(f"no decoder: {error}", brings) from error
    stamp.unlink(missing_ok=True)
    model = random_llama(decoder)
    for kind, path in made.items():
        start = time.perf_counter()
        _export_kind(model, decoder, kind, path)
        say(f"{kind}: exported in {time.perf_counter() - start:.0f} s")
    stamp.write_text(json.dumps(known), encoding="utf-8")
    return made


def optimized(raw: Path, target: str) -> tuple[Path, dict[str, Any]]:
    """The raw file as ``target`` has it, in the same folder: its weights are used in place."""
    import rmsnorm_export as rx

    result = rx.optimize(raw, target=target)  # type: ignore[arg-type]
    path = raw.with_name(raw.name.replace(".raw.", f".{target}."))
    result.save(path, force=True)
    report = result.report
    done = len(report.fused) + len(report.kept)
    return path, {"nodes": report.nodes_after, "fused": done, "refused": len(report.refused)}


def random_llama(decoder: Decoder) -> Any:
    """The module, on the CPU."""
    import torch
    import transformers
    from transformers.initialization import no_init_weights

    config = transformers.LlamaConfig(
        vocab_size=decoder.vocab,
        hidden_size=decoder.hidden,
        num_hidden_layers=decoder.layers,
        num_attention_heads=decoder.heads,
        num_key_value_heads=decoder.kv_heads,
        intermediate_size=decoder.intermediate,
        attn_implementation="eager",
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        with no_init_weights():
            model = transformers.LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)
    pool = torch.randn(_POOL, generator=torch.Generator().manual_seed(0)).half()
    with torch.no_grad():
        for parameter in model.parameters():
            pool = pool.roll(7919)
            if parameter.dim() == 1:
                parameter.copy_(1 + 0.2 * pool[: parameter.numel()])
                continue
            # As wide as keeps a row's size: the logits of a deep model stay in float16.
            spread = parameter.shape[-1] ** -0.5
            for part in parameter.view(-1).split(_POOL):
                part.copy_(pool[: part.numel()] * spread)
    return model


def _export_kind(model: Any, decoder: Decoder, kind: str, path: Path) -> None:
    import torch
    from transformers.cache_utils import DynamicCache

    from rmsnorm_export.torch.export.tables import quick_tables

    class Flat(torch.nn.Module):
        """Tensors in, tensors out; the cache is a flat list of keys and values."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
            cache = DynamicCache(list(zip(past[::2], past[1::2], strict=True))) if past else None
            out = self.model(
                input_ids=input_ids, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
            layers = out.past_key_values.layers
            return (out.logits, *(t for layer in layers for t in (layer.keys, layer.values)))

    case = Case(kind, 2, 7)
    shapes = case.inputs(decoder)
    tokens = torch.zeros(shapes.pop("input_ids"), dtype=torch.int64)
    past = tuple(torch.zeros(shape, dtype=torch.float16) for shape in shapes.values())
    dynamic: tuple[Any, ...] = ({0: "batch", 1: "sequence"},)
    if past:
        dynamic = ({0: "batch"}, tuple({0: "batch", 2: "past"} for _ in past))
    with quiet(), quick_tables(), torch.no_grad():
        program = torch.onnx.export(
            Flat(),
            (tokens, *past),
            dynamo=True,
            opset_version=OPSET,
            verbose=False,
            input_names=["input_ids", *shapes],
            output_names=list(case.outputs(decoder)),
            dynamic_shapes=dynamic,
        )
        assert program is not None
        program.save(path, external_data=True)


if __name__ == "__main__":
    raw_files(decoder_of(sys.argv[2], int(sys.argv[3])), Path(sys.argv[1]))
