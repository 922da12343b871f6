"""A MODEL argument as something that the Python API takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmsnorm_export.cli import console
from rmsnorm_export.errors import InputError

if TYPE_CHECKING:
    import onnx

STDIN = "stdin"
"""How a model that was piped in is called in reports."""


def model_source(argument: str) -> str | bytes:
    """The path as it is, or for ``-`` the bytes that are piped in.

    Raises:
        UsageError: stdin is a terminal.
        InputError: nothing was piped in.
    """
    if argument != console.STDIO:
        return argument
    data = console.read_stdin()
    if not data:
        raise InputError("Stdin holds no model.", found="0 bytes", fix="pipe in a whole ONNX file")
    return data


def proto_source(argument: str) -> str | onnx.ModelProto:
    """The path as it is, or for ``-`` the model that is piped in.

    Raises:
        UsageError: stdin is a terminal.
        InputError: what was piped in is no ONNX model.
    """
    source = model_source(argument)
    if isinstance(source, str):
        return source
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped,unused-ignore]

    try:
        return onnx.load_model_from_string(source)
    except DecodeError as error:
        raise InputError(
            "Stdin is not an ONNX model.",
            found=f"{len(source):,} bytes that do not parse: {error}",
            fix="pipe in a whole ONNX file, or give its path",
        ) from error


def source_name(argument: str, description: str) -> str:
    """How the model is called in a report; ``description`` is what the API calls it."""
    return STDIN if argument == console.STDIO else description
