"""Results as JSON and back: every field of the dataclass, in its order, under a header.

A document is one object that starts with ``schema_version`` and ``kind`` (the class name in snake
case, e.g. ``report``). Tuples are arrays; a float that JSON cannot say is one of the strings
``"nan"``, ``"inf"``, ``"-inf"``. Later versions may add keys, so unknown ones are ignored on
reading; ``schema_version`` is raised when a key changes its meaning or goes.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from rmsnorm_export.errors import InputError

SCHEMA_VERSION = 1
"""Version of the JSON form of every result; raised when a field changes its meaning or goes."""

T = TypeVar("T")


def kind_of(cls: type[Any]) -> str:
    """The ``kind`` of a dataclass: its name in snake case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()


def to_dict(value: object) -> Any:
    """``value`` in terms that JSON has: objects, arrays, strings, numbers, booleans, null.

    Raises:
        TypeError: the value is not a dataclass, container or scalar of those kinds.
    """
    if isinstance(value, enum.Enum):
        return to_dict(value.value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_dict(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_dict(item) for item in value]
    raise TypeError(f"a {type(value).__name__} has no JSON form")


def document(kind: str, body: Mapping[str, object]) -> str:
    """A JSON document of ``kind``: the header, then ``body`` in its order, then a line break."""
    header = {"schema_version": SCHEMA_VERSION, "kind": kind}
    return json.dumps(header | to_dict(body), indent=2, allow_nan=False) + "\n"


def to_json(result: object, *, extra: Mapping[str, object] | None = None) -> str:
    """The JSON document of a result dataclass.

    Args:
        result: a ``Report``, ``Verification`` or any other frozen dataclass of plain values.
        extra: keys to add after the fields, e.g. where the output was written.

    Raises:
        TypeError: ``result`` is not a dataclass or holds what JSON cannot say.
        ValueError: ``extra`` repeats a field.
    """
    body = to_dict(result)
    if not dataclasses.is_dataclass(result):
        raise TypeError(f"a {type(result).__name__} is not a result")
    for key, value in (extra or {}).items():
        if key in body:
            raise ValueError(f"{key} is a field of the result already")
        body[key] = to_dict(value)
    return document(kind_of(type(result)), body)


def from_json(text: str, cls: type[T]) -> T:
    """The result of class ``cls`` that ``to_json`` wrote.

    Raises:
        InputError: ``text`` is not JSON, is of another kind or schema version, or lacks a field.
    """
    try:
        body = json.loads(text)
    except ValueError as error:
        raise InputError(
            "the text is not JSON", found=str(error), fix="give what --format json printed"
        ) from error
    expected = {"schema_version": SCHEMA_VERSION, "kind": kind_of(cls)}
    for key, value in expected.items():
        actual = body.get(key) if isinstance(body, dict) else None
        if actual != value:
            raise InputError(
                f"the JSON document is not a {kind_of(cls)} of schema version {SCHEMA_VERSION}",
                found=f"{key} = {actual!r}",
                fix=f"give a document whose {key} is {value!r}",
            )
    result: T = _decode(body, cls, kind_of(cls))
    return result


def _decode(value: Any, hint: Any, where: str) -> Any:
    """``value`` as the type ``hint`` says; ``where`` names the place in an error."""
    if hint is Any or hint is object:
        return value
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        if value in args:
            return value
    elif origin in (typing.Union, types.UnionType):
        return _decode_union(value, args, where)
    elif origin is tuple:
        if isinstance(value, list):
            hints = args[:1] * len(value) if args[1:] == (Ellipsis,) else args
            if len(hints) == len(value):
                pairs = enumerate(zip(value, hints, strict=True))
                return tuple(_decode(item, h, f"{where}[{i}]") for i, (item, h) in pairs)
    elif origin in (dict, Mapping):
        if isinstance(value, dict):
            return {key: _decode(item, args[1], f"{where}.{key}") for key, item in value.items()}
    elif dataclasses.is_dataclass(hint):
        if isinstance(value, dict):
            return _decode_dataclass(value, hint, where)
    elif hint is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if value in ("nan", "inf", "-inf"):
            return float(value)
    elif hint is type(None):
        if value is None:
            return None
    elif hint is Path:
        if isinstance(value, str):
            return Path(value)
    elif isinstance(hint, type) and type(value) is hint:
        return value
    raise _mismatch(value, hint, where)


def _decode_union(value: Any, options: tuple[Any, ...], where: str) -> Any:
    """The member of a union that ``value`` is: the same Python type first, then any that fits."""
    for option in sorted(options, key=lambda option: type(value) is not option):
        try:
            return _decode(value, option, where)
        except InputError:
            continue
    raise _mismatch(value, options, where)


def _decode_dataclass(value: dict[str, Any], cls: Any, where: str) -> Any:
    hints = typing.get_type_hints(cls)
    given = {}
    for field in dataclasses.fields(cls):
        if field.name in value:
            given[field.name] = _decode(
                value[field.name], hints[field.name], f"{where}.{field.name}"
            )
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise InputError(
                "the JSON document lacks a field",
                found=f"no {where}.{field.name}",
                fix="give a document that --format json printed, unchanged",
            )
    return cls(**given)


def _mismatch(value: Any, hint: Any, where: str) -> InputError:
    return InputError(
        "a field of the JSON document has the wrong type",
        found=f"{where} = {value!r:.80}, expected {hint}",
        fix="give a document that --format json printed, unchanged",
    )
