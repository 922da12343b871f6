"""Mutations of what a norm computes: constants, operands, operators, the gain."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
from onnx import helper, numpy_helper

from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.metrics import is_float
from tests.tools.fuzz.draft import Draft, Place, mutation, number_in

BF16, F16, F32, F64 = (
    np.dtype(t) for t in (ml_dtypes.bfloat16, np.float16, np.float32, np.float64)
)
FLOATS = (BF16, F16, F32, F64)
Outcome = tuple[str, bool] | None

_EPSILONS = (0.0, 1e-45, 1e-40, 1e-30, 1e-12, 1e-8, 1e-5, 1e-3, 0.5, 1.0, 1e4, 1e30, -1e-6, np.nan)
_LARGEST_EPSILON = 0.2


def _epsilon(draft: Draft) -> tuple[Place, int, float, np.dtype[Any]] | None:
    """A sum with a small constant: where, which operand, its value and type."""
    found = [
        (place, position, number, dtype)
        for place in draft.places(lambda node: node.op_type == "Add")
        for position, name in enumerate(place.node.input)
        if (number := draft.number(name)) is not None and abs(number) < _LARGEST_EPSILON
        and (dtype := draft.dtype(name)) is not None and is_float(dtype)
    ]  # fmt: skip
    return draft.rng.choice(found) if found else None


@mutation
def constant_value(draft: Draft) -> Outcome:
    """Another epsilon, exponent, count or gain of one element."""
    edge = draft.edge("Add", "Pow", "Mul", "Div", "Max")
    if edge is None or (old := draft.number(edge[2])) is None:
        return None
    place, position, name = edge
    value = draft.rng.choice((*_EPSILONS, old * 1.001, old * 2, old + 1, -old))
    place.node.input[position] = draft.constant(place, number_in(value, draft.values[name][0]))
    return f"{old:g} -> {value:g}", False


@mutation
def epsilon_form(draft: Draft) -> Outcome:
    """Another type behind a cast, another rank, a row, an input with or without a default."""
    if (epsilon := _epsilon(draft)) is None:
        return None
    place, position, old, dtype = epsilon
    form = draft.rng.choice(("cast", "rank", "row", "input", "default", "swapped", "behind"))
    value, keeps = place.node.input[1 - position], form in ("swapped", "rank")
    shape = draft.shape(value) or ()
    if form == "cast":
        other = draft.rng.choice(FLOATS)
        to = helper.np_dtype_to_tensor_dtype(dtype)
        name, keeps = draft.put(place, "Cast", number_in(old, other), to=to), False
        keeps = float(number_in(old, other)) == old
    elif form == "rank":
        rank = draft.rng.randint(0, len(shape) + 1)
        name = draft.constant(place, number_in(old, dtype).reshape((1,) * rank))
        keeps = rank <= len(shape)
    elif form == "row":
        size = draft.rng.choice((3, *shape))
        name = draft.constant(place, number_in(old * np.linspace(1, 2, max(size, 1)), dtype))
    elif form in ("input", "default"):
        name = draft.add_input(dtype, (), "epsilon")
        if form == "default":
            tensor = numpy_helper.from_array(number_in(old, dtype), name)
            draft.model.graph.initializer.append(tensor)
        if place.function:
            return None
    elif form == "swapped":
        place.node.input[:] = place.node.input[::-1]
        return "epsilon swapped", True
    else:  # the root first
        draft.replace(place, draft.rng.choice(("Max", "Sub", "Mul")), value, number_in(old, dtype))
        return "epsilon by another operator", False
    place.node.input[position] = name
    return f"epsilon: {form}", keeps


def _reduction(draft: Draft, *kinds: str) -> tuple[Place, str, list[int], tuple[int, ...]] | None:
    """A reduction, what it reads, its axes, and the shape of what it reads."""
    place = draft.pick(*kinds)
    if place is None:
        return None
    node, x = place.node, place.node.input[0]
    array = draft.constants.get(node.input[1]) if len(node.input) > 1 else None
    axes = [] if array is None else array.reshape(-1).tolist()
    axes += [a for attribute in node.attribute if attribute.name == "axes" for a in attribute.ints]
    shape = draft.shape(x)
    return (place, x, axes, shape) if axes and shape else None


@mutation
def axes(draft: Draft) -> Outcome:
    reduction = _reduction(draft, "ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2")
    if reduction is None:
        return None
    place, x, old, shape = reduction
    rank = len(shape)
    new = draft.rng.choice((
        [axis % rank if axis < 0 else axis - rank for axis in old], old[::-1], [0],
        list(range(rank)), [rank - 1, max(0, rank - 2)], [max(0, rank - 2)],
    ))  # fmt: skip
    draft.replace(place, *_over(draft, place, x, new))
    keeps = sorted(axis % rank for axis in new) == sorted(axis % rank for axis in old)
    return f"axes {old} -> {new}", keeps


def _over(draft: Draft, place: Place, x: str, new: list[int]) -> tuple[str, str]:
    keep = next((a.i for a in place.node.attribute if a.name == "keepdims"), 1)
    return "Identity", draft.over(place, place.node.op_type, x, new, keepdims=keep)


@mutation
def centred(draft: Draft) -> Outcome:
    """A LayerNorm, or half of one: the mean is taken away in front of one reader, or of all."""
    edge = draft.edge("Pow", "Mul", "Div")
    if edge is None or not draft.shape(edge[2]):
        return None
    place, _, x = edge
    new = draft.put(place, "Sub", x, draft.over(place, "ReduceMean", x, [-1]))
    draft.read_instead(place, x, new, by_all=draft.rng.random() < 0.5)
    return f"{x} centred", False


@mutation
def operands(draft: Draft) -> Outcome:
    """The two of a node swapped."""
    edge = draft.edge()
    if edge is None or len(edge[0].node.input) != 2:
        return None
    node = edge[0].node
    node.input[:] = node.input[::-1]
    return f"operands of {node.op_type} swapped", node.op_type in ("Add", "Mul")


@mutation
def operator(draft: Draft) -> Outcome:
    """Another operator with as many operands, or one more in front of a node."""
    one = ("Sqrt", "Reciprocal", "Abs", "Neg", "Identity", "Sigmoid", "Tanh", "Relu")
    if draft.rng.random() < 0.5:
        if (edge := draft.edge()) is None:
            return None
        place, position, name = edge
        place.node.input[position] = draft.put(place, draft.rng.choice(one), name)
        return f"an operator in front of {place.node.op_type}", False
    two = ("Add", "Sub", "Mul", "Div", "Max", "Min")
    place_ = draft.pick(*two, "Sqrt", "Reciprocal", "Sigmoid")
    if place_ is None or len(place_.node.input) > 2:
        return None
    old = place_.node.op_type
    place_.node.op_type = draft.rng.choice(two if old in two else one)
    return f"{old} -> {place_.node.op_type}", old == place_.node.op_type


@mutation
def residual(draft: Draft) -> Outcome:
    """A sum in front of a value: with another input or with itself."""
    edge = draft.edge("Cast", "Pow", "Mul")
    if edge is None or not (shape := draft.shape(edge[2])):
        return None
    place, _, name = edge
    dtype, other = draft.values[name][0], name
    if draft.rng.random() < 0.7 and place.function is None:
        dims = draft.dims(shape) if draft.rng.random() < 0.7 else shape[-1:]
        other = draft.add_input(dtype, dims, "residual")
    new = draft.put(place, "Add", *draft.rng.sample([name, other], 2))
    draft.read_instead(place, name, new, by_all=True)
    return f"{name} plus {'itself' if other == name else 'a residual'}", False


def _gain(draft: Draft) -> tuple[Place, int, Array, tuple[int, ...]] | None:
    """A product or sum with a row: where, which operand, what it may hold, the result's shape."""
    found = []
    for place in draft.places(lambda node: node.op_type in ("Mul", "Add")):
        full = draft.shape(place.node.output[0])
        for position, name in enumerate(place.node.input):
            shape, dtype = draft.shape(name), draft.dtype(name)
            if shape and full and dtype and 1 < math.prod(shape) == max(shape) == full[-1]:
                row = draft.constants.get(name, np.linspace(0.5, 1.5, max(shape)))
                found.append((place, position, number_in(row, dtype), full))
    return draft.rng.choice(found) if found else None


@mutation
def gain_form(draft: Draft) -> Outcome:
    if (gain := _gain(draft)) is None:
        return None
    place, position, stored, full = gain
    row, n = stored.astype(np.float64).reshape(-1), stored.size
    forms: dict[str, Array] = {
        "one axis more": row.reshape(1, n),
        "rank of x": row.reshape((1,) * (len(full) - 1) + (n,)),
        "rank above x": row.reshape((1,) * len(full) + (n,)),
        "scalar": np.asarray(1.5),
        "of one": np.asarray([1.5]),
        "ones": np.ones(n),
        "zeros": np.zeros(n),
        "negative": -row,
        "huge": row * 1e30,
        "tiny": row * 1e-30,
        "with NaN": np.where(np.arange(n) == 1, np.nan, row),
        "per token": np.linspace(0.5, 2, math.prod(full[-2:-1])).reshape(-1, 1),
        "matrix": np.linspace(0.5, 2, math.prod(full[-2:])).reshape(full[-2:]),
    }
    form = draft.rng.choice(sorted(forms))
    kept = place.node.input[position] in draft.constants
    place.node.input[position] = draft.constant(place, number_in(forms[form], stored.dtype))
    keeps = form in ("one axis more", "rank of x") and forms[form].ndim <= len(full)
    return f"gain {form}", keeps and kept


@mutation
def gain_source(draft: Draft) -> Outcome:
    """An input, an input with a default, of another type behind a cast, computed, or gone."""
    if (gain := _gain(draft)) is None:
        return None
    place, position, stored, full = gain
    name, dtype, keeps = place.node.input[position], stored.dtype, False
    way = draft.rng.choice(("input", "default", "modulation", "cast", "gone", "sum", "expanded"))
    if way in ("input", "default", "modulation"):
        if place.function:
            return None
        new = draft.add_input(
            dtype, draft.dims(full[-2:]) if way == "modulation" else stored.shape, "gain"
        )
        if way == "default":
            draft.model.graph.initializer.append(numpy_helper.from_array(stored, new))
        keeps = way != "modulation"
    elif way == "cast":
        other = draft.rng.choice(FLOATS)
        middle = draft.put(place, "Cast", name, to=helper.np_dtype_to_tensor_dtype(other))
        new = draft.put(place, "Cast", middle, to=helper.np_dtype_to_tensor_dtype(dtype))
        keeps = ml_dtypes.finfo(other).nmant >= ml_dtypes.finfo(dtype).nmant
    elif way == "gone":
        draft.replace(place, "Identity", place.node.input[1 - position])
        return "gain gone", False
    elif way == "sum":
        new = draft.put(place, "Add", name, number_in(1, dtype))
    else:
        new = draft.put(place, "Expand", name, np.asarray(full, np.int64))
    place.node.input[position] = new
    return f"gain: {way}", keeps
