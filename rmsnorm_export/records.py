"""Results as JSON and back: every field of the dataclass, in its order, under a header; and TOML.

A document is one object that starts with ``schema_version`` and ``kind`` (the class name in snake
case, e.g. ``report``). Tuples are arrays; a float that JSON cannot say is one of the strings
``"nan"``, ``"inf"``, ``"-inf"``. Later versions may add keys, so unknown ones are ignored on
reading; ``schema_version`` is raised when a key changes its meaning or goes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import math
import os
import re
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rmsnorm_export.errors import InputError
from rmsnorm_export.strict import parse_json

SCHEMA_VERSION = 1
"""Version of the JSON form of every result; raised when a field changes its meaning or goes."""

T = TypeVar("T")

Limits = tuple[float | None, float | None]
"""The smallest and the largest number; None: as small or large as may be."""

UNLIMITED: Limits = (None, None)


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


def from_json(text: str | bytes, cls: type[T]) -> T:
    """The result of class ``cls`` that ``to_json`` wrote.

    Raises:
        InputError: ``text`` is not JSON, is of another kind or schema version, or lacks a field.
    """
    try:
        body = parse_json(text)
    except ValueError as error:
        raise InputError(
            "The text is not JSON.", found=str(error), fix="give what --format json printed"
        ) from error
    expected = {"schema_version": SCHEMA_VERSION, "kind": kind_of(cls)}
    for key, value in expected.items():
        actual = body.get(key) if isinstance(body, dict) else None
        if actual != value:
            raise InputError(
                f"The JSON document is not a {kind_of(cls)} of schema version {SCHEMA_VERSION}.",
                found=f"{key} = {actual!r}",
                fix=f"give a document whose {key} is {value!r}",
            )
    try:
        result: T = decode(body, cls, special=True)
    except Unfit as unfit:
        raise InputError(
            "A field of the JSON document is missing or has the wrong type.",
            found=unfit.found_at(kind_of(cls)),
            fix="give a document that --format json printed, unchanged",
        ) from unfit
    return result


class Unfit(Exception):  # noqa: N818 (it is caught where the file is known, and told with its name)
    """A value does not fit its type.

    Attributes:
        expected: what would fit, for people.
        found: what there is; "" for nothing.
        where: the place within the whole value, e.g. ``.sites[0]``.
    """

    def __init__(self, expected: str, found: str, where: str = "") -> None:
        super().__init__(expected)
        self.expected, self.found, self.where = expected, found, where

    def found_at(self, root: str) -> str:
        """What there is, and where in the value that is called ``root``."""
        if not self.found:
            return f"no {root}{self.where}, which is {self.expected}"
        return f"{root}{self.where}: {self.found}, expected {self.expected}"


def decode(value: Any, hint: Any, *, within: Limits = UNLIMITED, special: bool = False) -> Any:
    """``value``, as JSON or TOML have it, as the type ``hint`` says.

    Args:
        value: of scalars, lists and dictionaries.
        hint: scalars, ``Path``, ``Literal``, dataclasses; sequences and mappings of these; unions.
        within: smallest and largest number that fits, everywhere in the value.
        special: the strings "nan", "inf" and "-inf" are numbers.

    Raises:
        Unfit: it does not fit.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    unfit = Unfit(expected(hint, within), found(value))
    if hint in (Any, object):
        return value
    if origin in (typing.Union, types.UnionType):
        # the same Python type first, then any that fits
        for member in sorted(args, key=lambda member: type(value) is not member):
            with contextlib.suppress(Unfit):
                return decode(value, member, within=within, special=special)
        raise unfit
    if origin in (tuple, Sequence) and isinstance(value, list):
        one = origin is Sequence or args[1:] == (Ellipsis,)
        hints = args[:1] * len(value) if one else args
        if len(hints) != len(value):
            raise unfit
        return tuple(
            _decode_part(item, part, f"[{number}]", within, special)
            for number, (item, part) in enumerate(zip(value, hints, strict=True))
        )
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {
            key: _decode_part(item, args[1], f".{key}", within, special)
            for key, item in value.items()
        }
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return _decode_dataclass(value, hint, within, special)
    if origin is typing.Literal:
        fits = value in args
    elif hint is float:
        number = type(value) in (int, float) and (special or math.isfinite(value))
        fits = number or (special and value in ("nan", "inf", "-inf"))
    elif hint is Path:
        fits = isinstance(value, str) and value != "" and "\0" not in value
    else:
        fits = isinstance(hint, type) and type(value) is hint
    if not fits or (type(value) in (int, float) and not is_within(value, within)):
        raise unfit
    return hint(value) if hint in (float, Path) else value


def _decode_part(value: Any, hint: Any, where: str, within: Limits, special: bool) -> Any:
    try:
        return decode(value, hint, within=within, special=special)
    except Unfit as unfit:
        unfit.where = where + unfit.where
        raise


def _decode_dataclass(value: dict[str, Any], cls: Any, within: Limits, special: bool) -> Any:
    hints = typing.get_type_hints(cls)
    given = {}
    for field in dataclasses.fields(cls):
        hint, where = hints[field.name], f".{field.name}"
        if field.name in value:
            given[field.name] = _decode_part(value[field.name], hint, where, within, special)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise Unfit(expected(hint, within), "", where)
    return cls(**given)


_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    Path: "a path",
}


def expected(hint: Any, within: Limits = UNLIMITED) -> str:
    """What a value must be, for people: ``an integer from 1``."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        members = [member for member in args if member is not types.NoneType]
        return ", or ".join(expected(member, within) for member in members)
    if origin is typing.Literal:
        names = ", ".join(f'"{name}"' for name in args)
        return names if len(args) == 1 else f"one of {names}"
    if origin in (tuple, Sequence):
        many = origin is Sequence or args[1:] == (Ellipsis,)
        count = "" if many else f" of {len(args)}"
        return f"an array{count}, of which each is {expected(args[0], within)}"
    if origin in (dict, Mapping):
        inner = "" if args[1] is Any else f", of which each value is {expected(args[1], within)}"
        return f"a table{inner}"
    name = _NAMES.get(hint, "a value")
    return f"{name} {limits_text(within)}".rstrip() if hint in (int, float) else name


def is_within(value: float, limits: Limits) -> bool:
    """Whether a number is between these; what is not a number is not."""
    least, most = limits
    return (least is None or value >= least) and (most is None or value <= most)


def limits_text(limits: Limits) -> str:
    """``from 1 to 8``; "" where there are none."""
    words = zip(("from", "to"), limits, strict=True)
    return " ".join(f"{word} {_number(end)}" for word, end in words if end is not None)


def _number(value: float) -> str:
    """A limit; of a power of 2, less one, as what it is: nobody counts its digits."""
    whole = int(value)
    bits = whole.bit_length()
    if whole == value and bits > 20 and whole + 1 == 1 << bits:
        return f"2**{bits} - 1"
    return str(whole) if whole == value else f"{value:g}"


def found(value: Any) -> str:
    """A value as a file has it, with its type."""
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    kinds = {str: "string", int: "integer", float: "float", list: "array", dict: "table"}
    kind = kinds.get(type(value), type(value).__name__)
    return f"the {kind} {value!r:.80}"
