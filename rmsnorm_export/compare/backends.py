"""What models run on: one row per backend, and the choice of one for a model."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from rmsnorm_export.errors import UsageError
from rmsnorm_export.printable import short

if TYPE_CHECKING:
    import torch

    from rmsnorm_export.compare.backend import Backend, Chosen, ModelKind
    from rmsnorm_export.graph.load import Source

    Model: TypeAlias = Source | torch.nn.Module | torch.export.ExportedProgram

BackendChoice = Literal[
    "auto",
    "onnxruntime",
    "onnxruntime-native",
    "onnxruntime-cuda",
    "onnxruntime-native-cuda",
    "torch",
    "tensorrt",
    "tensorrt-rtx",
]


class BackendRow(NamedTuple):
    """Where a backend is.

    Attributes:
        path: module and class, imported when a model is to run there.
        switch: what of it is on or off, for the reader; "" where there is no such choice.
    """

    path: str
    switch: str = ""


BACKENDS: dict[str, BackendRow] = {
    "onnxruntime": BackendRow(
        "rmsnorm_export.compare.onnx_backend:OnnxRuntime", "graph optimization"
    ),
    "onnxruntime-native": BackendRow(
        "rmsnorm_export.compare.onnx_backend:OnnxRuntimeNative",
        "kernels of rmsnorm-export, graph optimization",
    ),
    "onnxruntime-cuda": BackendRow(
        "rmsnorm_export.compare.onnx_backend:OnnxRuntimeCuda", "CUDA, graph optimization"
    ),
    "onnxruntime-native-cuda": BackendRow(
        "rmsnorm_export.compare.onnx_backend:OnnxRuntimeNativeCuda",
        "kernels of rmsnorm-export, CUDA, graph optimization",
    ),
    "torch": BackendRow("rmsnorm_export.compare.pytorch:PyTorch"),
    "tensorrt": BackendRow("rmsnorm_export.compare.engine:TensorRT"),
    "tensorrt-rtx": BackendRow("rmsnorm_export.compare.engine:TensorRTRTX"),
}
"""By the name that users give."""

_AUTO: dict[ModelKind, str] = {
    "onnx": "onnxruntime",
    "pytorch": "torch",
    "engine": "tensorrt",  # which of the two it is for, its checks tell
}
_REFUSALS: dict[ModelKind, tuple[str, str]] = {
    "onnx": ("ONNX model", "omit the backend"),
    "pytorch": ("PyTorch model", "export it first, or use the backend torch"),
    "engine": ("engine", "omit the backend: the file says which it is"),
}
"""What a backend does not run, and what to do about it."""


def backend_choices() -> tuple[str, ...]:
    """What users may choose."""
    return ("auto", *BACKENDS)


def how_it_ran(name: str, *, optimized: bool) -> str:
    """How a backend ran a model, e.g. ``graph optimization off`` or ``torch``."""
    switch = BACKENDS[name].switch if name in BACKENDS else ""
    return f"{switch} {'on' if optimized else 'off'}" if switch else name


def choose_backend(
    model: Model, choice: str, *, optimize: bool = False, trust_source: bool = False
) -> Chosen:
    """A model with the backend that runs it.

    Raises:
        UsageError: there is no such backend, or it does not take such a model.
    """
    from rmsnorm_export.compare.backend import Chosen

    choices = backend_choices()
    if choice not in choices:
        raise UsageError(
            "There is no such backend.", found=repr(choice), fix=f"use one of {', '.join(choices)}"
        )
    kind = _kind_of_model(model)
    name = _AUTO[kind] if choice == "auto" else choice
    if kind not in _backend_class(name).takes:
        what, fix = _REFUSALS[kind]
        shown = os.fspath(model) if isinstance(model, str | os.PathLike) else type(model).__name__
        raise UsageError(
            f"The backend {choice} runs no {what}.", found=short(str(shown), 300), fix=fix
        )
    return Chosen(model, kind, name, choice, optimize, trust_source)


def open_backends(first: Chosen, second: Chosen) -> tuple[Backend, Backend]:
    """Both models, after what both backends need was found to be there.

    Engines come first: their checks may end it all, and reading a model may take long.

    Raises:
        UsageError, InputError, BackendMissingError: as for ``rmsnorm_export.verify``.
    """
    for chosen in (first, second):
        _backend_class(chosen.name).require(chosen)
    opened = {
        chosen: _backend_class(chosen.name).open(chosen)
        for chosen in sorted((first, second), key=lambda chosen: chosen.kind != "engine")
    }
    return opened[first], opened[second]


def _backend_class(name: str) -> type[Backend]:
    module, _, attribute = BACKENDS[name].path.partition(":")
    cls: type[Backend] = getattr(importlib.import_module(module), attribute)
    return cls


def _kind_of_model(model: Any) -> ModelKind:
    from rmsnorm_export.tensorrt.engine.backends import is_engine

    torch: Any = sys.modules.get("torch")  # who has a module has imported it
    if not isinstance(model, str | os.PathLike):
        modules = torch is not None and hasattr(torch, "nn")
        program = modules and isinstance(model, torch.nn.Module | torch.export.ExportedProgram)
        return "pytorch" if program else "onnx"
    if Path(model).suffix.lower() == ".pt2":
        return "pytorch"
    return "engine" if is_engine(model) else "onnx"
