"""One step of scripts/bench_export, in a process of its own.

    python -m scripts.bench.export_step TOOL MODEL OUTPUT RESULT

TOOL: ``ours auto``, ``ours embed``, ``ours cast`` (a folder of random bfloat16 in shards, as
``export --dtype f16`` takes it), ``torch data`` (torch.onnx.export with its weights in a data file,
as it does by default) or ``torch embed``. MODEL: ``7b`` (on the meta device, weights made one by
one when they are written; ours only), ``3b`` (a folder) or ``1b`` (in memory). RESULT is a JSON
file: exporters print what they like.

Memory is read from /proc: the peak is set back (clear_refs) where a stage begins.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import warnings
from collections.abc import Iterable
from mmap import PAGESIZE
from pathlib import Path
from typing import Any
from unittest import mock

from rmsnorm_export.system.machine import peak_memory

SHAPES = {
    "7b": (32_000, 4096, 11_008, 32, 32),
    "3b": (32_000, 4096, 11_008, 16, 32),
    "1b": (32_000, 2048, 5504, 8, 16),
    "tiny": (1000, 256, 512, 2, 4),
}
"""Vocabulary, width, width of the MLP, layers and heads: of Llama-2-7B with its 6.74e9 weights;
half of its layers; its width halved with 8 layers, about 1 GiB in float16; and a smoke run."""

MIB = 2**20
VALUE = 0.0078125
"""Of every weight; exact in float16."""


class Clock:
    """Seconds and peak memory (MiB) of each stage, in order; a stage begins where it is named."""

    def __init__(self) -> None:
        self.stages: list[dict[str, Any]] = []
        self._start = 0.0

    def begin(self, name: str) -> None:
        self.end()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self.stages.append({"stage": name, "before_mb": resident_memory() / MIB})
        self._start = time.perf_counter()

    def end(self) -> None:
        if self.stages and "seconds" not in self.stages[-1]:
            seconds = time.perf_counter() - self._start
            self.stages[-1] |= {"seconds": seconds, "peak_mb": (peak_memory() or 0) / MIB}


def resident_memory() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGESIZE


def make_model(name: str, *, absent: bool) -> Any:
    """A LLaMA in float16; its weights are one number each, as only their size counts, or absent."""
    import torch
    import transformers

    vocabulary, hidden, intermediate, layers, heads = SHAPES[name]
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        use_cache=False,
        tie_word_embeddings=False,
        max_position_embeddings=2048,
    )
    config._attn_implementation = "eager"
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM._from_config(config, dtype=torch.float16).eval()
    # Buffers are made by code that runs: only the weights are to be absent.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    if not absent:
        weights = {key: value_of(p) for key, p in model.named_parameters()}
        model.load_state_dict(weights, strict=False, assign=True)
    return Logits(model)


def value_of(weight: Any) -> Any:
    """Values for a weight without any."""
    import torch

    return torch.full(weight.shape, VALUE, dtype=weight.dtype)


def Logits(model: Any) -> Any:  # noqa: N802 - a class that needs torch, which is imported late
    """Token numbers to logits, nothing else."""
    import torch

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any) -> Any:
            return self.model(input_ids=ids, use_cache=False).logits

    return Module()


def ours(model: Any, ids: Any, output: Path, weights: str, clock: Clock) -> dict[str, Any]:
    import torch

    from rmsnorm_export.torch.export.export import export

    names = dict(model.named_parameters())
    absent = any(p.device.type == "meta" for p in names.values())
    state = (lambda name: value_of(names[name])) if absent else None
    axes = {"ids": {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}}
    result = export(
        model,
        (ids,),
        output,
        dynamic_shapes=axes,
        weights=weights,
        state=state,
        progress=lambda stage, *_: clock.begin(stage),
    )
    return counted(result.report)


def counted(report: Any) -> dict[str, Any]:
    return {"norms": len(report.fused) + len(report.kept), "refused": len(report.unfused)}


def plain(model: Any, ids: Any, output: Path, weights: str, clock: Clock) -> dict[str, Any]:
    """What PyTorch's documentation says: export, then save."""
    import torch

    axes = {"ids": {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}}
    clock.begin("torch.onnx.export")
    program = torch.onnx.export(model, (ids,), dynamo=True, dynamic_shapes=axes, verbose=False)
    clock.begin("save")
    program.save(output, external_data=weights == "data")
    return {}


def save_shards(model: Any, folder: Path) -> None:
    """The folder of a model without weights: shards of random bfloat16, one draw for a shape."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    model.config.dtype = torch.bfloat16
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    draws: dict[Any, Any] = {}
    shards: dict[str, dict[str, Any]] = {}
    for name, weight in model.named_parameters():
        if weight.shape not in draws:
            draws[weight.shape] = (torch.randn(weight.shape) / 64).bfloat16()
        layer = name.removeprefix("model.layers.").partition(".")[0]
        shards.setdefault(layer if layer.isdecimal() else "rest", {})[name] = draws[weight.shape]
    places = {}
    for number, (_, weights) in enumerate(sorted(shards.items()), 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        # Two weights of one shape are two tensors in the file.
        save_file({n: w.clone() for n, w in weights.items()}, folder / file, {"format": "pt"})
        places |= dict.fromkeys(weights, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def cast(folder: Path, _: Any, output: Path, __: str, clock: Clock) -> dict[str, Any]:
    """Load a folder in float16 without and with the check of the cast, export it, and hash what
    was read and written, as a report does. The files are read from the disk each time."""
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401 (not part of the first loading)

    from rmsnorm_export.system.provenance import provenance
    from rmsnorm_export.torch.export.export import export
    from rmsnorm_export.torch.source import huggingface
    from rmsnorm_export.torch.source.cast import check_tensors, stored_tensors
    from rmsnorm_export.torch.source.example import example_of
    from rmsnorm_export.torch.source.load import load

    weights = sorted(folder.glob("*.safetensors"))
    # What its first use takes is no part of it.
    check_tensors(stored_tensors(weights[:1]), torch.float16)
    with mock.patch.object(huggingface, "check_tensors", return_value=[]):
        forget(weights)
        clock.begin("loading, cast not checked")
        load(str(folder), arguments={}, dtype="f16")
        clock.end()
    unchecked = clock.stages.pop()
    gc.collect()
    forget(weights)
    clock.begin("loading, cast checked")
    loaded = load(str(folder), arguments={}, dtype="f16")
    clock.end()
    given = example_of(loaded, None, seed=0, option="--shapes")
    result = export(
        loaded.module,
        given.args,
        output,
        kwargs=given.kwargs,
        dynamic_shapes=given.dynamic,
        progress=lambda stage, *_: clock.begin(stage),
    )
    clock.end()
    exported = sum(stage["seconds"] for stage in clock.stages)
    checked = clock.stages[0]
    clock.begin("hashing alone")
    provenance(weights, sorted(output.parent.glob("m.onnx*")))
    clock.end()
    hashed = clock.stages[-1]
    added = checked["seconds"] - unchecked["seconds"]
    beside = {
        "the check": [added / (exported - added), _taken(checked) - _taken(unchecked)],
        "hashing": [hashed["seconds"] / exported, _taken(hashed)],
    }
    return {"beside": beside, **counted(result.report)}


def _taken(stage: dict[str, Any]) -> float:
    """MiB at its peak, above what there was before."""
    return float(stage["peak_mb"] - stage["before_mb"])


def forget(files: Iterable[Path]) -> None:
    """What is in memory of these files is dropped."""
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_back(output: Path, values_known: bool) -> float:
    """MiB of weights that the file holds, checked at the ends of each.

    Raises:
        SystemExit: a weight is cut off or, where they are known, has other values than `value_of`
            gave.
    """
    import numpy as np
    import onnx

    total = 0
    for tensor in onnx.load(output, load_external_data=False).graph.initializer:
        where = {entry.key: entry.value for entry in tensor.external_data}
        if where:
            path, start = output.parent / where["location"], int(where.get("offset", 0))
            data = np.memmap(path, np.uint8, "r", start, (int(where["length"]),))
        else:
            data = np.frombuffer(tensor.raw_data, np.uint8)
        total += data.nbytes
        if tensor.data_type == onnx.TensorProto.FLOAT16 and data.nbytes >= 4096:
            values = data.view(np.float16)
            ends = {VALUE} if values_known else {*values[:9], *values[-9:]}
            if values.size != np.prod(tensor.dims) or {*values[:9], *values[-9:]} != ends:
                raise SystemExit(f"{tensor.name} was not written as it is")
    return total / MIB


def main() -> None:
    tool, name, output, result = sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
    kind, weights = tool.split()
    warnings.simplefilter("ignore")
    import torch
    import transformers  # noqa: F401 - imports are not what is measured

    import rmsnorm_export.torch.export.export  # noqa: F401

    torch.set_num_threads(1)
    gc.collect()
    imported = resident_memory() / MIB
    start = time.perf_counter()
    model = make_model(name, absent=name == "7b" or weights == "cast")
    made = time.perf_counter() - start
    sizes = [p.numel() * p.element_size() for p in model.parameters()]
    count = sum(p.numel() for p in model.parameters())
    ids = torch.zeros((2, 3), dtype=torch.int64)
    if weights == "cast":
        folder = output.parent / "source"
        save_shards(model.model, folder)
        model = folder  # out of memory
        gc.collect()
    clock = Clock()
    start = time.perf_counter()
    run = cast if weights == "cast" else ours if kind == "ours" else plain
    more = run(model, ids, output, weights, clock)
    seconds = time.perf_counter() - start
    clock.end()
    report = {
        "weights_mb": sum(sizes) / MIB,
        "largest_mb": max(sizes) / MIB,
        "parameters": count,
        "imported_mb": imported,
        "make_seconds": made,
        "seconds": seconds,
        "peak_stage_mb": max(stage["peak_mb"] for stage in clock.stages),
        "written_mb": sum(p.stat().st_size for p in output.parent.glob("m.onnx*")) / MIB,
        "read_back_mb": read_back(output, weights != "cast"),
        "stages": clock.stages,
        **more,
    }
    result.write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main()
