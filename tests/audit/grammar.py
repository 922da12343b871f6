"""Random spellings of the norm by identities that no rule knows.

A model is one row of choices: each step of the norm is written in a way drawn from a list, and any
value on the way may be disguised by what changes nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto

from tests.spellings.graph import Graph

FLOAT = TensorProto.FLOAT
B, S, N = 2, 3, 8
SHAPE = (B, S, N)
Step = Callable[["Writer", str], str]


class Writer:
    """A graph of one norm under construction."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.g = Graph(opset=18, constants=self.rng.choice(("initializer", "node")))
        self.x = self.input("x")
        self.is_whole = False  # the mean stands in every place of a row

    def input(self, name: str) -> str:
        dims = self.rng.choice((SHAPE, ("batch", S, N)))
        return self.g.input(name, np.zeros(SHAPE, np.float32), dims)

    def model(self, y: str) -> onnx.ModelProto:
        self.g.output(y, FLOAT, None)
        return onnx.shape_inference.infer_shapes(self.g.model(value_infos=False), strict_mode=True)

    def op(self, op_type: str, *inputs: str | float, **attributes: object) -> str:
        """A node; numbers among the inputs become constants."""
        names = [v if isinstance(v, str) else self.number(v) for v in inputs]
        return self.g.op(op_type, *names, **attributes)

    def number(self, value: float) -> str:
        return self.g.scalar(value, FLOAT, self.rng.choice(((), (1,))))

    def array(self, values: object, dtype: type = np.float32) -> str:
        return self.g.const(np.asarray(values, dtype))

    def draw(self, steps: Sequence[Step], value: str) -> str:
        """One of these steps, before and behind which the value may be disguised."""
        return self.rng.choice(steps)(self, self.disguised(value))

    def disguised(self, value: str) -> str:
        for _ in range(self.rng.choice((0, 0, 0, 1, 1, 2))):
            value = self.rng.choice(DISGUISES)(self, value)
        return value

    def split(self, value: str, sizes: Sequence[int]) -> list[str]:
        return self.g.ops("Split", value, self.g.ints(*sizes), count=len(sizes), axis=-1)


# what changes nothing, of a value of any shape of rank 3


def _between(w: Writer, v: str) -> str:
    return w.op("Clip", v, -1e30, 1e30) if w.rng.random() < 0.5 else w.op("Min", v, 3e38)


def _where(w: Writer, v: str) -> str:
    return w.op("Where", w.op("Less", v, w.op("Add", w.op("Abs", v), 1.0)), v, w.op("Neg", v))


def _turned(w: Writer, v: str) -> str:
    return w.op("Transpose", w.op("Transpose", v, perm=[1, 0, 2]), perm=[1, 0, 2])


def _flat(w: Writer, v: str) -> str:
    return w.op("Reshape", w.op("Reshape", v, w.g.ints(-1)), w.op("Shape", v))


def _doubled(w: Writer, v: str) -> str:
    both = w.op("Concat", v, w.op("Neg", v), axis=1)
    return w.op("Slice", both, w.g.ints(0), w.g.ints(S), w.g.ints(1))


def _halves(w: Writer, v: str) -> str:
    return w.op("Mean", w.op("Mul", v, 3.0), w.op("Neg", v))


def _wide(w: Writer, v: str) -> str:
    return w.op("Cast", w.op("Cast", v, to=TensorProto.DOUBLE), to=FLOAT)


DISGUISES: list[Step] = [
    lambda w, v: w.op("Neg", w.op("Neg", v)),
    lambda w, v: w.op("Mul", w.op("Mul", v, 4.0), 0.25),
    lambda w, v: w.op("Div", w.op("Add", v, v), 2.0),
    lambda w, v: w.op("Sub", w.op("Mul", v, 3.0), w.op("Mul", v, 2.0)),
    lambda w, v: w.op("Pow", v, 1.0),
    lambda w, v: w.op("Sum", v),
    lambda w, v: w.op("Max", v, w.op("Sub", v, 1.0)),
    lambda w, v: w.op("Reciprocal", w.op("Reciprocal", v)),
    lambda w, v: w.op("Sub", w.op("Relu", v), w.op("Relu", w.op("Neg", v))),
    lambda w, v: w.op("Mul", w.op("Sign", v), w.op("Abs", v)),
    lambda w, v: w.op("Expand", v, w.op("Shape", v)),
    _between, _where, _turned, _flat, _doubled, _halves, _wide,
]  # fmt: skip

# the square of a row


def _by_difference(w: Writer, x: str) -> str:
    up, down = (w.op("Pow", w.op(op, x, 1.0), 2.0) for op in ("Add", "Sub"))
    return w.op("Mul", w.op("Mul", w.op("Sub", up, down), 0.25), x)


def _by_logarithm(w: Writer, x: str) -> str:
    return w.op("Exp", w.op("Mul", w.op("Log", w.op("Abs", x)), 2.0))


def _by_signs(w: Writer, x: str) -> str:
    parts = (w.op("Pow", w.op("Relu", v), 2.0) for v in (x, w.op("Neg", x)))
    return w.op("Add", *parts)


def _weighed(w: Writer, x: str) -> str:
    c = w.array(np.linspace(0.5, 2, N))
    return w.op("Div", w.op("Mul", x, w.op("Mul", x, c)), c)


SQUARES: list[Step] = [
    lambda w, x: w.op("Mul", x, x),
    lambda w, x: w.op("Pow", x, 2.0),
    lambda w, x: w.op("Pow", w.op("Abs", x), 2.0),
    lambda w, x: w.op("Pow", w.op("Sqrt", w.op("Abs", x)), 4.0),
    lambda w, x: w.op("Mul", w.op("Pow", w.op("Add", x, x), 2.0), 0.25),
    lambda w, x: w.op("Neg", w.op("Mul", x, w.op("Neg", x))),
    lambda w, x: w.op("Sqrt", w.op("Pow", x, 4.0)),
    lambda w, x: w.op("Div", x, w.op("Reciprocal", x)),
    lambda w, x: w.op("Einsum", x, x, equation="bsd,bsd->bsd"),
    _by_difference, _by_logarithm, _by_signs, _weighed,
]  # fmt: skip

# the mean of positive numbers over the last axis, with the axis kept


def _rows(w: Writer, s: str) -> str:
    return w.op("Reshape", s, w.g.ints(-1, 1, N))


def _back(w: Writer, m: str) -> str:
    return w.op("Reshape", m, w.g.ints(-1, S, 1))


def _total(w: Writer, s: str) -> str:
    return w.g.reduce("ReduceSum", s, [-1], 1)


def _by_halves(w: Writer, s: str) -> str:
    at = w.rng.randrange(1, N)
    return w.op("Div", w.op("Add", *(_total(w, v) for v in w.split(s, (at, N - at)))), float(N))


def _by_ones(w: Writer, s: str) -> str:
    return w.op("MatMul", s, w.array(np.full((N, 1), 1 / N)))


def _by_square(w: Writer, s: str) -> str:
    w.is_whole = True
    return w.op("MatMul", s, w.array(np.full((N, N), 1 / N)))


def _by_cumulation(w: Writer, s: str) -> str:
    sums = w.op("CumSum", s, w.array(-1, np.int64))
    return w.op("Div", w.op("Gather", sums, w.g.ints(N - 1), axis=-1), float(N))


def _by_groups(w: Writer, s: str) -> str:
    cut = w.op("Reshape", s, w.g.ints(-1, S, 2, N // 2))
    means = w.g.reduce("ReduceMean", cut, [-1], 0)
    return w.g.reduce("ReduceMean", means, [-1], 1)


def _by_permutation(w: Writer, s: str) -> str:
    order = w.rng.sample(range(N), N)
    return w.g.reduce("ReduceMean", w.op("Gather", s, w.g.ints(*order), axis=-1), [-1], 1)


def _by_transposition(w: Writer, s: str) -> str:
    means = w.g.reduce("ReduceMean", w.op("Transpose", s, perm=[2, 0, 1]), [0], 1)
    return w.op("Transpose", means, perm=[1, 2, 0])


def _by_gemm(w: Writer, s: str) -> str:
    flat = w.op("Reshape", s, w.g.ints(-1, N))
    return _back(w, w.op("Gemm", flat, w.array(np.ones((1, N))), alpha=1 / N, transB=1))


def _by_pieces(w: Writer, s: str) -> str:
    return w.op("Mean", *w.split(s, (1,) * N))


def _by_exponentials(w: Writer, s: str) -> str:
    return w.op("Div", w.op("Exp", w.g.reduce("ReduceLogSumExp", w.op("Log", s), [-1], 1)), 8.0)


MEANS: list[Step] = [
    lambda w, s: w.g.reduce("ReduceMean", s, [-1], 1),
    lambda w, s: w.op("Mul", _total(w, s), 1 / N),
    lambda w, s: w.op("Div", w.g.reduce("ReduceL1", s, [-1], 1), float(N)),
    lambda w, s: w.op("Div", w.g.reduce("ReduceSumSquare", w.op("Sqrt", s), [-1], 1), float(N)),
    lambda w, s: w.op(
        "Pow", w.op("Mul", w.g.reduce("ReduceL2", w.op("Sqrt", s), [-1], 1), N**-0.5), 2.0
    ),
    lambda w, s: w.op(
        "Unsqueeze", w.op("Div", w.op("Einsum", s, equation="bsd->bs"), float(N)), w.g.ints(-1)
    ),
    lambda w, s: _back(w, w.op("GlobalAveragePool", _rows(w, s))),
    lambda w, s: _back(w, w.op("AveragePool", _rows(w, s), kernel_shape=[N])),
    lambda w, s: _back(w, w.op("Conv", _rows(w, s), w.array(np.full((1, 1, N), 1 / N)))),
    _by_halves, _by_ones, _by_cumulation, _by_groups, _by_permutation, _by_transposition, _by_gemm,
    _by_pieces, _by_exponentials, _by_square,
]  # fmt: skip

# epsilon

EPSILON = 1e-5
STABLE: list[Step] = [
    lambda w, m: w.op("Add", m, EPSILON),
    lambda w, m: w.op("Sum", m, EPSILON),
    lambda w, m: w.op("Sub", m, -EPSILON),
    lambda w, m: w.op("Div", w.op("Add", w.op("Mul", m, 4.0), 4 * EPSILON), 4.0),
    lambda w, m: w.op("Max", m, EPSILON),
    lambda _, m: m,
]

# 1 / sqrt


def _rsqrt_by_logarithm(w: Writer, m: str) -> str:
    return w.op("Exp", w.op("Mul", w.op("Log", m), -0.5))


def _length(w: Writer, m: str) -> str:
    return w.op("Reciprocal", w.g.reduce("ReduceL2", w.op("Sqrt", m), [-1], 1))


INVERSES: list[Step] = [
    lambda w, m: w.op("Reciprocal", w.op("Sqrt", m)),
    lambda w, m: w.op("Sqrt", w.op("Reciprocal", m)),
    lambda w, m: w.op("Pow", m, -0.5),
    lambda w, m: w.op("Pow", w.op("Pow", m, 0.25), -2.0),
    lambda w, m: w.op("Pow", w.op("Pow", m, 0.5), -1.0),
    lambda w, m: w.op("Div", w.op("Sqrt", m), m),
    lambda w, m: w.op("Mul", m, w.op("Pow", m, -1.5)),
    lambda w, m: w.op("Sqrt", w.op("Sqrt", w.op("Pow", m, -2.0))),
    lambda w, m: w.op("Reciprocal", w.op("Exp", w.op("Mul", w.op("Log", m), 0.5))),
    lambda w, m: w.op("Div", 0.5, w.op("Mul", w.op("Sqrt", m), 0.5)),
    _rsqrt_by_logarithm,
]  # fmt: skip

# x times 1 / rms: a value of the shape of x and one with the last axis kept


def _product(w: Writer, x: str, r: str) -> str:
    return w.op("Mul", *w.rng.sample((x, r), 2))


def _over_root(w: Writer, x: str, r: str) -> str:
    return w.op("Div", x, w.op("Reciprocal", r))


def _by_rows(w: Writer, x: str, r: str) -> str:
    row, one = (w.op("Unsqueeze", v, w.g.ints(-2)) for v in (x, r))
    if w.rng.random() < 0.5:
        return w.op("Einsum", w.op("Squeeze", r, w.g.ints(-1)), x, equation="bs,bsd->bsd")
    return w.op("Squeeze", w.op("MatMul", one, row), w.g.ints(-2))


def _in_parts(w: Writer, x: str, r: str) -> str:
    at = w.rng.randrange(1, N)
    return w.op("Concat", *(w.op("Mul", v, r) for v in w.split(x, (at, N - at))), axis=-1)


def _in_shares(w: Writer, x: str, r: str) -> str:
    shares = (w.op("Mul", w.op("Mul", x, share), r) for share in (0.25, 0.75))
    return w.op("Add", *shares)


def _by_sums(w: Writer, x: str, r: str) -> str:
    size = w.op("Exp", w.op("Add", w.op("Log", w.op("Abs", x)), w.op("Log", r)))
    return w.op("Mul", w.op("Sign", x), size)


def _in_signs(w: Writer, x: str, r: str) -> str:
    parts = (w.op("Mul", w.op("Relu", v), r) for v in (x, w.op("Neg", x)))
    return w.op("Sub", *parts)


def _weighted(w: Writer, x: str, r: str) -> str:
    gain = w.array(np.linspace(-1, 3, N) + 0.1)
    if w.rng.random() < 0.5:
        return _product(w, w.op("Mul", x, gain), r)
    return _product(w, x, w.op("Mul", r, gain))


WHOLE: list[Callable[[Writer, str, str], str]] = [
    _product, _over_root, _in_shares, _by_sums, _in_signs, _weighted
]  # fmt: skip
PRODUCTS = [*WHOLE, _by_rows, _in_parts]


def norm(seed: int, writer: Writer | None = None) -> onnx.ModelProto:
    """Return an RMSNorm in a random spelling."""
    w = writer or Writer(seed)
    row = w.x
    scale = w.rng.choice((None, None, 0.5, N**-0.5))
    squared = row if scale is None else w.op("Mul", row, scale)
    mean = w.draw(MEANS, w.draw(SQUARES, squared))
    if scale is not None:
        mean = w.op("Div", mean, scale * scale)
    inverse = w.draw(INVERSES if w.is_whole else [*INVERSES, _length], w.draw(STABLE, mean))
    product = w.rng.choice(WHOLE if w.is_whole else PRODUCTS)
    y = product(w, w.disguised(row), w.disguised(inverse))
    return w.model(w.disguised(y))
