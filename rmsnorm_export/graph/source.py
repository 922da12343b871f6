"""What ``verify`` takes as a model, made ready for ONNX Runtime.

The graph is not checked here: the public ``rmsnorm_export.verify`` reads each model as ``optimize``
does, and hands over a ``Sourced``.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError

from rmsnorm_export.errors import InputError

Source: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model

_PROTOBUF_LIMIT = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Sourced:
    """A model for ONNX Runtime.

    Attributes:
        content: path or serialised bytes.
        model: the graph, weights not loaded.
        description: where it came from.
        external_folder: where the external data of ``content`` lies, if that is bytes.
    """

    content: bytes | str
    model: ir.Model
    description: str
    external_folder: str | None = None

    @property
    def folder(self) -> str | None:
        """Where external data is looked for; None when that is nowhere."""
        if isinstance(self.content, str):
            return os.path.dirname(os.path.abspath(self.content))
        return self.external_folder


def open_source(source: Source | Sourced) -> Sourced:
    """Read the graph of ``source``; weights stay where they are.

    Args:
        source: a path, the bytes of a model, a model in memory, or one that is ready already.

    Raises:
        InputError: the file is missing, empty, not an ordinary file or no ONNX model; or a model in
            memory cannot be handed over (above 2 GB, or external data in no single known folder).
    """
    if isinstance(source, Sourced):
        return source
    if isinstance(source, bytes | bytearray | memoryview):
        return _from_bytes(bytes(source))
    if isinstance(source, onnx.ModelProto):
        return _from_proto(source)
    if isinstance(source, ir.Model):
        return _from_ir(source)
    path = Path(source)
    try:
        info = path.stat()
        # A pipe would be waited for without end.
        if not stat.S_ISREG(info.st_mode):
            raise ValueError("not an ordinary file")
        if info.st_size == 0:
            raise ValueError("the file is empty")
        model = ir.load(path)
    # onnx_ir raises what its readers raise, and a file may be damaged in any way.
    except Exception as error:
        raise InputError(
            "the model cannot be read",
            found=f"{path}: {_first_line(error)}",
            fix="give the path of an ONNX model",
        ) from error
    return Sourced(str(path), model, str(path))


def _from_bytes(content: bytes) -> Sourced:
    proto = onnx.ModelProto()
    try:
        if not content:
            raise ValueError("nothing in them")
        proto.ParseFromString(content)
        # Any damage to a graph; onnx_ir raises what its readers raise.
        model = ir.from_proto(proto)
    except Exception as error:
        raise InputError(
            "the bytes are no ONNX model",
            found=f"{len(content)} bytes: {_first_line(error)}",
            fix="give the whole content of an ONNX file",
        ) from error
    _refuse_external(model, "the bytes of a model")
    return Sourced(content, model, f"{len(content)} bytes in memory")


def _from_proto(proto: onnx.ModelProto) -> Sourced:
    try:
        content = proto.SerializeToString()
        model = ir.from_proto(proto)
    except (ValueError, TypeError, EncodeError) as error:
        raise _too_large_or_odd(error) from error
    _refuse_external(model, "a ModelProto")
    return Sourced(content, model, "a ModelProto")


def _refuse_external(model: ir.Model, what: str) -> None:
    count = sum(1 for _ in _external(model))
    if count:
        raise InputError(
            f"{what} with external data does not know its folder",
            found=f"{count} external tensors",
            fix="give the path of the model instead",
        )


def _from_ir(model: ir.Model) -> Sourced:
    folders = {os.path.abspath(tensor.base_dir) for tensor in _external(model)}
    if len(folders) > 1:
        raise InputError(
            "the external data of a model in memory lies in several folders",
            found=", ".join(sorted(folders)[:3]),
            fix="save the model and give its path",
        )
    try:
        proto = ir.to_proto(model)
        if proto.ByteSize() > _PROTOBUF_LIMIT:
            raise ValueError(f"{proto.ByteSize()} bytes")
        content = proto.SerializeToString()
    except (ValueError, TypeError, EncodeError) as error:
        raise _too_large_or_odd(error) from error
    return Sourced(content, model, "an onnx_ir model", next(iter(folders), None))


def _too_large_or_odd(error: Exception) -> InputError:
    return InputError(
        "the model in memory cannot be serialised",
        found=_first_line(error),
        fix="save it (with external data above 2 GB) and give its path",
    )


def _external(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value.const_value


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
