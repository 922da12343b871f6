"""What ``verify`` takes as a model, made ready for ONNX Runtime."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError

from rmsnorm_export.errors import InputError

Source: TypeAlias = str | os.PathLike[str] | onnx.ModelProto | ir.Model

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


def open_source(source: Source) -> Sourced:
    """Read the graph of ``source``; weights stay where they are.

    Raises:
        InputError: the file is missing, empty or no ONNX model; or a model in memory cannot be
            handed over (above 2 GB, or external data in no single known folder).
    """
    if isinstance(source, onnx.ModelProto):
        return _from_proto(source)
    if isinstance(source, ir.Model):
        return _from_ir(source)
    path = Path(source)
    try:
        if path.is_file() and path.stat().st_size == 0:
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


def _from_proto(proto: onnx.ModelProto) -> Sourced:
    try:
        content = proto.SerializeToString()
        model = ir.from_proto(proto)
    except (ValueError, TypeError, EncodeError, DecodeError) as error:
        raise _too_large_or_odd(error) from error
    folders = {str(tensor.base_dir) for tensor in _external(model)}
    if folders:
        raise InputError(
            "a ModelProto with external data does not know its folder",
            found=f"{len(list(_external(model)))} external tensors",
            fix="give the path of the model instead",
        )
    return Sourced(content, model, "a ModelProto")


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
