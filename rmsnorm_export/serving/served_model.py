"""What is to be packaged: an ONNX model or a TensorRT engine, with its inputs, outputs and norms,
and the plugin library that the server must load for it.

Element types are those of ``DataType`` in Triton's model_config.proto that a backend takes: the
conversion in onnxruntime_backend (src/onnxruntime_utils.cc) has no bfloat16; TensorRT's
``DataType``.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.load import LoadedModel, Source, load_model, no_gc
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.rewrite.optimize import inspect
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.runtime.input_sizes import Declared
from rmsnorm_export.runtime.inputs import declared_tensor, given_inputs
from rmsnorm_export.runtime.session import has_cuda_nodes
from rmsnorm_export.serving.result import PackagedNorm, ServingBackend
from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.system.files import StrPath, missing_fix
from rmsnorm_export.tensorrt.engine.result import (
    EngineProfile,
    EngineRecord,
    read_record,
    sidecar_path,
)
from rmsnorm_export.tensorrt.plugin.libraries import NATIVE_BUILD_FIX, open_library
from rmsnorm_export.tensorrt.plugin.lines import command_lines, library
from rmsnorm_export.tensorrt.plugin.result import LIBRARIES

MODEL_FILE: dict[ServingBackend, str] = {"onnxruntime": "model.onnx", "tensorrt": "model.plan"}

_FLOATS = {"float16": "FP16", "bfloat16": "BF16", "float32": "FP32", "float64": "FP64"}


def _triton_names(types: str) -> dict[str, str]:
    return {name: f"TYPE_{_FLOATS.get(name, name.upper())}" for name in types.split()}


TRITON_TYPES: dict[ServingBackend, dict[str, str]] = {
    "onnxruntime": _triton_names(
        "float16 float32 float64 bool string int8 int16 int32 int64 uint8 uint16 uint32 uint64"
    ),
    "tensorrt": _triton_names("float16 bfloat16 float32 bool int8 uint8 int32 int64"),
}

_BACKEND_LABELS = {"onnxruntime": "ONNX Runtime", "tensorrt": "TensorRT"}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """What is to be packaged.

    Attributes:
        backend: that will run it.
        path: of the file; None for a model in memory.
        loaded: the ONNX model; of an engine, the one that it was built from.
        inputs, outputs: with sizes, names of sizes, or None.
        profiles, record: of an engine.
        notes: for the record.
    """

    backend: ServingBackend
    path: Path | None
    loaded: LoadedModel
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    norms: tuple[PackagedNorm, ...]
    profiles: tuple[EngineProfile, ...] = ()
    record: EngineRecord | None = None
    notes: tuple[str, ...] = ()


def open_onnx(source: Source) -> ServedModel:
    """An ONNX model, for the ONNX Runtime backend.

    Raises:
        InputError: it cannot be read, external data is missing, a rank is dynamic, or the server
            has no such element type.
        UsageError: ``source`` is of another type.
    """
    with no_gc():
        loaded = load_model(source)
    inputs, outputs = _served_interface(loaded, "onnxruntime")
    return ServedModel(
        backend="onnxruntime",
        path=loaded.path,
        loaded=loaded,
        inputs=inputs,
        outputs=outputs,
        norms=_inspected_norms(source),
        notes=loaded.notes,
    )


def interface(model: ir.Model) -> tuple[tuple[Declared, ...], tuple[Declared, ...]]:
    """Inputs, those that are initializers left out, and outputs.

    Raises:
        InputError: one is no tensor, has no rank, or a size of 0.
    """
    inputs = tuple(_declared_tensor(value, "input") for value in given_inputs(model))
    return inputs, tuple(_declared_tensor(value, "output") for value in model.graph.outputs)


def _served_interface(
    loaded: LoadedModel, backend: ServingBackend
) -> tuple[tuple[Declared, ...], tuple[Declared, ...]]:
    """``interface``, of element types that the server's backend has."""
    inputs, outputs = interface(loaded.model)
    for tensor in (*inputs, *outputs):
        triton_type(backend, tensor.name, tensor.dtype)
    return inputs, outputs


def _declared_tensor(value: ir.Value, what: str) -> Declared:
    declared = declared_tensor(value)
    name, shape = declared.name, declared.shape
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        raise InputError(
            f"An {what} of the model is no tensor.",
            found=f"{quoted(name)} is a {type(value.type).__name__}",
            fix="export a model whose inputs and outputs are tensors; the server has nothing else",
        )
    if shape is None:
        raise InputError(
            f"An {what} of the model has a dynamic rank.",
            found=f"{quoted(name)} has no shape in the file",
            fix="export with shapes, or add them: onnx.shape_inference.infer_shapes_path",
        )
    if 0 in shape:
        raise InputError(
            f"An {what} of the model is always empty.",
            found=f"{quoted(name)} has the shape {list(shape)}",
            fix="export it with a dynamic size there; the server takes no size of 0",
        )
    return declared


def _inspected_norms(source: Source) -> tuple[PackagedNorm, ...]:
    """The norms of an ONNX file, as ``inspect`` finds them."""
    report = inspect(source)
    kept = (PackagedNorm(site.name, site.op, "one node") for site in report.kept)
    chains = (PackagedNorm(" ".join(s.nodes[-1:]), s.op, "chain") for s in report.fused)
    return (*kept, *chains, *refused_norms(report))


def refused_norms(report: Report) -> Iterator[PackagedNorm]:
    """The norms that a report says were left as they are."""
    for item in report.unfused:
        reason = f"{item.reason}: {item.found}"
        yield PackagedNorm(item.node, item.op, "refused", reason=reason)


def open_engine(source: StrPath, model: StrPath | None) -> ServedModel:
    """A TensorRT engine with its record, for the TensorRT backend.

    The outputs are those of the ONNX model that it was built from: without a GPU an engine does
    not tell.

    Args:
        source: path of the engine.
        model: that it was built from; None: the file of the recorded name beside it.

    Raises:
        InputError: engine, record or model are missing or do not belong together, or it is an
            engine of TensorRT-RTX, which the server does not run.
        UsageError: the model is not beside the engine and was not given.
    """
    path = Path(os.path.abspath(os.fspath(source)))
    record = _recorded_engine(path)
    onnx = _built_from(path, record, model)
    with no_gc():
        loaded = load_model(onnx)
    inputs, outputs = _served_interface(loaded, "tensorrt")
    return ServedModel(
        backend="tensorrt",
        path=path,
        loaded=loaded,
        inputs=inputs,
        outputs=outputs,
        norms=tuple(PackagedNorm(n.name, n.op, n.how, reason=n.reason) for n in record.norms),
        profiles=record.profiles,
        record=record,
        notes=(f"an engine of TensorRT {record.version}: the server must have that version",),
    )


def _recorded_engine(path: Path) -> EngineRecord:
    shown = short(str(path), 300)
    if not path.is_file():
        raise InputError("The engine does not exist.", found=shown, fix=missing_fix(path))
    record = read_record(path)
    if record is None:
        raise InputError(
            "The engine has no record.",
            found=f"no {sidecar_path(path).name} beside {shown}",
            fix="keep the two together; rmsnorm-export build writes both",
        )
    if record.backend != "tensorrt":
        raise InputError(
            "Triton's TensorRT backend does not run an engine of TensorRT-RTX.",
            found=f"{shown} was built by {record.backend} {record.version}",
            fix="rmsnorm-export build --backend tensorrt, or package the ONNX model",
        )
    if path.stat().st_size != record.bytes or sha256_of(path) != record.sha256:
        raise InputError(
            "The engine is not the one that its record describes.",
            found=f"{shown} and {sidecar_path(path).name} differ in size or hash",
            fix="build it again with rmsnorm-export build --force",
        )
    return record


def _built_from(engine: Path, record: EngineRecord, given: StrPath | None) -> Path:
    """The ONNX file that the engine was built from."""
    path = engine.with_name(record.model.name) if given is None else Path(os.fspath(given))
    if not path.is_file():
        raise UsageError(
            "The outputs of the engine are not known without the model that it was built from.",
            found=f"no file {short(str(path), 300)}",
            fix="give it with --onnx MODEL (onnx=...)",
        )
    if sha256_of(path) != record.model.sha256:
        raise InputError(
            "The engine was built from another model.",
            found=f"{short(str(path), 300)} is not the {short(record.model.name)} of the record",
            fix="give the model that it was built from with --onnx, or build it again",
        )
    return path


def triton_type(backend: ServingBackend, name: str, dtype: str) -> str:
    """Triton's name for the element type of input or output ``name``, e.g. ``float16``.

    Raises:
        InputError: the server's backend has no such type.
    """
    known = TRITON_TYPES[backend]
    if dtype in known:
        return known[dtype]
    raise InputError(
        f"Triton's {_BACKEND_LABELS[backend]} backend has no such element type.",
        found=f"{quoted(name)} is {short(dtype)}; it takes {', '.join(sorted(known))}",
        fix="export with float32 or float16 inputs and outputs, e.g. with a Cast inside the model"
        + ("; or build a TensorRT engine" if dtype in TRITON_TYPES["tensorrt"] else ""),
    )


def plugin_library(subject: ServedModel, given: StrPath | None, *, gpu: bool) -> Path | None:
    """The library that the server must load for the model; None when it needs none.

    Raises:
        UsageError: a library was given for an engine that loads none, or one for the CPU alone
            where the server is to use a GPU.
        InputError: the library is missing or of no use.
        BackendMissingError: none was given and none is built.
    """
    if subject.record is None and given is not None:
        return _kernels(given, gpu=gpu)
    state = subject.record.plugin if subject.record is not None else None
    if state is None or not state.library or state.embedded:
        if given is None:
            return None
        raise UsageError(
            "The model needs no plugin library.",
            found="its plugin is inside it"
            if state is not None and state.embedded
            else "the engine uses no plugin",
            fix="leave --plugin-library away",
        )
    if given is None:
        return library("triton")
    return open_library(given, "dlopen").path


def _kernels(given: StrPath, *, gpu: bool) -> Path:
    """The library of kernels for an ONNX model.

    Raises:
        UsageError: it has none for a GPU.
        InputError: it is none, or cannot be used.
    """
    path = open_library(given, "register").path
    if gpu and not has_cuda_nodes(path):
        raise UsageError(
            "The library has kernels for the CPU only.",
            found="--plugin-library with an ONNX model, to be run on GPUs",
            fix=f"give --kind cpu, or the library of {NATIVE_BUILD_FIX} --cuda",
        )
    return path


def mismatch(subject: ServedModel, path: Path) -> str:
    """A note where ``path`` is not of the build that the engine was made with; else ""."""
    recorded = subject.record.plugin.sha256 if subject.record is not None else ""
    pair = [path, *(path.with_name(name) for name in LIBRARIES["tensorrt"].values())]
    if not recorded or recorded in {sha256_of(file) for file in pair if file.is_file()}:
        return ""
    return "the plugin library is of another build than the one that the engine was made with"


def load_line(path: Path, place: str, repository: str) -> str:
    """The line that starts the server with the library ``path``, which is at ``place`` for it."""
    (line,) = command_lines("model.onnx", "triton", library=path).lines
    text = line.text.replace(shlex.quote(str(line.library)), shlex.quote(place))
    return text.replace("MODELS", shlex.quote(repository))
