"""What is a norm on the rows that anyone would sample, and something else on others."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto

from tests.audit import grammar
from tests.audit.grammar import FLOAT, SHAPE, Writer

Trap = Callable[["Trapped", str], str]


class Trapped(Writer):
    """A norm in a random spelling, one value of which is other than it seems."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._draw = random.Random(seed)
        self._left = self._draw.randrange(4)
        self.trap = TRAPS[seed % len(TRAPS)]
        self.is_set = False

    def input(self, name: str) -> str:
        return self.g.input(name, np.zeros(SHAPE, np.float32), ("batch", *SHAPE[1:]))

    def disguised(self, value: str) -> str:
        """The value; the one that was drawn with the trap."""
        self._left -= 1
        if self._left != -1:
            return value
        self.is_set = True
        return self.trap(self, value)

    def far(self) -> float:
        """A magnitude that few rows have."""
        return float(10 ** self._draw.uniform(3.5, 30))

    def near(self) -> float:
        return 1 / self.far()

    def where(self, condition: str, yes: str | float, no: str | float) -> str:
        return self.op("Where", condition, yes, no)

    def flag(self, condition: str) -> str:
        """1 or 0."""
        return self.op("Cast", condition, to=FLOAT)

    def element(self, value: str, at: int) -> str:
        return self.op("Gather", value, self.g.ints(at), axis=-1)


def _step(w: Trapped, v: str) -> str:
    return w.op("Add", v, w.op("Relu", w.op("Sub", v, w.far())))


def _beyond(w: Trapped, v: str) -> str:
    size = w.op("Abs", v)
    return w.where(w.op("Greater", size, w.far()), w.op("Mul", v, 2.0), v)


def _tiny(w: Trapped, v: str) -> str:
    return w.where(w.op("Less", w.op("Abs", v), w.near()), 0.0, v)


def _not_a_number(w: Trapped, v: str) -> str:
    return w.where(w.op("IsNaN", v), 0.0, v)


def _infinite(w: Trapped, v: str) -> str:
    return w.where(w.op("IsInf", v), 1.0, v)


def _at_zero(w: Trapped, v: str) -> str:
    return w.where(w.op("Equal", v, 0.0), 1e-3, v)


def _between(w: Trapped, v: str) -> str:
    """A window that no row of powers of ten falls in."""
    t = w.far()
    inside = w.op("And", w.op("Greater", v, t), w.op("Less", v, t * 1.01))
    return w.op("Mul", v, w.op("Add", w.flag(inside), 1.0))


def _rounded(w: Trapped, v: str) -> str:
    t = w.far()
    return w.op("Add", v, w.op(w.rng.choice(("Floor", "Round")), w.op("Div", w.op("Abs", v), t)))


def _whole(w: Trapped, v: str) -> str:
    whole = w.op("Cast", w.op("Div", v, w.far()), to=TensorProto.INT32)
    return w.op("Add", v, w.flag(whole))


def _saturated(w: Trapped, v: str) -> str:
    t = w.far()
    return w.op("Mul", w.op(w.rng.choice(("Tanh", "Erf", "Softsign")), w.op("Div", v, t)), t)


def _of_two(w: Trapped, v: str) -> str:
    """Where one element is far larger than another."""
    a, b = (w.op("Abs", w.element(w.x, at)) for at in (0, 1))
    kink = w.op("Relu", w.op("Sub", a, w.op("Mul", b, w.far())))
    return w.op("Mul", v, w.op("Add", w.op("Sign", kink), 1.0))


def _of_the_largest(w: Trapped, v: str) -> str:
    at = w.op("ArgMax", w.x, axis=-1, keepdims=1)
    spiked = w.op("Equal", w.op("GatherElements", w.x, at, axis=-1), w.far())
    return w.op("Mul", v, w.op("Add", w.flag(spiked), 1.0))


def _late_rows(w: Trapped, v: str) -> str:
    """Rows behind the hundredth of a batch."""
    first, more = w.g.ints(0), w.g.ints(100)
    head = w.op("Slice", v, first, more, first)
    tail = w.op("Slice", v, more, w.g.ints(2**40), first)
    return w.op("Concat", head, w.op("Mul", tail, 2.0), axis=0)


def _many_rows(w: Trapped, v: str) -> str:
    count = w.op("Cast", w.op("Shape", w.x, start=0, end=1), to=FLOAT)
    return w.op("Mul", v, w.op("Max", w.op("Div", count, 100.0), 1.0))


TRAPS: list[Trap] = [
    lambda w, v: w.op("Clip", v, -w.far(), w.far()),
    lambda w, v: w.op("Min", v, w.far()),
    lambda w, v: w.op("Sub", v, w.op("Relu", w.op("Sub", v, w.far()))),
    lambda w, v: w.op("ThresholdedRelu", v, alpha=w.near()),
    lambda w, v: w.op("Shrink", v, lambd=w.near(), bias=0.0),
    lambda w, v: w.op("Mod", v, w.far(), fmod=1),
    _step, _beyond, _tiny, _not_a_number, _infinite, _at_zero, _between, _rounded, _whole,
    _saturated, _of_two, _of_the_largest, _late_rows, _many_rows,
]  # fmt: skip


def trapped(seed: int) -> onnx.ModelProto | None:
    """Return a norm with a trap; None where the spelling has no value for it."""
    w = Trapped(seed)
    model = grammar.norm(seed, w)
    return model if w.is_set else None


class Plain(Trapped):
    """The same without the trap."""

    def disguised(self, value: str) -> str:
        return value
