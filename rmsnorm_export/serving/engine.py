"""A TensorRT engine as the subject of a package: its record says the inputs, its model the rest."""

from __future__ import annotations

import os
from pathlib import Path

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.load import load_model, no_gc
from rmsnorm_export.printable import short
from rmsnorm_export.serving.result import PackagedNorm
from rmsnorm_export.serving.subject import Subject, interface
from rmsnorm_export.serving.types import triton_type
from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.tensorrt.engine.result import EngineRecord
from rmsnorm_export.tensorrt.engine.sidecar import read_record, sidecar_path

_PathLike = str | os.PathLike[str]


def open_engine(source: _PathLike, model: _PathLike | None) -> Subject:
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
    record = _record(path)
    onnx = _model(path, record, model)
    with no_gc():
        loaded = load_model(onnx)
    inputs, outputs = interface(loaded.model)
    for tensor in (*inputs, *outputs):
        triton_type("tensorrt", tensor.name, tensor.dtype)
    return Subject(
        source=source,
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


def _record(path: Path) -> EngineRecord:
    shown = short(str(path), 300)
    if not path.is_file():
        raise InputError("The engine does not exist.", found=shown, fix="check the path")
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


def _model(engine: Path, record: EngineRecord, given: _PathLike | None) -> Path:
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
