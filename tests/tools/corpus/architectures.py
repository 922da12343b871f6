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
from unittest import mock

import numpy as np
import torch

from tests.tools.corpus import build, cache, exporters
from tests.tools.corpus.arch_table import COMMON, ENTRIES, Entry, Kind
from tests.tools.corpus.norm_classes import DTYPES, norm_classes

TYPES = ("float32", "float16")
"""Types in which the corpus holds every architecture."""

_CHUNKED = ("torch_chunk_gated_delta_rule", "chunk_kimi_delta_attention")
_CHUNK = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Architecture:
    """One model family in a tiny configuration.

    Attributes:
        name: unique readable name.
        kind: of input, ``tokens`` or ``pixels``.
    """

    name: str
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
        path: the ONNX file; None when no exporter could make it.
        reason: why the exporters failed.
        expected_norms: RMSNorm calls in one forward pass.
        arrays: ``.npz`` with the example input ``in0`` and PyTorch's result ``out0``.
    """

    architecture: Architecture
    path: pathlib.Path | None
    reason: str
    expected_norms: int
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
    """Return all of them, in the order of the table."""
    return list(map(architecture, ENTRIES))


def architecture(name: str) -> Architecture:
    """Return one by name."""
    return Architecture(name, ENTRIES[name].kind)


def count_norms(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> dict[str, int]:
    """Count RMSNorm calls in one forward pass: modules by their class, the function by itself.

    A module called twice counts twice, one that is never called does not count. The function counts
    where no ``torch.nn.RMSNorm`` calls it.
    """
    calls: collections.Counter[str] = collections.Counter()
    inside: list[torch.nn.Module] = []

    def enter(module: torch.nn.Module, _args: Any) -> None:
        inside.append(module)
        calls[type(module).__name__] += 1

    def leave(*_: Any) -> None:
        inside.pop()

    function = torch.nn.functional.rms_norm

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls["rms_norm"] += not inside
        return function(*args, **kwargs)

    with contextlib.ExitStack() as hooks, torch.no_grad():
        for module in model.modules():
            if _name(module) in _norm_names():
                hooks.callback(module.register_forward_pre_hook(enter).remove)
                hooks.callback(module.register_forward_hook(leave).remove)
        hooks.enter_context(mock.patch.object(torch.nn.functional, "rms_norm", counted))
        model(*inputs)
    return {name: count for name, count in calls.items() if count}


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
        arch, path if path.exists() else None, about["reason"], about["norms"],
        folder / "arrays.npz",
    )  # fmt: skip


def _fill(folder: pathlib.Path, arch: Architecture, dtype: str) -> None:
    model, inputs = arch.make(dtype)
    norms = sum(count_norms(model, inputs).values())
    with torch.no_grad():
        exporters.save_io(folder / "arrays.npz", inputs, model(*inputs))
    path, names = folder / "model.onnx", ["pixel_values" if arch.kind == "pixels" else "input_ids"]
    axes = ((0,), ()) if arch.kind == "pixels" else ((0, 1), (0,), ())
    reason = ""
    for exporter, dynamic in [*(("dynamo18", a) for a in axes), ("torchscript17", ())]:
        try:
            exporters.export_module(
                model, inputs, path, exporter, dynamic_axes=dynamic, names=names
            )
            break
        except Exception as error:  # the reason is the entry
            reason = exporters.first_line(error)
    (folder / "about.json").write_text(json.dumps({"norms": norms, "reason": reason}))


def _model(entry: Entry, dtype: torch.dtype) -> torch.nn.Module:
    import transformers

    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = transformers.AutoConfig.for_model(entry.model_type, **{**COMMON, **entry.settings})
        # one matrix product over all experts: a loop over the experts in use cannot be exported
        for name, value in {"attn": "eager", "experts": "batched_mm"}.items():
            with contextlib.suppress(AttributeError):
                setattr(config, f"_{name}_implementation", value)
        kind = getattr(transformers, entry.model or "AutoModelForCausalLM")
        make = getattr(kind, "from_config", None) or kind._from_config
        return make(config, dtype=dtype)


@contextlib.contextmanager
def _exportable(model: torch.nn.Module) -> Iterator[None]:
    """Functions of the model's own file replaced by equals that an exporter can take.

    Linear attention goes in chunks of 8 tokens, not 64: an export unrolls the loop over a chunk.
    """
    module = sys.modules[type(model).__module__]
    with contextlib.ExitStack() as stack:
        for name in _CHUNKED:
            if function := getattr(module, name, None):
                chunked = functools.partial(function, chunk_size=_CHUNK)
                stack.enter_context(mock.patch.object(module, name, chunked))
        yield


def _name(module: torch.nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__name__}"


@functools.cache
def _norm_names() -> frozenset[str]:
    return frozenset(m for c in norm_classes(rmsnorm_only=True) for m in c.members)
