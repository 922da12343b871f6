"""Copies of a model in which values inside are outputs; external data is never loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.source import Sourced
from rmsnorm_export.printable import short
from rmsnorm_export.system.files import copy_contents


def read_proto(source: Sourced) -> onnx.ModelProto:
    """The model, its external data left where it is.

    Raises:
        InputError: the file went away.
    """
    if isinstance(source.content, bytes):
        proto = onnx.ModelProto()
        proto.ParseFromString(source.content)
        return proto
    try:
        return onnx.load(source.content, load_external_data=False)
    except OSError as error:
        raise InputError(
            "The model file cannot be read again.",
            found=f"{source.description}: {error.strerror or error}",
            fix="leave it where it is until the comparison is over",
        ) from error


def marked_bytes(
    proto: onnx.ModelProto, names: Sequence[str], types: Mapping[str, int] | None = None
) -> bytes:
    """The serialised model with these values as outputs, after its own.

    The model is as before when this returns: a copy of it would hold its weights twice.

    Args:
        proto: the model.
        names: of values that nodes of the main graph compute.
        types: their ONNX element types; without them the runtime infers them.
    """
    outputs = proto.graph.output
    before = len(outputs)
    own = {output.name for output in outputs}
    for name in names:
        if name not in own:
            output = outputs.add(name=name)
            if types is not None:
                output.type.tensor_type.elem_type = types[name]
    try:
        return proto.SerializeToString()
    finally:
        del outputs[before:]


def copy_external(model: ir.Model, source: str | None, target: Path) -> None:
    """Put the external data of a model into another folder, under the same locations.

    Raises:
        InputError: it cannot be read, or there is no room.
    """
    for location in sorted(set(_locations(model))):
        place = target / location
        if place.exists():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            with place.open("wb") as file:
                copy_contents(os.path.join(source or "", location), file.fileno())
        except OSError as error:
            raise InputError(
                "The external data cannot be copied for a marked model.",
                found=f"{short(location, 200)}: {error.strerror or error}",
                fix="free some space in the folder of temporary files, or leave bisection out",
            ) from error


def _locations(model: ir.Model) -> Iterator[str]:
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield os.fspath(value.const_value.location)
