"""Whole architectures from ``transformers``: tiny, random weights, with their norms counted."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import json
import pathlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from tests.tools.corpus import build, cache, exporters
from tests.tools.corpus.arch_table import COMMON, ENTRIES, Entry, Kind
from tests.tools.corpus.norm_classes import DTYPES, norm_classes

TYPES = ("float32", "float16")
"""Types in which the corpus holds every architecture."""

_CHUNKED = ("torch_chunk_gated_delta_rule", "chunk_kimi_delta_attention")
_CHUNK = 8

# Families whose rotary embedding uses complex numbers: axis of the heads where it is applied.
_COMPLEX = {"llama4": 2, "deepseek_v2": 1}


@dataclasses.dataclass(frozen=True, slots=True)
class Architecture:
    """One model family in a tiny configuration.

    Attributes:
        name: unique readable name.
        why: what its norms show that others do not.
        kind: of input, ``tokens`` or ``pixels``.
    """

    name: str
    why: str
    kind: Kind

    def make(self, dtype: str = "float32") -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
        """The model, which maps its one input to logits or hidden states, and an example input.

        Args:
            dtype: ``float32``, ``float16`` or ``bfloat16``, of the weights.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = _model(ENTRIES[self.name], DTYPES[dtype])
        for number, module in enumerate(model.modules()):
            if _name(module) in _norm_names():
                build.randomise(module, seed=number)
        generator = torch.Generator().manual_seed(1)
        if self.kind == "pixels":
            example = torch.randn((2, 3, 16, 16), generator=generator).to(DTYPES[dtype])
        else:
            example = torch.randint(3, 64, (2, 7), generator=generator)
        return FirstOutput(model, self.kind).eval(), (example,)


@dataclasses.dataclass(frozen=True, slots=True)
class ArchExport:
    """One architecture in one type as an ONNX file.

    Attributes:
        architecture: what was exported.
        dtype: of the weights.
        path: the ONNX file; None when no exporter could make it.
        exporter: which made it.
        dynamic: axes that are symbolic in the input.
        reason: why the exporters before that one failed, or all of them; "" if the first did it.
        expected_norms: RMSNorm calls in one forward pass.
        calls: the same by class name.
        arrays: ``.npz`` with the example input ``in0`` and PyTorch's result ``out0``.
    """

    architecture: Architecture
    dtype: str
    path: pathlib.Path | None
    exporter: str
    dynamic: tuple[int, ...]
    reason: str
    expected_norms: int
    calls: dict[str, int]
    arrays: pathlib.Path

    def inputs(self) -> dict[str, np.ndarray]:
        """The example input by the name that the graph gives it."""
        name = "pixel_values" if self.architecture.kind == "pixels" else "input_ids"
        return {name: cache.load_arrays(self.arrays)["in0"]}

    def logits(self) -> np.ndarray:
        """What PyTorch gives for ``inputs()``."""
        return cache.load_arrays(self.arrays)["out0"]


class FirstOutput(torch.nn.Module):
    """A model as a function of one tensor, with one tensor as its result."""

    def __init__(self, model: torch.nn.Module, kind: Kind) -> None:
        super().__init__()
        self.model = model
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with _exportable(self.model):
            if self.kind == "pixels":
                out = self.model(pixel_values=x)
            else:
                options = {} if self.model.config.model_type == "t5" else {"use_cache": False}
                out = self.model(input_ids=x, **options)
        return out.logits if hasattr(out, "logits") else out[0]


def architectures() -> list[Architecture]:
    """All of them, in the order of the table."""
    return [Architecture(name, entry.why, entry.kind) for name, entry in ENTRIES.items()]


def architecture(name: str) -> Architecture:
    """One by name.

    Raises:
        KeyError: no such architecture.
    """
    entry = ENTRIES[name]
    return Architecture(name, entry.why, entry.kind)


def count_norms(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> dict[str, int]:
    """RMSNorm calls in one forward pass, by class: modules by their class, the function by itself.

    A module called twice counts twice, one that is never called does not count. The function counts
    where no ``torch.nn.RMSNorm`` calls it.
    """
    calls: collections.Counter[str] = collections.Counter()
    inside = 0

    def enter(module: torch.nn.Module, _args: Any) -> None:
        nonlocal inside
        inside += 1
        calls[type(module).__name__] += 1

    def leave(_module: torch.nn.Module, _args: Any, _out: Any) -> None:
        nonlocal inside
        inside -= 1

    handles = []
    for module in model.modules():
        if _name(module) in _norm_names():
            handles.append(module.register_forward_pre_hook(enter))
            handles.append(module.register_forward_hook(leave))
    function = torch.nn.functional.rms_norm

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        if not inside:
            calls["rms_norm"] += 1
        return function(*args, **kwargs)

    torch.nn.functional.rms_norm = counted
    try:
        with torch.no_grad():
            model(*inputs)
    finally:
        torch.nn.functional.rms_norm = function
        for handle in handles:
            handle.remove()
    return dict(calls)


def export_architecture(arch: Architecture, dtype: str = "float32") -> ArchExport:
    """The ONNX file of ``arch``, from the cache when it is there.

    TorchDynamo at opset 18 with symbolic batch and sequence; where that fails, with a symbolic
    batch, then with fixed shapes, then TorchScript.
    """
    sources = cache.source_hash("architectures", "exporters", "build")
    folder = cache.entry(
        "architectures",
        f"{arch.name}-{dtype}",
        f"{ENTRIES[arch.name]} {COMMON} {dtype} {sources}",
        lambda folder: _fill(folder, arch, dtype),
    )
    about = json.loads((folder / "about.json").read_text())
    path = folder / "model.onnx"
    return ArchExport(
        architecture=arch,
        dtype=dtype,
        path=path if path.exists() else None,
        exporter=about["exporter"],
        dynamic=tuple(about["dynamic"]),
        reason=about["reason"],
        expected_norms=sum(about["calls"].values()),
        calls=about["calls"],
        arrays=folder / "arrays.npz",
    )


def _fill(folder: pathlib.Path, arch: Architecture, dtype: str) -> None:
    model, inputs = arch.make(dtype)
    calls = count_norms(model, inputs)
    with torch.no_grad():
        exporters.save_io(folder / "arrays.npz", inputs, model(*inputs))
    name = "pixel_values" if arch.kind == "pixels" else "input_ids"
    axes = ((0,), ()) if arch.kind == "pixels" else ((0, 1), (0,), ())
    reasons: list[str] = []
    made = {"exporter": "", "dynamic": ()}
    for exporter, dynamic in [*(("dynamo18", a) for a in axes), ("torchscript17", ())]:
        try:
            exporters.export_module(
                model,
                inputs,
                folder / "model.onnx",
                exporter,
                dynamic_axes=dynamic,
                names=[name],
            )
        except Exception as error:  # the reason is part of the entry
            reasons.append(f"{exporter} {list(dynamic)}: {_root(error)}")
            continue
        made = {"exporter": exporter, "dynamic": dynamic}
        break
    about = {**made, "calls": calls, "reason": "; ".join(reasons)}
    (folder / "about.json").write_text(json.dumps(about))


def _model(entry: Entry, dtype: torch.dtype) -> torch.nn.Module:
    import transformers

    transformers.logging.set_verbosity_error()
    # one matrix product over all experts: a loop over the experts in use cannot be exported
    options = {"attn_implementation": "eager", "experts_implementation": "batched_mm"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = transformers.AutoConfig.for_model(entry.model_type, **{**COMMON, **entry.settings})
        for name, value in options.items():
            with contextlib.suppress(AttributeError):
                setattr(config, f"_{name}", value)
        if entry.model.startswith("Auto") or not entry.model:
            auto = getattr(transformers, entry.model or "AutoModelForCausalLM")
            return auto.from_config(config, dtype=dtype)
        return getattr(transformers, entry.model)._from_config(config, dtype=dtype)


@contextlib.contextmanager
def _exportable(model: torch.nn.Module) -> Iterator[None]:
    """Functions of the model's own file replaced by equals that an exporter can take.

    Linear attention goes in chunks of 8 tokens, not 64: an export unrolls the loop over a chunk.
    Rotary embeddings that use complex numbers use their real and imaginary parts: ONNX has no
    operators for complex numbers.
    """
    module = sys.modules[type(model).__module__]
    replaced: dict[str, Any] = {
        name: functools.partial(getattr(module, name), chunk_size=_CHUNK)
        for name in _CHUNKED
        if hasattr(module, name)
    }
    family = module.__name__.rsplit(".", 1)[1].removeprefix("modeling_")
    if family in _COMPLEX:
        replaced["apply_rotary_emb"] = functools.partial(_rotate, heads=_COMPLEX[family])
    kept = {name: getattr(module, name) for name in replaced}
    for name, function in replaced.items():
        setattr(module, name, function)
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(module, name, function)


def _rotate(
    query: torch.Tensor, key: torch.Tensor, freqs_cis: torch.Tensor, heads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of neighbours turned by the angle of ``freqs_cis``, [batch, sequence, size / 2].

    Args:
        heads: axis of the heads in query and key, which ``freqs_cis`` lacks.
    """
    cos, sin = (part.unsqueeze(heads) for part in (freqs_cis.real, freqs_cis.imag))

    def turned(x: torch.Tensor) -> torch.Tensor:
        even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        pairs = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        return pairs.flatten(-2).type_as(x)

    return turned(query), turned(key)


def _root(error: BaseException) -> str:
    """The error that began a chain of them, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return exporters.first_line(error)


def _name(module: torch.nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__name__}"


@functools.cache
def _norm_names() -> frozenset[str]:
    return frozenset(m for c in norm_classes(rmsnorm_only=True) for m in c.members)
