"""What is a norm on the rows that anyone would sample, and something else on others."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto

from tests.audit import grammar
from tests.audit.grammar import EPSILON, FLOAT, INVERSES, MEANS, SHAPE, SQUARES, B, N, S, Writer

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


# What looks like a norm and is none, by steps of the same random spellings.

# what is none: a mean of something else, another root, another row


def _mean_square(w: Writer, x: str) -> str:
    return w.draw(MEANS, w.draw(SQUARES, x))


def _rsqrt(w: Writer, m: str) -> str:
    return w.draw(INVERSES, w.op("Add", m, EPSILON))


def _centred(w: Writer, x: str) -> str:
    if w.rng.random() < 0.3:
        return w.op("MatMul", x, w.array(np.eye(N) - 1 / N))
    return w.op("Sub", x, w.g.reduce("ReduceMean", w.disguised(x), [-1], 1))


def _layer_norm(w: Writer) -> str:
    d = _centred(w, w.x)
    return w.op("Mul", w.disguised(d), _rsqrt(w, _mean_square(w, d)))


def _layer_norm_twice_centred(w: Writer) -> str:
    return w.op("Mul", _centred(w, w.x), _rsqrt(w, _mean_square(w, _centred(w, w.x))))


def _over_deviation(w: Writer) -> str:
    return w.op("Mul", w.disguised(w.x), _rsqrt(w, _mean_square(w, _centred(w, w.x))))


def _variance_by_difference(w: Writer) -> str:
    mean = w.g.reduce("ReduceMean", w.x, [-1], 1)
    variance = w.op("Sub", _mean_square(w, w.x), w.op("Mul", mean, mean))
    return w.op("Mul", w.op("Sub", w.x, mean), _rsqrt(w, variance))


def _softmax(w: Writer) -> str:
    powers = w.op("Exp", w.disguised(w.op("Sub", w.x, w.g.reduce("ReduceMax", w.x, [-1], 1))))
    sums = w.op("Mul", w.draw(MEANS, powers), float(N))
    return w.op("Mul", powers, w.op("Reciprocal", sums))


def _root_of_softmax(w: Writer) -> str:
    powers = w.op("Exp", w.disguised(w.x))
    return w.op("Mul", w.x, w.op("Sqrt", w.op("Div", powers, w.draw(MEANS, powers))))


def _cosine(w: Writer) -> str:
    other = w.input("other")
    products = w.g.reduce("ReduceSum", w.op("Mul", w.x, other), [-1], 1)
    sizes = w.op("Mul", _mean_square(w, w.x), _mean_square(w, other))
    return w.op("Mul", products, _rsqrt(w, sizes))


def _of_another_row(w: Writer) -> str:
    return w.op("Mul", w.input("other"), _rsqrt(w, _mean_square(w, w.x)))


def _attention(w: Writer) -> str:
    rows = np.random.default_rng(w.rng.randrange(99))
    q, k, v = (w.op("MatMul", w.x, w.array(rows.standard_normal((N, N)))) for _ in range(3))
    scores = w.op("MatMul", q, w.op("Transpose", k, perm=[0, 2, 1]))
    powers = w.op("Exp", w.op("Mul", scores, N**-0.5))
    mixed = w.op("Div", powers, w.g.reduce("ReduceSum", powers, [-1], 1))
    return w.op("Add", w.disguised(w.op("MatMul", mixed, v)), w.x)


def _everything(w: Writer) -> str:
    mean = w.g.reduce("ReduceMean", w.draw(MEANS, w.draw(SQUARES, w.x)), [0, 1], 1)
    wide = w.op("Expand", mean, w.g.ints(1, S, 1))
    return w.op("Mul", w.disguised(w.x), _rsqrt(w, wide))


def _groups_across(w: Writer) -> str:
    cut = w.op("Reshape", w.draw(SQUARES, w.x), w.g.ints(B, S, 2, N // 2))
    means = w.op("Reshape", w.g.reduce("ReduceMean", cut, [1, 3], 1), w.g.ints(B, 1, 2))
    halves = (w.op("Expand", v, w.g.ints(1, S, N // 2)) for v in w.split(means, (1, 1)))
    wide = w.op("Concat", *halves, axis=-1)
    return w.op("Mul", w.disguised(w.x), _rsqrt(w, wide))


def _sizes(w: Writer) -> str:
    return w.op("Mul", w.disguised(w.x), _rsqrt(w, _squared(w, w.draw(MEANS, w.op("Abs", w.x)))))


def _squared(w: Writer, v: str) -> str:
    return w.op("Mul", v, v)


def _largest(w: Writer) -> str:
    most = w.g.reduce("ReduceMax", w.draw(SQUARES, w.x), [-1], 1)
    mixed = w.op("Add", w.op("Mul", most, 0.5), w.op("Mul", _mean_square(w, w.x), 0.5))
    return w.op("Mul", w.disguised(w.x), _rsqrt(w, mixed))


def _fourth(w: Writer) -> str:
    mean = w.op("Sqrt", w.draw(MEANS, w.op("Pow", w.x, 4.0)))
    return w.op("Mul", w.disguised(w.x), _rsqrt(w, mean))


def _without_root(w: Writer) -> str:
    inverse = _rsqrt(w, _mean_square(w, w.x))
    return w.op("Mul", w.x, w.op("Pow", inverse, w.rng.choice((2.0, 0.5, 1.1))))


def _times_root(w: Writer) -> str:
    return w.op("Div", w.disguised(w.x), _rsqrt(w, _mean_square(w, w.x)))


def _shifted(w: Writer) -> str:
    return w.op("Mul", w.disguised(w.x), _rsqrt(w, _mean_square(w, w.op("Add", w.x, 0.1))))


def _permuted(w: Writer) -> str:
    order = w.g.ints(*(*range(1, N), 0))
    return w.op("Mul", w.op("Gather", w.x, order, axis=-1), _rsqrt(w, _mean_square(w, w.x)))


def _of_those_not_zero(w: Writer) -> str:
    signs = w.draw(MEANS, w.op("Abs", w.op("Sign", w.x)))
    return w.op("Mul", w.x, _rsqrt(w, w.op("Div", _mean_square(w, w.x), signs)))


def _positive(w: Writer) -> str:
    return w.op("Mul", w.op("Relu", w.x), _rsqrt(w, _mean_square(w, w.x)))


def _without_signs(w: Writer) -> str:
    sizes = w.op("Sqrt", w.op("Mul", w.x, w.x))
    return w.op("Mul", sizes, _rsqrt(w, _mean_square(w, w.x)))


def _weighted_mean(w: Writer) -> str:
    weights = w.array(np.linspace(0.5, 1.5, N))
    mean = w.draw(MEANS, w.op("Mul", w.draw(SQUARES, w.x), weights))
    return w.op("Mul", w.disguised(w.x), _rsqrt(w, mean))


def _clamped(w: Writer) -> str:
    mean = w.op("Clip", _mean_square(w, w.x), 1e-6, 100.0)
    return w.op("Mul", w.disguised(w.x), _rsqrt(w, mean))


def _negative(w: Writer) -> str:
    return w.op("Mul", w.x, w.draw(INVERSES, w.op("Sub", _mean_square(w, w.x), 1e-3)))


def _two_epsilons(w: Writer) -> str:
    root = w.op("Sqrt", w.op("Add", _mean_square(w, w.x), 1e-4))
    return w.op("Div", w.x, w.op("Add", root, 1e-2))


def _spread(w: Writer) -> str:
    """Global response normalisation: the lengths of channels over their mean."""
    lengths = w.op("Sqrt", w.op("Add", w.g.reduce("ReduceSum", w.draw(SQUARES, w.x), [1], 1), 1e-6))
    return w.op("Mul", w.x, w.op("Div", lengths, w.g.reduce("ReduceMean", lengths, [-1], 1)))


ALIKE: list[Callable[[Writer], str]] = [
    _layer_norm, _layer_norm_twice_centred, _over_deviation, _variance_by_difference, _softmax,
    _root_of_softmax, _cosine, _of_another_row, _attention, _everything, _groups_across,
    _sizes, _largest, _fourth, _without_root, _times_root, _shifted, _permuted,
    _of_those_not_zero, _positive, _without_signs, _weighted_mean, _clamped, _negative,
    _two_epsilons, _spread,
]  # fmt: skip


def look_alike(seed: int) -> onnx.ModelProto:
    """Return what is no RMSNorm, by steps of the same spellings."""
    w = Writer(seed)
    return w.model(w.disguised(ALIKE[seed % len(ALIKE)](w)))
