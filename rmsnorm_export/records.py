"""JSON: results to it and back, and what somebody else may have written, read strictly.

Readers differ in what JSON leaves open: which of two equal keys holds, numbers that are none, how
deep a text may nest. What is open is refused, so that every later reader sees the same.

A document is one object that starts with ``schema_version`` and ``kind`` (the class name in snake
case, e.g. ``report``), then has every field of the dataclass, in its order. Tuples are arrays; a
float that JSON cannot say is one of the strings ``"nan"``, ``"inf"``, ``"-inf"``. Later versions
may add keys, so unknown ones are ignored on reading; ``schema_version`` is raised when a key
changes its meaning or goes.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from rmsnorm_export.errors import InputError

DEEPEST = 128
"""Objects and arrays within each other; what exporters write nests a dozen deep."""

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_BRACKETS = {code: None for code in range(128) if chr(code) not in "[]{}"}
_STEP = {"[": 1, "{": 1, "]": -1, "}": -1}


SCHEMA_VERSION = 1
"""Version of the JSON form of every result; raised when a field changes its meaning or goes."""

T = TypeVar("T")


def parse_json(data: bytes | str, *, infinite: bool = False) -> Any:
    """Return the content of a JSON text.

    Args:
        data: the text, as UTF-8 or decoded.
        infinite: ``Infinity`` is a number, as Python writes it.

    Raises:
        ValueError: it is no JSON or no UTF-8, has a key twice in one object, a number that is not
            finite, or nests deeper than ``DEEPEST``.
    """
    text = data.decode("utf-8") if isinstance(data, bytes) else data
    if text.count("[") + text.count("{") > DEEPEST:
        brackets = _STRING.sub("", text).translate(_NOT_BRACKETS)
        depths = itertools.accumulate(_STEP.get(bracket, 0) for bracket in brackets)
        if max(depths, default=0) > DEEPEST:
            raise ValueError(f"it nests deeper than {DEEPEST}")
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_infinite if infinite else _refuse,
            parse_float=_finite,
        )
    except RecursionError as error:
        raise ValueError("it nests too deep") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        (twice, _), *_ = collections.Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice[:100]!r} is given twice in one object")
    return content


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _infinite(name: str) -> float:
    return float(name) if name.endswith("Infinity") else _refuse(name)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


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
