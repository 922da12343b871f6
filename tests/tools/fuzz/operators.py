"""The ONNX operators in interval arithmetic: what each computes, from its definition.

Whatever is not here goes to ``onnx.reference``, an end of the intervals at a time.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tests.tools.fuzz.intervals import (
    F32,
    F64,
    HALF,
    PRODUCT,
    UNIT,
    Arithmetic,
    Array,
    Value,
    is_float,
    unknown_where,
)

Attributes: TypeAlias = Mapping[str, Any]
Kernel: TypeAlias = Callable[
    [Arithmetic, list["Value | None"], Attributes], Sequence["Value | None"]
]

OUTPUTS = "outputs of the node"
"""How many there are, among the attributes that a kernel gets."""

_APPROXIMATED = 128.0
"""Roundings granted to what runtimes approximate: Sigmoid, Exp, Tanh, Erf, a general Pow."""

_SIGMOID_ERROR = 4 * UNIT[F32]  # absolute, of ONNX Runtime's: 1.31 is up to 2.8 off, for any x


class CannotEvaluateError(Exception):
    """The evaluator does not know what a node computes, or its operands do not fit."""


def kernel_of(domain: str, op_type: str) -> Kernel | None:
    return KERNELS.get((domain, op_type))


def by_reference(
    calculus: Arithmetic, node: onnx.NodeProto, values: Sequence[Value | None], opset: int
) -> list[Value]:
    """One node by ``onnx.reference``, in the types of its operands."""
    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    plain.ClearField("name")
    plain.input[:] = ["" if v is None else f"i{k}" for k, v in enumerate(values)]
    plain.output[:] = [f"o{k}" if name else "" for k, name in enumerate(node.output)]
    given = [v for v in values if v is not None]
    work, constant = calculus.operands(given)
    session = _reference(plain.SerializeToString(), opset)
    names = [name for name in plain.input if name]

    def run(ends: list[Array]) -> list[Array]:
        try:
            return [np.asarray(a) for a in session.run(None, dict(zip(names, ends, strict=True)))]
        except Exception as error:  # its kernels raise whatever NumPy raises
            raise CannotEvaluateError(f"{node.op_type}: {error}") from error

    low = run([v.lo for v in work])
    high = low if all(v.point for v in work) else run([v.hi for v in work])
    floats = [v.dtype for v in given if is_float(v.dtype)]
    out = []
    for a, b in zip(low, high, strict=True):
        if is_float(a.dtype):
            lo, hi = (a, a) if a is b else (np.minimum(a, b), np.maximum(a, b))
            kind = floats[0] if floats else a.dtype
            out.append(calculus.store(lo, hi, kind, 8 * PRODUCT, constant))
        else:
            out.append(Value(a, a if a is b else b, a.dtype, constant))
    return out


@functools.lru_cache(maxsize=512)
def _reference(node: bytes, opset: int) -> ReferenceEvaluator:
    proto = onnx.NodeProto.FromString(node)
    graph = onnx.helper.make_graph(
        [proto],
        "node",
        [onnx.helper.make_empty_tensor_value_info(name) for name in proto.input if name],
        [onnx.helper.make_empty_tensor_value_info(name) for name in proto.output if name],
    )
    opsets = [onnx.helper.make_opsetid("", opset)]
    try:
        return ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=opsets))
    except Exception as error:
        raise CannotEvaluateError(f"{proto.op_type}: {error}") from error


def _need(value: Value | None) -> Value:
    if value is None:
        raise CannotEvaluateError("an operand is missing")
    return value


def _plain(value: Value | None) -> Array:
    """An operand that is a list of numbers: axes, a shape."""
    value = _need(value)
    if not value.point and not np.array_equal(value.lo, value.hi):
        raise CannotEvaluateError("a shape depends on rounding")
    return value.lo


def _binary(function: Callable[..., Array]) -> Kernel:
    return lambda c, v, _: [c.elementwise(function, _need(v[0]), _need(v[1]))]


def _mul(c: Arithmetic, v: list[Value | None], _: Attributes) -> list[Value]:
    if v[0] is v[1]:
        return [c.square(_need(v[0]))]
    return [c.elementwise(np.multiply, _need(v[0]), _need(v[1]))]


def _unary(function: Callable[..., Array], steps: float = PRODUCT) -> Kernel:
    return lambda c, v, _: [c.elementwise(function, _need(v[0]), steps=steps)]


def _power(c: Arithmetic, v: list[Value | None], _: Attributes) -> list[Value]:
    base, exponent = _need(v[0]), _need(v[1])
    if exponent.point and exponent.lo.size == 1 and exponent.rank <= base.rank:
        power = float(exponent.lo.reshape(()))
        if power == 2.0:
            return [c.square(base)]
        if power == 1.0:
            return [c.elementwise(np.positive, base)]
        if power in (0.5, -0.5):
            root = c.root(base)
            return [root if power > 0 else c.divide(_one(c, root), root)]
    dtype = base.dtype

    def power_of(a: Array, b: Array) -> Array:
        return np.asarray(np.power(a, b.astype(a.dtype)))

    result = c.elementwise(power_of, base, exponent, steps=_APPROXIMATED, dtype=dtype)
    if base.point:
        return [result]
    # Between ends of two signs a power turns round, or is none.
    crosses = np.broadcast_to((base.lo < 0) & (base.hi > 0), result.lo.shape)
    lo, hi = unknown_where(crosses, result.lo, result.hi)
    return [Value(lo, hi, result.dtype, result.constant)]


def _one(c: Arithmetic, like: Value) -> Value:
    return c.constant(np.ones((), like.dtype))


def _turning(function: Callable[[Array], Array], slope: float, steps: float) -> Kernel:
    """Not monotone, but no steeper than ``slope``."""

    def kernel(c: Arithmetic, v: list[Value | None], _: Attributes) -> list[Value]:
        value = _need(v[0])
        result = c.elementwise(function, value, steps=steps)
        if value.point:
            return [result]
        with np.errstate(all="ignore"):
            reach = np.asarray(slope * (value.hi - value.lo)).astype(result.lo.dtype)
        reach = np.where(np.isnan(reach), 0, reach).astype(result.lo.dtype)
        return [Value(result.lo - reach, result.hi + reach, result.dtype, result.constant)]

    return kernel


def _sigmoid(z: Array) -> Array:
    small = np.exp(-np.abs(z))
    return np.asarray(np.where(z >= 0, 1 / (1 + small), small / (1 + small)).astype(z.dtype))


def _sigmoids(c: Arithmetic, v: list[Value | None], _: Attributes) -> list[Value]:
    def off(value: Value) -> list[Array]:
        ends = (_sigmoid(value.lo) - _SIGMOID_ERROR, _sigmoid(value.hi) + _SIGMOID_ERROR)
        return [np.clip(end, 0, 1).astype(end.dtype) for end in ends]

    value = _need(v[0])
    rough = c.mode.runtime and value.dtype != F64
    return [c.elementwise(_sigmoid, value, steps=_APPROXIMATED, extra=off if rough else None)]


def _axes(v: Sequence[Value | None], attributes: Attributes, rank: int) -> tuple[int, ...] | None:
    axes = attributes.get("axes")
    if axes is None and len(v) > 1 and v[1] is not None:
        axes = _plain(v[1]).reshape(-1).tolist()
    if axes is None or len(axes) == 0:
        return () if attributes.get("noop_with_empty_axes", 0) else None
    return tuple(int(axis) % rank for axis in axes)


def _reduce(kind: str) -> Kernel:
    def kernel(c: Arithmetic, v: list[Value | None], attributes: Attributes) -> list[Value]:
        value = _need(v[0])
        axes = _axes(v, attributes, value.rank)
        keep = bool(attributes.get("keepdims", 1))
        if kind in ("SumSquare", "L2"):
            # One operator, rounded once: the squares of a half type are not rounded on the way.
            inner = c.cast(value, F32) if value.dtype in HALF else value
            total = c.reduced(c.square(inner), axes, keep, mean=False)
            if kind == "L2":
                total = c.root(total)
            return [c.cast(total, value.dtype)]
        return [c.reduced(value, axes, keep, mean=kind == "Mean")]

    return kernel


def _reduce_largest(function: Any) -> Kernel:
    def kernel(c: Arithmetic, v: list[Value | None], attributes: Attributes) -> list[Value]:
        value = _need(v[0])
        axes = _axes(v, attributes, value.rank)
        keep = bool(attributes.get("keepdims", 1))
        return [c.views(lambda a: function.reduce(a, axis=axes, keepdims=keep), value)]

    return kernel


def _row_norm(c: Arithmetic, value: Value, axis: int, epsilon: float) -> Value:
    """The row over its root mean square, from ``axis`` on."""
    axes = tuple(range(axis % value.rank, value.rank))
    mean = c.reduced(c.square(value), axes, True, mean=True)
    kind = F64 if c.mode.wide or value.dtype == F64 else F32
    small = c.constant(np.asarray(np.float32(epsilon), kind))
    return c.divide(value, c.root(c.elementwise(np.add, mean, small)))


def _stash(c: Arithmetic, value: Value, attributes: Attributes) -> Value:
    kind = onnx.helper.tensor_dtype_to_np_dtype(attributes.get("stash_type", 1))
    # ONNX Runtime computes a float64 row in float64 whatever the attribute says.
    return c.cast(value, F64 if value.dtype == F64 else np.dtype(kind))


def _rms_normalization(c: Arithmetic, v: list[Value | None], a: Attributes) -> list[Value]:
    x, scale = _need(v[0]), _need(v[1])
    row = _row_norm(c, _stash(c, x, a), a.get("axis", -1), a.get("epsilon", 1e-5))
    y = c.cast(row, x.dtype)
    return [c.elementwise(np.multiply, y, c.cast(scale, x.dtype))]


def _simplified(c: Arithmetic, v: list[Value | None], a: Attributes) -> list[Value]:
    """ONNX Runtime's: scaled in float32, rounded once."""
    x, scale = _need(v[0]), _need(v[1])
    row = _row_norm(c, _stash(c, x, a), a.get("axis", -1), a.get("epsilon", 1e-5))
    return [c.cast(c.elementwise(np.multiply, row, c.cast(scale, row.dtype)), x.dtype)]


def _skip_simplified(c: Arithmetic, v: list[Value | None], a: Attributes) -> list[Value | None]:
    """The row is the float32 sum, not rounded; the fourth output is."""
    x, skip, scale = (_need(value) for value in v[:3])
    kind = F64 if x.dtype == F64 else F32
    total = c.elementwise(np.add, c.cast(x, kind), c.cast(skip, kind))
    if len(v) > 3 and v[3] is not None:
        total = c.elementwise(np.add, total, c.cast(_need(v[3]), kind))
    row = _row_norm(c, total, -1, a.get("epsilon", 1e-12))
    y = c.elementwise(np.multiply, row, c.cast(scale, kind))
    return [c.cast(y, x.dtype), None, None, c.cast(total, x.dtype)]


def _layer_normalization(c: Arithmetic, v: list[Value | None], a: Attributes) -> list[Value]:
    x, scale = _need(v[0]), _need(v[1])
    wide = _stash(c, x, a)
    axes = tuple(range(a.get("axis", -1) % x.rank, x.rank))
    centred = c.elementwise(np.subtract, wide, c.reduced(wide, axes, True, mean=True))
    row = _row_norm(c, centred, a.get("axis", -1), a.get("epsilon", 1e-5))
    y = c.elementwise(np.multiply, c.cast(row, x.dtype), scale)
    if len(v) > 2 and v[2] is not None:
        y = c.elementwise(np.add, y, _need(v[2]))
    return [y]


def _lp_normalization(c: Arithmetic, v: list[Value | None], a: Attributes) -> list[Value]:
    x = _need(v[0])
    if a.get("p", 2) != 2:
        raise CannotEvaluateError("LpNormalization with p = 1")
    inner = c.cast(x, F32) if x.dtype in HALF else x
    axis = (a.get("axis", -1) % x.rank,)
    norm = c.root(c.reduced(c.square(inner), axis, True, mean=False))
    y = c.divide(inner, norm)
    # A row of zeros stays zero: observed in ONNX Runtime 1.31.
    zero = np.broadcast_to((norm.lo == 0) & (norm.hi == 0), y.lo.shape)
    lo, hi = (np.where(zero, 0, end).astype(end.dtype) for end in (y.lo, y.hi))
    return [c.cast(Value(lo, lo if y.point else hi, y.dtype, y.constant), x.dtype)]


def _matmul(c: Arithmetic, v: list[Value | None], _: Attributes) -> list[Value]:
    (a, b), constant = c.operands([_need(v[0]), _need(v[1])])
    if a.point and b.point and not c.mode.spread:
        lo = np.matmul(a.lo, b.lo)
        return [c.store(lo, lo, a.dtype, 0.0, constant)]
    kind = a.lo.dtype
    middle = [np.asarray((x.lo + x.hi) / 2) for x in (a, b)]
    radius = [np.asarray(np.abs(x.hi - x.lo) / 2) for x in (a, b)]
    size = [np.abs(m) + r for m, r in zip(middle, radius, strict=True)]
    centre = np.matmul(middle[0], middle[1])
    work = F64 if c.mode.wide else F32 if a.dtype in HALF else a.dtype
    count = a.lo.shape[-1] if a.rank else 1
    reach = np.matmul(size[0], radius[1]) + np.matmul(radius[0], size[1])
    reach = reach + np.matmul(size[0], size[1]) * ((PRODUCT + count) * UNIT[work])
    lo, hi = (np.asarray(end).astype(kind) for end in (centre - reach, centre + reach))
    lo, hi = unknown_where(np.isnan(lo) & ~np.isnan(centre), lo, hi)
    return [c.store(lo, hi, a.dtype, 0.0, constant)]


def _reshape(c: Arithmetic, v: list[Value | None], a: Attributes) -> list[Value]:
    value, target = _need(v[0]), [int(dim) for dim in _plain(v[1])]
    if not a.get("allowzero", 0):
        target = [value.lo.shape[i] if dim == 0 else dim for i, dim in enumerate(target)]
    return [c.views(lambda array: array.reshape(target), value)]


def _unsqueeze(c: Arithmetic, v: list[Value | None], a: Attributes) -> list[Value]:
    axes = a["axes"] if "axes" in a else _plain(v[1]).reshape(-1).tolist()
    return [c.views(lambda array: np.expand_dims(array, tuple(axes)), _need(v[0]))]


def _squeeze(c: Arithmetic, v: list[Value | None], a: Attributes) -> list[Value]:
    value = _need(v[0])
    axes = _axes(v, a, value.rank)
    return [c.views(lambda array: np.squeeze(array, axes), value)]


def _flatten(c: Arithmetic, v: list[Value | None], a: Attributes) -> list[Value]:
    value = _need(v[0])
    axis = a.get("axis", 1)
    lead = int(np.prod(value.lo.shape[: axis if axis >= 0 else value.rank + axis], dtype=int))
    rest = int(np.prod(value.lo.shape[axis:], dtype=int)) if axis != value.rank else 1
    return [c.views(lambda array: array.reshape(lead, rest), value)]


def _transpose(c: Arithmetic, v: list[Value | None], a: Attributes) -> list[Value]:
    return [c.views(lambda array: np.transpose(array, a.get("perm")), _need(v[0]))]


def _expand(c: Arithmetic, v: list[Value | None], _: Attributes) -> list[Value]:
    value, shape = _need(v[0]), tuple(int(dim) for dim in _plain(v[1]))
    full = np.broadcast_shapes(value.lo.shape, shape)
    return [c.views(lambda array: np.broadcast_to(array, full), value)]


def _gather(c: Arithmetic, v: list[Value | None], a: Attributes) -> list[Value]:
    value, where = _need(v[0]), _plain(v[1])
    taken = c.views(lambda array: np.take(array, where, axis=a.get("axis", 0)), value)
    return [Value(taken.lo, taken.hi, taken.dtype, value.constant and _need(v[1]).constant)]


def _slice(c: Arithmetic, v: list[Value | None], _: Attributes) -> list[Value]:
    value = _need(v[0])
    starts, ends = _plain(v[1]).tolist(), _plain(v[2]).tolist()
    given = len(v) > 3 and v[3] is not None
    axes = _plain(v[3]).tolist() if given else list(range(len(starts)))
    steps = _plain(v[4]).tolist() if len(v) > 4 and v[4] is not None else [1] * len(starts)
    index = [slice(None)] * value.rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = value.lo.shape[axis]
        stop: int | None = min(end, size)
        if step < 0 and end < -size:
            stop = None
        index[axis] = slice(max(start, -size), stop, step)
    return [c.views(lambda array: array[tuple(index)], value)]


def _split(c: Arithmetic, v: list[Value | None], a: Attributes) -> list[Value]:
    value = _need(v[0])
    axis = a.get("axis", 0)
    size, outputs = value.lo.shape[axis], a[OUTPUTS]
    if len(v) > 1 and v[1] is not None:
        sizes = _plain(v[1]).tolist()
    else:
        sizes = a.get("split") or [-(-size // outputs)] * (outputs - 1)
        sizes = [*sizes, size - sum(sizes)] if len(sizes) < outputs else sizes
    marks = np.cumsum([0, *sizes])
    return [
        c.views(lambda array, b=b, e=e: np.take(array, range(b, e), axis=axis), value)
        for b, e in itertools.pairwise(marks)
    ]


def _concat(c: Arithmetic, v: list[Value | None], a: Attributes) -> list[Value]:
    given = [_need(value) for value in v]
    return [c.joined(lambda *arrays: np.concatenate(arrays, axis=a["axis"]), given)]


def _where(c: Arithmetic, v: list[Value | None], _: Attributes) -> list[Value]:
    chosen, pair = _plain(v[0]), [_need(v[1]), _need(v[2])]
    joined = c.joined(lambda a, b: np.where(chosen, a, b), pair)
    constant = joined.constant and _need(v[0]).constant
    return [Value(joined.lo, joined.hi, joined.dtype, constant)]


def _shape(c: Arithmetic, v: list[Value | None], a: Attributes) -> list[Value]:
    shape = _need(v[0]).lo.shape[a.get("start", 0) : a.get("end")]
    return [c.constant(np.asarray(shape, np.int64))]


def _size(c: Arithmetic, v: list[Value | None], _: Attributes) -> list[Value]:
    return [c.constant(np.asarray(_need(v[0]).lo.size, np.int64))]


def _cast(c: Arithmetic, v: list[Value | None], a: Attributes) -> list[Value]:
    return [c.cast(_need(v[0]), np.dtype(onnx.helper.tensor_dtype_to_np_dtype(a["to"])))]


def _cast_like(c: Arithmetic, v: list[Value | None], _: Attributes) -> list[Value]:
    return [c.cast(_need(v[0]), _need(v[1]).dtype)]


def _same(c: Arithmetic, v: list[Value | None], a: Attributes) -> list[Value]:
    value = _need(v[0])
    masks = a[OUTPUTS] - 1  # of a Dropout
    return [value, *[c.constant(np.ones(value.lo.shape, np.bool_))] * masks]


def _many(function: Callable[[Array, Array], Array], steps: float) -> Kernel:
    def kernel(c: Arithmetic, v: list[Value | None], _: Attributes) -> list[Value]:
        total = _need(v[0])
        for value in v[1:]:
            total = c.elementwise(function, total, _clamp_of(c, total, _need(value)), steps=steps)
        return [total]

    return kernel


def _clamp_of(c: Arithmetic, clamped: Value, value: Value) -> Value:
    """A clamp of the mean square, in float64: any number whose root is the same in its type."""
    ideal = c.mode.wide and c.mode.spread and value.constant and not clamped.constant
    if not ideal or value.dtype not in (*HALF, F32):
        return value
    ends = [value.lo.astype(F64) * (1 + sign * 2 * UNIT[value.dtype]) for sign in (-1, 1)]
    return Value(min(ends, key=np.sum), max(ends, key=np.sum), value.dtype, True)


def _clip(c: Arithmetic, v: list[Value | None], _: Attributes) -> list[Value]:
    value = _need(v[0])
    for end, function in zip(v[1:], (np.maximum, np.minimum), strict=False):
        if end is not None:
            value = c.elementwise(function, value, _clamp_of(c, value, end), steps=0)
    return [value]


KERNELS: dict[tuple[str, str], Kernel] = {
    ("", "Add"): _binary(np.add),
    ("", "Sub"): _binary(np.subtract),
    ("", "Mul"): _mul,
    ("", "Div"): lambda c, v, _: [c.divide(_need(v[0]), _need(v[1]))],
    ("", "Pow"): _power,
    ("", "Sqrt"): lambda c, v, _: [c.root(_need(v[0]))],
    ("", "Reciprocal"): lambda c, v, _: [c.divide(_one(c, _need(v[0])), _need(v[0]))],
    ("", "Neg"): _unary(np.negative, 0),
    ("", "Abs"): _turning(np.abs, 1.0, 0),
    ("", "Exp"): _unary(np.exp, _APPROXIMATED),
    ("", "Sigmoid"): _sigmoids,
    ("", "Tanh"): _unary(np.tanh, _APPROXIMATED),
    ("", "Softplus"): _unary(lambda a: np.logaddexp(a, np.zeros((), a.dtype)), _APPROXIMATED),
    ("", "Swish"): _turning(lambda a: a * _sigmoid(a), 1.1, _APPROXIMATED),
    ("", "Relu"): _unary(lambda a: np.maximum(a, np.zeros((), a.dtype)), 0),
    ("", "Max"): _many(np.maximum, 0),
    ("", "Min"): _many(np.minimum, 0),
    ("", "Sum"): _many(np.add, PRODUCT),
    ("", "Clip"): _clip,
    ("", "Sin"): _turning(np.sin, 1.0, _APPROXIMATED),
    ("", "Cos"): _turning(np.cos, 1.0, _APPROXIMATED),
    ("", "ReduceMean"): _reduce("Mean"),
    ("", "ReduceSum"): _reduce("Sum"),
    ("", "ReduceSumSquare"): _reduce("SumSquare"),
    ("", "ReduceL2"): _reduce("L2"),
    ("", "ReduceMax"): _reduce_largest(np.maximum),
    ("", "ReduceMin"): _reduce_largest(np.minimum),
    ("", "LpNormalization"): _lp_normalization,
    ("", "LayerNormalization"): _layer_normalization,
    ("", "RMSNormalization"): _rms_normalization,
    ("", "SimplifiedLayerNormalization"): _simplified,
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): _skip_simplified,
    ("", "MatMul"): _matmul,
    ("", "Identity"): _same,
    ("", "Dropout"): _same,
    ("", "Cast"): _cast,
    ("", "CastLike"): _cast_like,
    ("", "Reshape"): _reshape,
    ("", "Unsqueeze"): _unsqueeze,
    ("", "Squeeze"): _squeeze,
    ("", "Flatten"): _flatten,
    ("", "Expand"): _expand,
    ("", "Transpose"): _transpose,
    ("", "Gather"): _gather,
    ("", "Slice"): _slice,
    ("", "Split"): _split,
    ("", "Concat"): _concat,
    ("", "Where"): _where,
    ("", "Shape"): _shape,
    ("", "Size"): _size,
}
