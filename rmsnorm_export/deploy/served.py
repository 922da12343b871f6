"""A model to be packaged: an ONNX model or a TensorRT engine, as clients of the server see it.

Element types are those of ``DataType`` in Triton's model_config.proto that a backend takes: the
conversion in onnxruntime_backend (src/onnxruntime_utils.cc) has no bfloat16; TensorRT's
``DataType``. With ``max_batch_size`` above 0 the leading axis of every input and output is the
batch, and is omitted in the configuration.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from rmsnorm_export.deploy.options import PackageOptions
from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.load import LoadedModel, Source, load_model
from rmsnorm_export.printable import short
from rmsnorm_export.runtime.inputs import declared_tensor, graph_inputs
from rmsnorm_export.runtime.sizes import Declared, Profile, size_profiles
from rmsnorm_export.system.reading import sha256_of
from rmsnorm_export.tensorrt.engine.backends import is_engine
from rmsnorm_export.tensorrt.engine.result import EngineRecord, read_record

ServingBackend = Literal["onnxruntime", "tensorrt"]

DEFAULT_MAX_BATCH = 8
"""The default; Triton's own default, for models that it configures itself, is 4."""


_FLOATS = {"float16": "FP16", "bfloat16": "BF16", "float32": "FP32", "float64": "FP64"}

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

_ELEMENT_TYPES: dict[ServingBackend, set[str]] = {
    "onnxruntime": {*_FLOATS, *_INTEGERS, "bool"} - {"bfloat16"},
    "tensorrt": {*_FLOATS, "bool", "int8", "uint8", "int32", "int64"} - {"float64"},
}


def decide_batch(
    tensors: Sequence[Declared], asked: int | None, profiles: Sequence[Profile]
) -> tuple[int, str]:
    """Return the largest batch, and where there is none, why.

    It is as asked, else the largest of the profiles, else 8; 0 without a batch axis.

    Raises:
        UsageError: a batch was asked for and the model has no batch axis, or its profiles end
            below it.
    """
    if asked == 0:
        return 0, ""
    problem = _no_batch_axis(tensors, named=asked is None)
    leading = [[{shape[:1] for shape in one.values()} for one in profile] for profile in profiles]
    largest = min((max(sizes)[0] for *_, sizes in leading if max(sizes)), default=None)
    if not problem and any(len(sizes) > 1 for *_, sizes in leading):
        problem = "its inputs have leading axes of several sizes in the optimization profile"
    elif not problem and any(least > (1,) for sizes, *_ in leading for least in sizes):
        problem = "its smallest batch is larger than 1, so that a request alone does not fit"
    if problem and asked is not None:
        what = "The server cannot join requests for this model into batches."
        fix = "export it with a dynamic leading axis in all inputs and outputs, or omit --max-batch"
        raise UsageError(what, found=problem, fix=fix)
    if asked is not None and largest is not None and asked > largest:
        found = f"--max-batch {asked}, the largest shape has {largest}"
        fix = f"give {largest} or less, or larger shapes; an engine has to be built for them"
        raise UsageError("The largest batch is more than the shapes allow.", found=found, fix=fix)
    return (0, problem) if problem else (asked or largest or DEFAULT_MAX_BATCH, "")


def _no_batch_axis(tensors: Sequence[Declared], *, named: bool) -> str:
    """Return why the leading axes are no batch, or ""; ``named``: one without a name is none."""
    leading: dict[str, str] = {}
    for tensor in tensors:
        shape = tensor.shape or ()
        if not shape or isinstance(shape[0], int):
            return f"{tensor.text()} is a scalar, or its leading axis is fixed"
        if shape[0] is None and named:
            return f"the leading axis of {tensor.text()} has no name to tell that it is the batch"
        if shape[0] is not None:
            leading.setdefault(shape[0], tensor.text())
    if len(leading) > 1:
        return f"the leading axes differ: {'; '.join(list(leading.values())[:2])}"
    return "" if tensors else "it has no inputs and outputs"


@dataclasses.dataclass(frozen=True, slots=True)
class ServedTensor:
    """An input or output as a client of the server sees it.

    Attributes:
        dtype: Triton's name of its type, e.g. ``TYPE_FP16``.
        shape: of a whole request, batch axis included; -1 for a dynamic size.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


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
        inputs, outputs = record.inputs, record.outputs
        tensors = _served(inputs, "tensorrt"), _served(outputs, "tensorrt")
        profiles = record.profiles
        return ServedModel("tensorrt", path, inputs, outputs, tensors, profiles, record=record)
    loaded = load_model(source)
    declared = graph_inputs(loaded.model)
    inputs = tuple(declared.values())
    outputs = tuple(map(declared_tensor, loaded.model.graph.outputs))
    tensors = _served(inputs, "onnxruntime"), _served(outputs, "onnxruntime")
    asked = bool(options.shapes or options.dims)
    profiles = size_profiles(declared, options.shapes, options.dims) if asked else ()
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
