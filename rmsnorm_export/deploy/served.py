"""A model to be packaged: an ONNX model or a TensorRT engine, as clients of the server see it.

Element types are those of ``DataType`` in Triton's model_config.proto that a backend takes: the
conversion in onnxruntime_backend (src/onnxruntime_utils.cc) has no bfloat16; TensorRT's
``DataType``.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

from rmsnorm_export.deploy.batching import Profile
from rmsnorm_export.deploy.options import PackageOptions
from rmsnorm_export.deploy.packaged import PackagedModel, ServedTensor, ServingBackend
from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.load import LoadedModel, Source, load_model
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.runtime.inputs import declared_tensor, graph_inputs
from rmsnorm_export.runtime.sizes import Declared, size_profiles
from rmsnorm_export.system.reading import sha256_of
from rmsnorm_export.tensorrt.engine.backends import is_engine
from rmsnorm_export.tensorrt.engine.result import EngineProfile, EngineRecord, read_record

_FLOATS = {"float16": "FP16", "bfloat16": "BF16", "float32": "FP32", "float64": "FP64"}
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_ELEMENT_TYPES: dict[ServingBackend, set[str]] = {
    "onnxruntime": {*_FLOATS, *_INTEGERS, "bool"} - {"bfloat16"},
    "tensorrt": {*_FLOATS, "bool", "int8", "uint8", "int32", "int64"} - {"float64"},
}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """A model to be packaged.

    Attributes:
        backend: that will run it.
        path: of the file; None for a model in memory.
        inputs, outputs: with sizes, names of sizes, or None.
        tensors: both, as clients see them.
        profiles: shapes of requests, as given or those of the engine.
        loaded: the ONNX model; None of an engine.
        record: of an engine.
    """

    backend: ServingBackend
    path: Path | None
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    tensors: tuple[tuple[ServedTensor, ...], tuple[ServedTensor, ...]]
    profiles: tuple[Profile, ...]
    loaded: LoadedModel | None = None
    record: EngineRecord | None = None


def open_served(source: Source, options: PackageOptions) -> ServedModel:
    """Read an ONNX model, for the ONNX Runtime backend, or an engine, for that of TensorRT.

    Raises:
        InputError: a file cannot be read, engine and record do not belong together, or an input or
            output is none that the server has.
        UsageError: an option that this model does not take.
    """
    if is_engine(source):
        path = Path(os.path.abspath(str(source)))
        record = _engine_record(path)
        if options.shapes or options.dims:
            fix = "omit them, or build the engine for other shapes"
            raise UsageError("An engine has its own shapes.", found="--shapes or --dims", fix=fix)
        profiles: tuple[Profile, ...] = tuple(map(_requests, record.profiles))
        inputs, outputs = record.inputs, record.outputs
        tensors = _served(inputs, "tensorrt"), _served(outputs, "tensorrt")
        return ServedModel("tensorrt", path, inputs, outputs, tensors, profiles, record=record)
    loaded = load_model(source)
    declared = graph_inputs(loaded.model)
    inputs = tuple(declared.values())
    outputs = tuple(map(declared_tensor, loaded.model.graph.outputs))
    tensors = _served(inputs, "onnxruntime"), _served(outputs, "onnxruntime")
    asked = bool(options.shapes or options.dims)
    profiles = tuple(size_profiles(declared, options.shapes, options.dims)) if asked else ()
    return ServedModel("onnxruntime", loaded.path, inputs, outputs, tensors, profiles, loaded)


def _served(items: Iterable[Declared], backend: ServingBackend) -> tuple[ServedTensor, ...]:
    """Return inputs or outputs as clients see them, of types and shapes that the server has."""
    tensors = []
    for item in items:
        types, shape, problem = _ELEMENT_TYPES[backend], item.shape or (), ""
        if item.dtype not in types:
            problem = f"it takes {', '.join(sorted(types))}"
        elif item.shape is None or 0 in shape:
            problem = "it takes no dynamic rank and no size of 0"
        if problem:
            what = f"Triton's {backend} backend cannot serve an input or output of the model."
            fix = "export with shapes, and float32 or float16 inputs and outputs"
            raise InputError(what, found=f"{item.text()}; {problem}", fix=fix)
        sizes = tuple(size if isinstance(size, int) else -1 for size in shape)
        triton_type = f"TYPE_{_FLOATS.get(item.dtype, item.dtype.upper())}"
        tensors.append(ServedTensor(item.name, triton_type, sizes))
    return tuple(tensors)


def check_kept(kept: PackagedModel, subject: ServedModel, max_batch: int) -> None:
    """Refuse a version that one configuration does not suit beside one that is kept.

    Raises:
        InputError: naming one.
    """
    names = {item.name for item in {*kept.inputs, *kept.outputs} ^ {*sum(subject.tensors, ())}}
    if names or (kept.backend, kept.max_batch) != (subject.backend, max_batch):
        differing = ", ".join(map(quoted, sorted(names))) or "backend or largest batch"
        what = "The versions of a model share one configuration, and this one does not fit it."
        found = f"{differing}: not as in version {kept.version}"
        raise InputError(what, found=found, fix="package it under another name")


def _requests(profile: EngineProfile) -> Profile:
    ways = ("min", "opt", "max")
    return [{item.name: getattr(item, at) for item in profile.inputs} for at in ways]


def _engine_record(path: Path) -> EngineRecord:
    record = read_record(path)
    if record.backend != "tensorrt":
        problem = f"it was built by {record.backend}, which Triton does not run"
        fix = "build it with --backend tensorrt, or package the ONNX model"
    elif path.stat().st_size != record.bytes or sha256_of(path) != record.sha256:
        problem, fix = "it is not the one that its record describes", "build it again with --force"
    else:
        return record
    found = f"{short(str(path), 300)}: {problem}"
    raise InputError("The engine cannot be packaged.", found=found, fix=fix)
