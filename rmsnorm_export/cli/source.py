"""A MODEL argument as something that the Python API takes."""

from __future__ import annotations

from rmsnorm_export.cli import console
from rmsnorm_export.errors import InputError

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


def source_name(argument: str, description: str) -> str:
    """How the model is called in a report; ``description`` is what the API calls it."""
    return STDIN if argument == console.STDIO else description
