"""What is to be packaged: an ONNX model or a TensorRT engine, as clients of the server see it.

Element types are those of ``DataType`` in Triton's model_config.proto that a backend takes: the
conversion in onnxruntime_backend (src/onnxruntime_utils.cc) has no bfloat16; TensorRT's
``DataType``.
"""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from rmsnorm_export.deploy.batching import Profile
from rmsnorm_export.deploy.options import PackageOptions
from rmsnorm_export.deploy.packaged import PackagedModel, ServedTensor, ServingBackend
from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.load import LoadedModel, Source, load_model
from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.printable import number, quoted, short
from rmsnorm_export.records import from_json
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.runtime.input_sizes import Declared, InputSizes
from rmsnorm_export.runtime.inputs import declared_tensor, given_inputs
from rmsnorm_export.runtime.sizes import RANGES
from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.system.reading import read_text
from rmsnorm_export.tensorrt.engine.backends import is_engine
from rmsnorm_export.tensorrt.engine.result import EngineRecord, read_record

_FLOATS = {"float16": "FP16", "bfloat16": "BF16", "float32": "FP32", "float64": "FP64"}
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_ELEMENT_TYPES: dict[ServingBackend, set[str]] = {
    "onnxruntime": {*_FLOATS, *_INTEGERS, "bool", "string"} - {"bfloat16"},
    "tensorrt": {*_FLOATS, "bool", "int8", "uint8", "int32", "int64"} - {"float64"},
}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """What is to be packaged.

    Attributes:
        backend: that will run it.
        path: of the file; None for a model in memory.
        loaded: the ONNX model; of an engine, the one that it was built from.
        inputs, outputs: with sizes, names of sizes, or None.
        tensors: both, as clients see them.
        profiles: shapes of requests, as given or those of the engine.
        norms: what the report and the engine's record say of the RMSNorms, alike ones together.
        record: of an engine.
        report: of ``optimize``, as text, or "".
    """

    backend: ServingBackend
    path: Path | None
    loaded: LoadedModel
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    tensors: tuple[tuple[ServedTensor, ...], tuple[ServedTensor, ...]]
    profiles: tuple[Profile, ...]
    norms: Mapping[str, int]
    record: EngineRecord | None
    report: str


def open_served(source: Source, options: PackageOptions) -> ServedModel:
    """Read an ONNX model, for the ONNX Runtime backend, or an engine, for that of TensorRT.

    The outputs of an engine are those of the model that it was built from: without a GPU an engine
    does not tell.

    Raises:
        InputError: a file cannot be read, engine, record and model do not belong together, or an
            input or output is none that the server has.
        UsageError: an option that this model does not take, or the report of another model.
    """
    engine = Path(os.path.abspath(str(source))) if is_engine(source) else None
    record = None if engine is None else _engine_record(engine)
    loaded = load_model(source if record is None else _built_from(engine, record, options))
    backend: ServingBackend = "onnxruntime" if record is None else "tensorrt"
    values = given_inputs(loaded.model), list(loaded.model.graph.outputs)
    tensors = [tuple(_served(value, backend) for value in side) for side in values]
    inputs, outputs = (tuple(map(declared_tensor, side)) for side in values)
    text, report = ("", None) if options.report is None else _report(options.report, loaded)
    norms = {} if report is None else _norms(report)
    if record is not None:
        norms |= collections.Counter(
            f"{norm.op} in the engine: {norm.how}" for norm in record.norms
        )
    path, profiles = engine or loaded.path, _profiles(inputs, record, options)
    return ServedModel(
        backend, path, loaded, inputs, outputs, (tensors[0], tensors[1]), profiles, norms, record,
        text,
    )  # fmt: skip


def _served(value: ir.Value, backend: ServingBackend) -> ServedTensor:
    """Return an input or output as clients see it, of a type and shape that the server has."""
    declared = declared_tensor(value)
    types, shape, problem = _ELEMENT_TYPES[backend], declared.shape or (), ""
    if declared.dtype not in types:
        problem = f"it takes {', '.join(sorted(types))}"
    elif declared.shape is None:
        problem = "it takes no dynamic rank"
    elif 0 in shape:
        problem = "it takes no size of 0"
    if problem:
        what = f"Triton's {backend} backend cannot serve an input or output of the model."
        fix = "export with shapes, and float32 or float16 inputs and outputs"
        raise InputError(what, found=f"{declared.text()}; {problem}", fix=fix)
    triton_type = f"TYPE_{_FLOATS.get(declared.dtype, declared.dtype.upper())}"
    sizes = tuple(size if isinstance(size, int) else -1 for size in shape)
    return ServedTensor(declared.name, triton_type, sizes)


def check_kept(kept: PackagedModel, subject: ServedModel, max_batch: int) -> None:
    """Refuse a version that one configuration does not suit beside one that is kept.

    Raises:
        InputError: naming one.
    """
    before, now = {*kept.inputs, *kept.outputs}, {*subject.tensors[0], *subject.tensors[1]}
    same = (kept.backend, kept.max_batch) == (subject.backend, max_batch)
    if before != now or not same:
        names = ", ".join(sorted({quoted(item.name) for item in before ^ now}))
        what = "The versions of a model share one configuration, and this one does not fit it."
        now_is = f"{subject.backend} with batches up to {max_batch}"
        found = f"{names or now_is} differs from version {kept.version}"
        raise InputError(what, found=found, fix="package it under another name")


def _profiles(
    inputs: Sequence[Declared], record: EngineRecord | None, options: PackageOptions
) -> tuple[Profile, ...]:
    given = options.shapes or options.dims
    if record is not None and given:
        fix = "omit them, or build the engine for other shapes"
        raise UsageError("An engine has its own shapes.", found="--shapes or --dims", fix=fix)
    if record is not None:
        return tuple(
            [{item.name: getattr(item, at) for item in one.inputs} for at in ("min", "opt", "max")]
            for one in record.profiles
        )
    single = isinstance(options.shapes, str | Mapping | None)
    each = [options.shapes] if single else list(options.shapes or ())
    points = InputSizes(inputs, RANGES).points
    return tuple(
        [shapes for _, shapes in points(one, options.dims)] for one in (each if given else ())
    )


def _report(path: str | os.PathLike[str], loaded: LoadedModel) -> tuple[str, Report]:
    """Read the report of ``optimize`` on this very model."""
    fix = "give the JSON file that optimize --report FILE.json wrote when it made this model"
    text = read_text(Path(path), "The report cannot be read.", fix=fix)
    report = from_json(text, Report)
    names = {node.name for graph in all_graphs(loaded.model) for node in graph}
    problem = next((f"no node {quoted(s.name)}" for s in report.fused if s.name not in names), "")
    if problem:
        found = f"{short(loaded.description)}: {problem}"
        raise UsageError("The report is of another model.", found=found, fix=fix)
    return text, report


def _norms(report: Report) -> dict[str, int]:
    """Count the norms of a report of ``optimize``, alike ones together."""
    rows: collections.Counter[str] = collections.Counter()
    for site in (*report.fused, *report.kept):
        proof = "not proved"
        if site.proof is not None:
            passed = "proved" if site.proof.passed else "PROOF FAILED"
            proof = f"{passed}, at most {number(site.proof.bound_ulp)} ulp, {site.proof.runtime}"
        rows[f"{site.op}: one node, {site.numerics}, {proof}"] += 1
    rows.update(f"{one.op}: left as it was, {one.reason}" for one in report.unfused)
    return dict(rows)


def _engine_record(path: Path) -> EngineRecord:
    record = read_record(path) if path.is_file() else None
    problem = fix = ""
    if record is None:
        problem, fix = "it has no record beside it", "keep the two together"
    elif record.backend != "tensorrt":
        problem = f"it was built by {record.backend}, which Triton does not run"
        fix = "build it with --backend tensorrt, or package the ONNX model"
    elif path.stat().st_size != record.bytes or sha256_of(path) != record.sha256:
        problem, fix = "it is not the one that its record describes", "build it again with --force"
    if record is None or problem:
        found = f"{short(str(path), 300)}: {problem}"
        raise InputError("The engine cannot be packaged.", found=found, fix=fix)
    return record


def _built_from(engine: Path | None, record: EngineRecord, options: PackageOptions) -> Path:
    """Return the ONNX file that the engine was built from."""
    assert engine is not None
    path = Path(options.onnx or engine.with_name(record.model.name))
    if not path.is_file() or sha256_of(path) != record.model.sha256:
        what = "The outputs of the engine are not known without the model that it was built from."
        found = f"{short(str(path), 300)} {'is another' if path.is_file() else 'is no file'}"
        fix = f"put {short(record.model.name)} beside the engine, or give onnx=... in Python"
        raise InputError(what, found=found, fix=fix)
    return path
