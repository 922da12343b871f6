"""A value of a TOML file as what a field of a table wants, or what is wrong with it."""

from __future__ import annotations

import math
import types
import typing
from pathlib import Path
from typing import Any

_NAMES: dict[type, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    Path: "a path",
}


class Unfit(Exception):  # noqa: N818 (caught where the key is known, and told as a UsageError)
    """A value does not fit; the message says what would."""

    def __init__(self, expected: str) -> None:
        super().__init__(expected)
        self.expected = expected


def convert(value: Any, hint: Any, least: float | None = None) -> Any:
    """``value`` as ``hint`` says.

    Args:
        value: what ``tomllib`` gave.
        hint: a type: scalars, ``Path``, ``Literal``, tuples and dictionaries of these, unions.
        least: smallest number that fits, everywhere in the value.

    Raises:
        Unfit: it does not fit.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _union(value, hint, least)
    if origin is tuple and isinstance(value, list):
        return tuple(convert(item, args[0], least) for item in value)
    if origin is dict and isinstance(value, dict):
        return {key: convert(item, args[1], least) for key, item in value.items()}
    if origin is typing.Literal:
        fits = isinstance(value, str) and value in args
    elif hint is Any:
        fits = True
    elif hint is float:
        fits = type(value) in (int, float) and math.isfinite(value)
    elif hint is Path:
        fits = isinstance(value, str) and value != "" and "\0" not in value
    else:
        fits = type(value) is hint
    if not fits:
        raise Unfit(expected(hint, least))
    if least is not None and type(value) in (int, float) and value < least:
        raise Unfit(expected(hint, least))
    return hint(value) if hint in (float, Path) else value


def _union(value: Any, hint: Any, least: float | None) -> Any:
    for option in _options(hint):
        try:
            return convert(value, option, least)
        except Unfit:
            continue
    raise Unfit(expected(hint, least))


def _options(hint: Any) -> list[Any]:
    """The members of a union; no value is None, for TOML has none."""
    return [option for option in typing.get_args(hint) if option is not types.NoneType]


def expected(hint: Any, least: float | None = None) -> str:
    """What a value must be, for people: ``an integer from 1``."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return ", or ".join(expected(option, least) for option in _options(hint))
    if origin is typing.Literal:
        quoted = ", ".join(f'"{name}"' for name in args)
        return quoted if len(args) == 1 else f"one of {quoted}"
    if origin is tuple:
        return f"an array, of which each is {expected(args[0], least)}"
    if origin is dict:
        inner = "" if args[1] is Any else f", of which each value is {expected(args[1], least)}"
        return f"a table{inner}"
    name = _NAMES.get(hint, "a value")
    numbers = hint in (int, float) and least is not None
    return f"{name} from {least:g}" if numbers else name


def found(value: Any) -> str:
    """A value as the file has it, with its type."""
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    kinds = {str: "string", int: "integer", float: "float", list: "array", dict: "table"}
    kind = kinds.get(type(value), type(value).__name__)
    return f"the {kind} {value!r:.80}"
