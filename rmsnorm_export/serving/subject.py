"""What is to be packaged: an ONNX model or a TensorRT engine, its inputs, outputs and norms."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.load import LoadedModel, Source, load_model, no_gc
from rmsnorm_export.printable import quoted
from rmsnorm_export.rewrite.optimize import inspect
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.serving.result import Backend, PackagedNorm
from rmsnorm_export.serving.types import triton_type
from rmsnorm_export.tensorrt.engine.model import type_name
from rmsnorm_export.tensorrt.engine.result import EngineProfile, EngineRecord
from rmsnorm_export.tensorrt.engine.shapes import ModelInput

MODEL_FILE: dict[Backend, str] = {"onnxruntime": "model.onnx", "tensorrt": "model.plan"}

_ENGINE_MAGIC = (b"ptrt", b"ftrt", b"vtrt")
_ENGINE_SUFFIXES = (".engine", ".plan", ".trt")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """What is to be packaged.

    Attributes:
        source: as it was given.
        backend: that will run it.
        path: of the file; None for a model in memory.
        loaded: the ONNX model; of an engine, the one that it was built from.
        inputs: with sizes, names of sizes, or None.
        outputs: the same.
        norms: what is known of them.
        profiles: of an engine.
        record: of an engine.
        notes: for the record.
    """

    source: Source
    backend: Backend
    path: Path | None
    loaded: LoadedModel
    inputs: tuple[ModelInput, ...]
    outputs: tuple[ModelInput, ...]
    norms: tuple[PackagedNorm, ...]
    profiles: tuple[EngineProfile, ...] = ()
    record: EngineRecord | None = None
    notes: tuple[str, ...] = ()


def is_engine(source: Source) -> bool:
    """Whether ``source`` is the path of an engine, by its first bytes or its suffix."""
    if not isinstance(source, str | os.PathLike):
        return False
    path = Path(os.fspath(source))
    try:
        with path.open("rb") as file:
            if file.read(4) in _ENGINE_MAGIC:
                return True
    except (OSError, ValueError):
        return path.suffix in _ENGINE_SUFFIXES
    return path.suffix in _ENGINE_SUFFIXES


def open_onnx(source: Source) -> Subject:
    """An ONNX model, for the ONNX Runtime backend.

    Raises:
        InputError: it cannot be read, external data is missing, a rank is dynamic, or the server
            has no such element type.
        UsageError: ``source`` is of another type.
    """
    with no_gc():
        loaded = load_model(source)
    inputs, outputs = interface(loaded.model)
    for tensor in (*inputs, *outputs):
        triton_type("onnxruntime", tensor.name, tensor.dtype)
    return Subject(
        source=source,
        backend="onnxruntime",
        path=loaded.path,
        loaded=loaded,
        inputs=inputs,
        outputs=outputs,
        norms=_norms(inspect(source)),
        notes=loaded.notes,
    )


def interface(model: ir.Model) -> tuple[tuple[ModelInput, ...], tuple[ModelInput, ...]]:
    """Inputs, those that are initializers left out, and outputs.

    Raises:
        InputError: one is no tensor, has no rank, or a size of 0.
    """
    initializers = model.graph.initializers
    inputs = [_tensor(v, "input") for v in model.graph.inputs if v.name not in initializers]
    outputs = [_tensor(value, "output") for value in model.graph.outputs]
    return tuple(inputs), tuple(outputs)


def _tensor(value: ir.Value, what: str) -> ModelInput:
    name = value.name or ""
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        raise InputError(
            f"An {what} of the model is no tensor.",
            found=f"{quoted(name)} is a {type(value.type).__name__}",
            fix="export a model whose inputs and outputs are tensors; the server has nothing else",
        )
    if value.shape is None:
        raise InputError(
            f"An {what} of the model has a dynamic rank.",
            found=f"{quoted(name)} has no shape in the file",
            fix="export with shapes, or add them: onnx.shape_inference.infer_shapes_path",
        )
    sizes = tuple(size if isinstance(size, int) else size.value for size in value.shape)
    if 0 in sizes:
        raise InputError(
            f"An {what} of the model is always empty.",
            found=f"{quoted(name)} has the shape {list(sizes)}",
            fix="export it with a dynamic size there; the server takes no size of 0",
        )
    return ModelInput(name, type_name(value.dtype), sizes)


def _norms(report: Report) -> tuple[PackagedNorm, ...]:
    """The norms of an ONNX file, as ``inspect`` finds them."""
    found = [PackagedNorm(site.name, site.op, "one node") for site in report.kept]
    found += [PackagedNorm(" ".join(site.nodes[-1:]), site.op, "chain") for site in report.fused]
    found += [
        PackagedNorm(item.node, item.op, "refused", reason=f"{item.reason}: {item.found}")
        for item in report.unfused
    ]
    return tuple(found)
