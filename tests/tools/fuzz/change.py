"""Mutations of what a norm computes: constants, operands, operators, the gain."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from rmsnorm_export.op.dtypes import Array
from tests.tools.fuzz.draft import Draft, array_of, become, dtype_of, mutation, shape_of

BF16, F16, F32, F64 = (
    np.dtype(t) for t in (ml_dtypes.bfloat16, np.float16, np.float32, np.float64)
)
FLOATS = (BF16, F16, F32, F64)

_EPSILONS = (0.0, 1e-45, 1e-40, 1e-30, 1e-12, 1e-8, 1e-5, 1e-3, 0.5, 1.0, 1e4, 1e30, -1e-6, np.nan)


def _in(value: Any, dtype: np.dtype[Any]) -> Array:
    """Return numbers in a type, infinite where they do not fit."""
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype)


@mutation
def constant_value(draft: Draft) -> tuple[str, bool]:
    """Another epsilon, exponent, count or gain of one element."""
    node, position, value = draft.edge("Add", "Pow", "Mul", "Div", "Max")
    if (array := array_of(value)) is None:
        raise ValueError(value)
    old = float(array.reshape(()))
    new = draft.rng.choice((*_EPSILONS, old * 1.001, old * 2, old + 1, -old))
    node.replace_input_with(position, draft.constant(node, _in(new, array.dtype)))
    return f"{old:g} -> {new:g}", False


@mutation
def operator(draft: Draft) -> tuple[str, bool]:
    """Another operator with as many operands, or one more in front of a node."""
    one = ("Sqrt", "Reciprocal", "Abs", "Neg", "Identity", "Sigmoid", "Tanh", "Relu")
    two = ("Add", "Sub", "Mul", "Div", "Max", "Min")
    if draft.rng.random() < 0.5:
        node, position, value = draft.edge()
        node.replace_input_with(position, draft.put(node, draft.rng.choice(one), value))
        return f"an operator in front of {node.op_type}", False
    node = draft.pick(*two, "Sqrt", "Reciprocal", "Sigmoid")
    if len(node.inputs) > 2:
        raise ValueError(node)
    old, others = node.op_type, two if node.op_type in two else one
    node.op_type = draft.rng.choice([other for other in others if other != old])
    return f"{old} -> {node.op_type}", False


@mutation
def axes(draft: Draft) -> tuple[str, bool]:
    """Other axes of a reduction, or the same ones written in another way."""
    node = draft.pick("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2")
    x, *stored = node.inputs
    assert x is not None
    array = array_of(stored[0]) if stored and stored[0] else None
    ints = node.attributes.get_ints("axes", ()) if array is None else array.reshape(-1).tolist()
    old, rank = list(ints or ()), len(shape_of(x))
    if not (old and rank):
        raise ValueError(node)
    new = draft.rng.choice((
        [axis % rank if axis < 0 else axis - rank for axis in old], old[::-1], [0],
        list(range(rank)), [rank - 1, max(0, rank - 2)], [max(0, rank - 2)],
    ))  # fmt: skip
    keepdims = node.attributes.get_int("keepdims", 1)
    become(node, "Identity", draft.over(node, node.op_type, x, new, keepdims=keepdims))
    keeps = sorted(axis % rank for axis in new) == sorted(axis % rank for axis in old)
    return f"axes {old} -> {new}", keeps


def _gain(draft: Draft) -> tuple[ir.Node, int, Array, tuple[int, ...]]:
    """Draw a product or sum with a row: where, which operand, its numbers, the result's shape."""
    rows = []
    for node in draft.nodes("Mul", "Add"):
        full = shape_of(node.outputs[0])
        for position, value in enumerate(node.inputs):
            shape = shape_of(value) if value else ()
            if value and shape and full and 1 < math.prod(shape) == max(shape) == full[-1]:
                array = array_of(value)
                row = np.linspace(0.5, 1.5, max(shape)) if array is None else array
                rows.append((node, position, _in(row, dtype_of(value)), full))
    return draft.rng.choice(rows)


@mutation
def gain_form(draft: Draft) -> tuple[str, bool]:
    """Another rank, other numbers, an input, or another type behind a cast."""
    node, position, stored, full = _gain(draft)
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
    if form == "input":
        if not draft.is_main(node):
            raise ValueError(node)
        node.replace_input_with(position, draft.add_input(stored, "gain"))
        return "gain: an input", True
    if form == "cast":
        other = draft.rng.choice(FLOATS)
        node.replace_input_with(position, draft.cast(node, _in(row, other), dtype))
        return f"gain of {other} behind a cast", False
    keeps = form in ("one axis more", "rank of x") and forms[form].ndim <= len(full)
    keeps = keeps and array_of(node.inputs[position]) is not None  # type: ignore[arg-type]
    node.replace_input_with(position, draft.constant(node, _in(forms[form], dtype)))
    return f"gain {form}", keeps
