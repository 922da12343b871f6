"""Steps of the ordinary chain by other operators, and look-alikes that are this chain but for some.

A step takes what it works with and the value before it. What a chain has of its own is a table of
steps by the names of ``Alike.chain``, and of values by ``first`` (made before the row), ``row`` and
``other`` (made after it); ``first`` and ``other`` are then ``Alike.other``.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .alike import Alike

Made = Callable[[Alike], Any]
Step = Callable[[Alike, str], str]

VALUE = object()
"""Stands among operands for the value before a step."""

X: Made = operator.attrgetter("x")
OTHER: Made = operator.attrgetter("other")


# values


def shaped(*shape: int) -> Made:
    """A row of this shape."""
    return lambda a: a.input(shape=shape)


def drawn_times(factor: Any) -> Made:
    """Normal numbers, times these."""
    return lambda a: a.input(values=a.rng.standard_normal((2, 3, 8)) * np.asarray(factor))


def fed(hint: str, value: Any = None) -> Made:
    """Another input, of the shape of the row if no value is given."""
    return lambda a: a.input(hint, values=None if value is None else np.array(value))


def scalar(value: float, *shape: int) -> Made:
    return lambda a: a.scalar(value, shape)


def stored(values: Any) -> Made:
    """A constant of several numbers."""
    return lambda a: a.g.const(np.asarray(values, np.float32))


# steps


def op(op_type: str, *operands: Any, **attributes: object) -> Step:
    """An operator of the value and of these operands: numbers, or what makes them.

    The value is the first, unless ``VALUE`` stands in its place.
    """
    placed = operands if VALUE in operands else (VALUE, *operands)

    def step(a: Alike, value: str) -> str:
        def operand(one: Any) -> str:
            return value if one is VALUE else one(a) if callable(one) else a.scalar(one)

        return a.g.op(op_type, *map(operand, placed), **attributes)

    return step


def then(*steps: Step) -> Step:
    def both(a: Alike, x: str) -> str:
        return functools.reduce(lambda value, step: step(a, value), steps, x)

    return both


def same(_: Alike, x: str) -> str:
    return x


def reduced(op_type: str, axes: Sequence[int] = (-1,), keepdims: int = 1) -> Step:
    return lambda a, x: a.g.reduce(op_type, x, axes, keepdims)


epsilon: Step = Alike.stabilise
mean: Step = Alike.mean
total = reduced("ReduceSum")


def through(*types: int) -> Step:
    """Casts to these types, one after the other."""
    return lambda a, x: functools.reduce(a.g.cast, types, x)
