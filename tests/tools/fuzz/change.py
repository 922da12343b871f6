"""Mutations of what a norm computes: constants, operands, operators, the gain."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
from onnx import helper

from rmsnorm_export.op.dtypes import Array
from tests.tools.fuzz.draft import Draft, Outcome, Place, mutation, number_in

BF16, F16, F32, F64 = (
    np.dtype(t) for t in (ml_dtypes.bfloat16, np.float16, np.float32, np.float64)
)
FLOATS = (BF16, F16, F32, F64)

_EPSILONS = (0.0, 1e-45, 1e-40, 1e-30, 1e-12, 1e-8, 1e-5, 1e-3, 0.5, 1.0, 1e4, 1e30, -1e-6, np.nan)


@mutation
def constant_value(draft: Draft) -> Outcome:
    """Another epsilon, exponent, count or gain of one element."""
    place, position, name = draft.edge("Add", "Pow", "Mul", "Div", "Max")
    if name not in draft.constants:
        return None
    array = draft.constants[name]
    old = float(array.reshape(()))
    value = draft.rng.choice((*_EPSILONS, old * 1.001, old * 2, old + 1, -old))
    place.node.input[position] = draft.constant(place, number_in(value, array.dtype))
    return f"{old:g} -> {value:g}", False


@mutation
def operator(draft: Draft) -> Outcome:
    """Another operator with as many operands, or one more in front of a node."""
    one = ("Sqrt", "Reciprocal", "Abs", "Neg", "Identity", "Sigmoid", "Tanh", "Relu")
    two = ("Add", "Sub", "Mul", "Div", "Max", "Min")
    if draft.rng.random() < 0.5:
        place, position, name = draft.edge()
        place.node.input[position] = draft.put(place, draft.rng.choice(one), name)
        return f"an operator in front of {place.node.op_type}", False
    node = draft.pick(*two, "Sqrt", "Reciprocal", "Sigmoid").node
    if len(node.input) > 2:
        return None
    old = node.op_type
    node.op_type = draft.rng.choice(two if old in two else one)
    return f"{old} -> {node.op_type}", old == node.op_type


@mutation
def axes(draft: Draft) -> Outcome:
    """Other axes of a reduction, or the same ones written in another way."""
    place = draft.pick("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2")
    node, x = place.node, place.node.input[0]
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    stored = draft.constants.get(node.input[1]) if len(node.input) > 1 else None
    old = list(attributes.get("axes", () if stored is None else stored.reshape(-1).tolist()))
    rank = len(draft.shape(x))
    if not (old and rank):
        return None
    new = draft.rng.choice((
        [axis % rank if axis < 0 else axis - rank for axis in old], old[::-1], [0],
        list(range(rank)), [rank - 1, max(0, rank - 2)], [max(0, rank - 2)],
    ))  # fmt: skip
    reduced = draft.over(place, node.op_type, x, new, keepdims=attributes.get("keepdims", 1))
    place.node.CopyFrom(helper.make_node("Identity", [reduced], place.node.output[:1]))
    keeps = sorted(axis % rank for axis in new) == sorted(axis % rank for axis in old)
    return f"axes {old} -> {new}", keeps


def _gain(draft: Draft) -> tuple[Place, int, Array, tuple[int, ...]]:
    """Draw a product or sum with a row: where, which operand, its numbers, the result's shape."""
    rows = []
    for place in draft.places("Mul", "Add"):
        full = draft.shape(place.node.output[0])
        for position, name in enumerate(place.node.input):
            shape, dtype = draft.shape(name), draft.dtype(name)
            if shape and full and dtype and 1 < math.prod(shape) == max(shape) == full[-1]:
                row = draft.constants.get(name, np.linspace(0.5, 1.5, max(shape)))
                rows.append((place, position, number_in(row, dtype), full))
    return draft.rng.choice(rows)


@mutation
def gain_form(draft: Draft) -> Outcome:
    """Another rank, other numbers, an input, or another type behind a cast."""
    place, position, stored, full = _gain(draft)
    row, n, dtype = stored.astype(np.float64).reshape(-1), stored.size, stored.dtype
    forms: dict[str, Array] = {
        "one axis more": row.reshape(1, n),
        "rank of x": row.reshape((1,) * (len(full) - 1) + (n,)),
        "rank above x": row.reshape((1,) * len(full) + (n,)),
        "scalar": np.asarray(1.5),
        "zeros": np.zeros(n),
        "negative": -row,
        "huge": row * 1e30,
        "tiny": row * 1e-30,
        "with NaN": np.where(np.arange(n) == 1, np.nan, row),
        "per token": np.linspace(0.5, 2, math.prod(full[-2:-1])).reshape(-1, 1),
        "matrix": np.linspace(0.5, 2, math.prod(full[-2:])).reshape(full[-2:]),
    }
    form = draft.rng.choice((*sorted(forms), "input", "cast"))
    is_constant = place.node.input[position] in draft.constants
    if form == "input":
        if place.function:
            return None
        place.node.input[position] = draft.add_input(stored, "gain")
        return "gain: an input", True
    if form == "cast":
        other = draft.rng.choice(FLOATS)
        place.node.input[position] = draft.cast(place, number_in(row, other), dtype)
        return f"gain of {other} behind a cast", False
    place.node.input[position] = draft.constant(place, number_in(forms[form], dtype))
    keeps = form in ("one axis more", "rank of x") and forms[form].ndim <= len(full)
    return f"gain {form}", keeps and is_constant
