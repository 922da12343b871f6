"""What looks like a norm and is none, by steps of the same random spellings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from tests.audit.grammar import EPSILON, INVERSES, MEANS, SQUARES, B, N, S, Writer

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
