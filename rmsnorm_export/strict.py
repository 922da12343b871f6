"""JSON that somebody else may have written, read so that every later reader sees the same.

Readers differ in what JSON leaves open: which of two equal keys holds, numbers that are none, how
deep a text may nest. What is open is refused.
"""

from __future__ import annotations

import collections
import itertools
import json
import math
import re
from typing import Any, NoReturn

DEEPEST = 128
"""Objects and arrays within each other; what exporters write nests a dozen deep."""

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_BRACKETS = {code: None for code in range(128) if chr(code) not in "[]{}"}
_STEP = {"[": 1, "{": 1, "]": -1, "}": -1}


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
