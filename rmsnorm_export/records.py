"""Results as JSON and back: every field of the dataclass, in its order, under a header.

A document is one object that starts with ``schema_version`` and ``kind`` (the class name in snake
case, e.g. ``report``). Tuples are arrays; a float that JSON cannot say is one of the strings
``"nan"``, ``"inf"``, ``"-inf"``. Later versions may add keys, so unknown ones are ignored on
reading; ``schema_version`` is raised when a key changes its meaning or goes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rmsnorm_export.errors import InputError
from rmsnorm_export.strict import parse_json

SCHEMA_VERSION = 1
"""Version of the JSON form of every result; raised when a field changes its meaning or goes."""

T = TypeVar("T")


def kind_of(cls: type[Any]) -> str:
    """Return the ``kind`` of a dataclass: its name in snake case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()


def to_dict(value: object) -> Any:
    """Turn a value into what JSON has: objects, arrays, strings, numbers, booleans, null.

    Raises:
        TypeError: it holds something else.
    """
    return _without_special(msgspec.to_builtins(value, str_keys=True, enc_hook=os.fspath))


def _without_special(value: Any) -> Any:
    """Return the same without the floats that JSON has not."""
    if isinstance(value, dict):
        return {key: _without_special(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_special(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def document(kind: str, body: Mapping[str, object]) -> str:
    """Make a JSON document: the header, then ``body`` in its order, then a line break."""
    header = {"schema_version": SCHEMA_VERSION, "kind": kind}
    return json.dumps(header | to_dict(body), indent=2, allow_nan=False) + "\n"


def to_json(result: object, *, extra: Mapping[str, object] | None = None) -> str:
    """Make the JSON document of a result.

    Args:
        result: a ``Report``, ``Verification`` or any other frozen dataclass of plain values.
        extra: keys to add after the fields, e.g. where the output was written.

    Raises:
        TypeError: ``result`` is not a dataclass or holds what JSON cannot say.
    """
    if not dataclasses.is_dataclass(result):
        raise TypeError(f"a {type(result).__name__} is not a result")
    return document(kind_of(type(result)), to_dict(result) | dict(extra or {}))


def from_json(text: str | bytes, cls: type[T]) -> T:
    """Read the result of class ``cls`` that ``to_json`` wrote.

    Raises:
        InputError: ``text`` is not JSON, is of another kind or schema version, or lacks a field.
    """
    try:
        body = parse_json(text)
    except ValueError as error:
        raise InputError(
            "The text is not JSON.", found=str(error), fix="give what --format json printed"
        ) from error
    for key, value in {"schema_version": SCHEMA_VERSION, "kind": kind_of(cls)}.items():
        actual = body.get(key) if isinstance(body, dict) else None
        if actual != value:
            raise InputError(
                f"The JSON document is not a {kind_of(cls)} of schema version {SCHEMA_VERSION}.",
                found=f"{key} = {actual!r:.200}",
                fix=f"give a document whose {key} is {value!r}",
            )
    try:
        # Not strict, so that "nan" is a number where one is wanted.
        return msgspec.convert(body, cls, strict=False, dec_hook=lambda _, text: Path(text))
    except msgspec.ValidationError as error:
        raise InputError(
            "A field of the JSON document is missing or has the wrong type.",
            found=str(error).replace("$", kind_of(cls)),
            fix="give a document that --format json printed, unchanged",
        ) from error
