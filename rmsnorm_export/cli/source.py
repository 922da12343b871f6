"""A MODEL argument as something that the Python API takes."""

from __future__ import annotations

from rmsnorm_export.cli import console

STDIN = "stdin"
"""How a model that was piped in is called in reports."""


def model_source(argument: str) -> str | bytes:
    """The path as it is, or for ``-`` the bytes that are piped in.

    Raises:
        UsageError: stdin is a terminal.
    """
    return console.read_stdin() if argument == console.STDIO else argument


def source_name(argument: str, description: str) -> str:
    """How the model is called in a report; ``description`` is what the API calls it."""
    return STDIN if argument == console.STDIO else description
