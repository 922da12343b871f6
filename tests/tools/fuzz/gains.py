"""Mutations of the gain: its shape, its values, its type and where it comes from."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

from tests.tools.fuzz.change import mutation, number_in
from tests.tools.fuzz.draft import Draft, Place
from tests.tools.fuzz.intervals import BF16, F16, F32, F64, Array


def _gains(draft: Draft) -> list[tuple[Place, int]]:
    """Products and sums with a constant of more than one element, or with an input of rank 1."""
    found = []
    for place in draft.places(lambda node: node.op_type in ("Mul", "Add")):
        for position, name in enumerate(place.node.input):
            shape = draft.shape(name)
            if shape and math.prod(shape) > 1 and math.prod(shape) == max(shape):
                found.append((place, position))
    return found


@mutation
def gain_form(draft: Draft) -> tuple[str, bool] | None:
    found = _gains(draft)
    if not found:
        return None
    place, position = draft.rng.choice(found)
    name = place.node.input[position]
    shape, dtype = draft.shape(name), draft.dtype(name)
    full = draft.shape(place.node.output[0])
    if not shape or not full or dtype is None:
        return None
    n = max(shape)
    value = draft.values[name]
    stored = value.lo if value.constant else np.linspace(0.5, 1.5, n)
    row = number_in(np.asarray(stored).astype(np.float64).reshape(-1), F64)
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
        "full": np.linspace(0.5, 2, math.prod(full)).reshape(full),
    }
    form = draft.rng.choice(sorted(forms))
    new, added = draft.constant(place, number_in(forms[form], dtype))
    place.scope.nodes[place.index + added].input[position] = new
    keeps = form in ("one axis more", "rank of x") and len(forms[form].shape) <= len(full)
    return f"gain {form}", keeps and value.constant


@mutation
def gain_source(draft: Draft) -> tuple[str, bool] | None:
    """An input, an input with a default, computed, of another type behind a cast, or gone."""
    found = _gains(draft)
    if not found:
        return None
    place, position = draft.rng.choice(found)
    name = place.node.input[position]
    shape, dtype = draft.shape(name), draft.dtype(name)
    full = draft.shape(place.node.output[0])
    if not shape or not full or dtype is None:
        return None
    value = draft.values[name]
    ways = ("input", "default", "modulation", "cast", "gone", "sum", "square", "expanded", "own x")
    way = draft.rng.choice(ways)
    if way in ("input", "default", "modulation") and place.scope.function:
        return None
    keeps = False
    if way in ("input", "default"):
        new = draft.add_input(dtype, shape, "gain")
        if way == "default":
            stored = value.lo if value.constant else np.ones(shape)
            draft.model.graph.initializer.append(
                onnx.numpy_helper.from_array(number_in(stored, dtype), new)
            )
        keeps = True
    elif way == "modulation":
        some = draft.rng.choice((full, full[-2:], (full[0], *(1,) * (len(full) - 2), full[-1])))
        new = draft.add_input(dtype, draft.dims(some), "gain")
    elif way == "cast":
        other = draft.rng.choice([t for t in (F64, F32, F16, BF16) if t != dtype])
        middle, place = draft.put(place, "Cast", name, to=helper.np_dtype_to_tensor_dtype(other))
        back = helper.np_dtype_to_tensor_dtype(dtype)
        new, place = draft.put(place, "Cast", middle, to=back)
        keeps = ml_dtypes.finfo(other).nmant >= ml_dtypes.finfo(dtype).nmant
        way = f"through {other}"
    elif way == "gone":
        draft.replace(place, "Identity", place.node.input[1 - position])
        return "gain gone", False
    elif way == "sum":
        new, place = draft.put(place, "Add", name, number_in(1, dtype))
    elif way == "square":
        new, place = draft.put(place, "Mul", name, name)
    elif way == "expanded":
        new, place = draft.put(place, "Expand", name, np.asarray(full, np.int64))
    else:
        new = place.node.input[1 - position]
    place.node.input[position] = new
    return f"gain: {way}", keeps
