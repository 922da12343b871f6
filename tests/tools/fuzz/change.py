"""Mutations of what a norm computes and of how it is spelled: constants, operands, operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper

from tests.tools.fuzz.draft import AXES_AS_INPUT, Draft, Place
from tests.tools.fuzz.intervals import BF16, F16, F32, F64, Array, is_float

Mutation: TypeAlias = Callable[[Draft], "tuple[str, bool] | None"]
"""Changes a draft; returns what it did and whether the numbers stay what they were, up to rounding.
None: there is nothing to change."""

MUTATIONS: dict[str, Mutation] = {}

_EPSILONS = (0.0, 1e-45, 1e-40, 1e-30, 1e-12, 1e-8, 1e-5, 1e-3, 0.5, 1.0, 1e4, 1e30, -1e-6, np.nan)
_LARGEST_EPSILON = 0.2


def mutation(function: Mutation) -> Mutation:
    MUTATIONS[function.__name__] = function
    return function


def number_in(value: Any, dtype: np.dtype[Any]) -> Array:
    """Numbers in a type, infinite where they do not fit."""
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype)


# epsilon


def _epsilons(draft: Draft) -> list[tuple[Place, int]]:
    """Sums with a small constant."""
    found = []
    for place in draft.places(lambda node: node.op_type == "Add"):
        for position, name in enumerate(place.node.input):
            number = draft.number(name)
            if number is not None and abs(number) < _LARGEST_EPSILON:
                found.append((place, position))
    return found


def _epsilon(draft: Draft) -> tuple[Place, int, float, np.dtype[Any]] | None:
    found = _epsilons(draft)
    if not found:
        return None
    place, position = draft.rng.choice(found)
    name = place.node.input[position]
    number, dtype = draft.number(name), draft.dtype(name)
    if number is None or dtype is None or not is_float(dtype):
        return None
    return place, position, number, dtype


@mutation
def epsilon_value(draft: Draft) -> tuple[str, bool] | None:
    found = _epsilon(draft)
    if found is None:
        return None
    place, position, old, dtype = found
    value = draft.rng.choice((*_EPSILONS, old * 1.001, old * 2))
    name, added = draft.constant(place, number_in(value, dtype))
    place.scope.nodes[place.index + added].input[position] = name
    return f"epsilon {old:g} -> {value:g}", False


@mutation
def epsilon_form(draft: Draft) -> tuple[str, bool] | None:
    """Another type behind a cast, another shape, an input, an input with a default."""
    found = _epsilon(draft)
    if found is None:
        return None
    place, position, old, dtype = found
    form = draft.rng.choice(("cast", "shape", "row", "input", "default", "identity", "swapped"))
    keeps = form not in ("input", "default", "row")
    if form == "cast":
        other = draft.rng.choice([t for t in (F64, F32, F16, BF16) if t != dtype])
        kind = helper.np_dtype_to_tensor_dtype(dtype)
        name, place = draft.put(place, "Cast", number_in(old, other), to=kind)
        keeps = float(number_in(old, other)) == old
        form = f"cast from {other}"
    elif form == "shape":
        rank = draft.rng.randint(1, 5)
        name, added = draft.constant(place, number_in([old], dtype).reshape((1,) * rank))
        place = Place(place.scope, place.index + added)
        keeps = rank <= len(draft.shape(place.node.input[1 - position]) or ())
        form = f"rank {rank}"
    elif form == "row":
        other_shape = draft.shape(place.node.input[1 - position]) or (3,)
        size = draft.rng.choice((3, 48, *other_shape))
        values = number_in(old * np.linspace(1, 2, max(size, 1)), dtype)
        name, added = draft.constant(place, values)
        place = Place(place.scope, place.index + added)
    elif form in ("input", "default"):
        if place.scope.function:
            return None
        name = draft.add_input(dtype, (), "epsilon")
        if form == "default":
            tensor = onnx.numpy_helper.from_array(number_in(old, dtype), name)
            draft.model.graph.initializer.append(tensor)
    elif form == "identity":
        name, place = draft.put(place, "Identity", place.node.input[position])
    else:
        first, second = place.node.input
        place.node.input[:] = [second, first]
        return "epsilon swapped", True
    place.node.input[position] = name
    return f"epsilon as {form}", keeps


@mutation
def epsilon_elsewhere(draft: Draft) -> tuple[str, bool] | None:
    """A second one, none, Max in its place, one behind the root."""
    found = _epsilon(draft)
    if found is None:
        return None
    place, position, old, dtype = found
    way = draft.rng.choice(("second", "none", "Max", "Sub", "Mul", "vanishes"))
    value = place.node.input[1 - position]
    if way == "second":
        draft.replace(place, "Add", draft.put(place, "Add", value, number_in(old, dtype))[0], value)
        return None
    if way == "none":
        draft.replace(place, "Identity", value)
    elif way == "vanishes":
        name, place = draft.put(place, "Add", value, number_in(old, dtype))
        place.node.input[1 - position] = name
    else:
        draft.replace(place, way, value, number_in(old, dtype))
    return f"epsilon: {way}", False


# the square, the mean, the inverse


@mutation
def exponent(draft: Draft) -> tuple[str, bool] | None:
    place = draft.pick("Pow")
    if place is None:
        return None
    dtype = draft.dtype(place.node.input[0])
    shape = draft.shape(place.node.input[0])
    power = draft.number(place.node.input[1])
    if dtype is None or shape is None or power is None:
        return None
    forms: dict[str, tuple[Array, bool]] = {
        "int64": (np.asarray(power).astype(np.int64), power == round(power)),
        "int32": (np.asarray([power]).astype(np.int32), power == round(power)),
        "float16": (number_in(power, F16), True),
        "float64": (number_in(power, F64), True),
        "rank 4": (number_in([[[[power]]]], F32), len(shape) >= 4),
        "plus 1": (number_in(power + 1, dtype), False),
        "nearly": (number_in(power * 1.0005, F32), False),
        "negative": (number_in(-power, dtype), False),
        "a row": (number_in(np.full(shape[-1:], power), dtype), True),
        "uneven": (number_in(np.linspace(power, power + 1, *shape[-1:]), dtype), False),
        "zero": (number_in(0, dtype), False),
    }
    form = draft.rng.choice(sorted(forms))
    array, keeps = forms[form]
    name, added = draft.constant(place, array)
    place.scope.nodes[place.index + added].input[1] = name
    return f"exponent {form}", keeps


@mutation
def square(draft: Draft) -> tuple[str, bool] | None:
    """Pow to Mul and back; the product of two different values."""
    squares = [
        place
        for place in draft.places(lambda node: node.op_type in ("Pow", "Mul"))
        if (draft.number(place.node.input[1]) == 2.0 and place.node.op_type == "Pow")
        or (place.node.op_type == "Mul" and place.node.input[0] == place.node.input[1])
    ]
    if not squares:
        return None
    place = draft.rng.choice(squares)
    x = place.node.input[0]
    dtype = draft.dtype(x)
    if dtype is None:
        return None
    form = draft.rng.choice(("other spelling", "Abs first", "Abs after", "Neg", "doubled", "other"))
    if form == "other spelling":
        if place.node.op_type == "Pow":
            draft.replace(place, "Mul", x, x)
        else:
            draft.replace(place, "Pow", x, number_in(2, dtype))
    elif form in ("Abs first", "Neg"):
        name, place = draft.put(place, form.split()[0], x)
        if place.node.op_type == "Pow":
            place.node.input[0] = name
        else:
            place.node.input[:] = [name, name]
    elif form == "Abs after":
        name, place = draft.put(place, "Mul", x, x)
        draft.replace(place, "Abs", name)
    elif form == "doubled":
        name, place = draft.put(place, "Add", x, x)
        draft.replace(place, "Mul", name, x)
    else:
        others = _alike(draft, place, x)
        if not others:
            return None
        draft.replace(place, "Mul", x, draft.rng.choice(others))
    return f"square: {form}", form not in ("doubled", "other")


def _reductions(draft: Draft) -> Place | None:
    return draft.pick("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2")


def _axes_of(draft: Draft, place: Place) -> list[int] | None:
    node = place.node
    if len(node.input) > 1 and node.input[1]:
        value = draft.values.get(node.input[1])
        return None if value is None else [int(axis) for axis in value.lo.reshape(-1)]
    for attribute in node.attribute:
        if attribute.name == "axes":
            return list(attribute.ints)
    return []


def _set_axes(draft: Draft, place: Place, axes: list[int]) -> None:
    node = place.node
    if draft.opset(place.scope) >= AXES_AS_INPUT[node.op_type]:
        name, added = draft.constant(place, np.asarray(axes, np.int64))
        node = place.scope.nodes[place.index + added]
        node.input[:] = [node.input[0], name]
        return
    for attribute in node.attribute:
        if attribute.name == "axes":
            attribute.ints[:] = axes


@mutation
def axes(draft: Draft) -> tuple[str, bool] | None:
    place = _reductions(draft)
    if place is None:
        return None
    shape, old = draft.shape(place.node.input[0]), _axes_of(draft, place)
    if not shape or not old:
        return None
    rank = len(shape)
    same = [axis % rank for axis in old] if old[0] < 0 else [axis - rank for axis in old]
    forms = {
        "other sign": same,
        "reversed": old[::-1],
        "one more": sorted({axis % rank for axis in old} | {rank - 1 - len(old) % rank}),
        "the first": [0],
        "in the middle": [max(0, rank - 2)],
        "all": list(range(rank)),
        "out of order": [rank - 1, max(0, rank - 2)],
        "none": [],
    }
    form = draft.rng.choice(sorted(forms))
    if form == "none" and not forms[form] and draft.rng.random() < 0.5:
        place.node.attribute.append(helper.make_attribute("noop_with_empty_axes", 1))
    new = forms[form]
    _set_axes(draft, place, new)
    keeps = sorted(axis % rank for axis in new) == sorted(axis % rank for axis in old)
    return f"axes {old} -> {new}", keeps


@mutation
def keepdims(draft: Draft) -> tuple[str, bool] | None:
    """Without the dimension, which broadcasts or not; or put back by Unsqueeze or Reshape."""
    place = _reductions(draft)
    if place is None:
        return None
    shape, reduced = draft.shape(place.node.input[0]), _axes_of(draft, place)
    if not shape or not reduced:
        return None
    node = place.node
    for attribute in list(node.attribute):
        if attribute.name == "keepdims":
            if attribute.i == 0:
                return None
            node.attribute.remove(attribute)
    node.attribute.append(helper.make_attribute("keepdims", 0))
    if draft.rng.random() < 0.3:
        return "keepdims 0", False
    output = node.output[0]
    node.output[0] = draft.fresh("reduced")
    behind = Place(place.scope, place.index + 1)
    place.scope.nodes.insert(behind.index, helper.make_node("Identity", [node.output[0]], [output]))
    wrong = draft.rng.random() < 0.2
    back = sorted({axis % len(shape) for axis in reduced})
    if wrong:
        back = [(axis - 1) % len(shape) for axis in back]
    name, behind = draft.with_axes(behind, "Unsqueeze", node.output[0], back)
    behind.node.input[0] = name
    return f"keepdims 0, Unsqueeze {back}", not wrong


@mutation
def mean(draft: Draft) -> tuple[str, bool] | None:
    """A sum over n or times 1/n, with the right n or a wrong one."""
    place = draft.pick("ReduceMean")
    if place is None:
        return None
    x, reduced = place.node.input[0], _axes_of(draft, place)
    shape, dtype = draft.shape(x), draft.dtype(x)
    if not shape or not reduced or dtype is None:
        return None
    keep = next((a.i for a in place.node.attribute if a.name == "keepdims"), 1)
    right = math.prod(shape[axis] for axis in reduced)
    count = draft.rng.choice((right, right, right, right + 1, right - 1, shape[0], 1))
    kind = draft.rng.choice(("ReduceSum", "ReduceSum", "ReduceSumSquare", "ReduceL2"))
    keeps = count == right
    producer = draft.producers(place.scope).get(x)
    if kind != "ReduceSum":
        if producer is None or place.scope.nodes[producer].op_type not in ("Pow", "Mul"):
            return None
        square = place.scope.nodes[producer]
        if square.op_type == "Mul" and square.input[0] != square.input[1]:
            keeps = False
        if square.op_type == "Pow" and draft.number(square.input[1]) != 2:
            keeps = False
        x = square.input[0]
    total, place = draft.with_axes(place, kind, x, reduced, keepdims=keep)
    if kind == "ReduceL2":
        total, place = draft.put(place, "Mul", total, total)
    if draft.rng.random() < 0.5:
        draft.replace(place, "Div", total, number_in(count, dtype))
    else:
        with np.errstate(all="ignore"):
            inverse = number_in(np.float64(1) / count, dtype)
        pair = [total, inverse]
        draft.rng.shuffle(pair)
        draft.replace(place, "Mul", *pair)
    return f"mean as {kind} over {count} of {right}", keeps and dtype in (F32, F64)


@mutation
def inverse(draft: Draft) -> tuple[str, bool] | None:
    """Division, Reciprocal, Pow and their like for one another; or one of them lost."""
    place = draft.pick("Div", "Reciprocal", "Sqrt", "Pow")
    if place is None:
        return None
    node = place.node
    x = node.input[0]
    dtype = draft.dtype(node.input[-1] if node.op_type == "Div" else x)
    if dtype is None or not is_float(dtype):
        return None
    one = number_in(1, dtype)
    lost = draft.rng.random() < 0.2
    if node.op_type == "Div":
        if lost:
            draft.replace(place, "Mul", x, node.input[1])
            return "Div -> Mul", False
        divisor = node.input[1]
        way = draft.rng.choice(("Reciprocal", "Pow", "Div"))
        if way == "Reciprocal":
            name, place = draft.put(place, "Reciprocal", divisor)
        elif way == "Pow":
            name, place = draft.put(place, "Pow", divisor, number_in(-1, dtype))
        else:
            name, place = draft.put(place, "Div", one, divisor)
        draft.replace(place, "Mul", x, name)
        return f"Div -> Mul of {way}", True
    if node.op_type == "Reciprocal":
        if lost:
            draft.replace(place, "Identity", x)
            return "Reciprocal lost", False
        way = draft.rng.choice(("Div", "Pow"))
        draft.replace(place, *(("Div", one, x) if way == "Div" else ("Pow", x, -one)))
        return f"Reciprocal -> {way}", True
    if node.op_type == "Sqrt":
        if lost:
            draft.replace(place, "Identity", x)
            return "Sqrt lost", False
        draft.replace(place, "Pow", x, number_in(0.5, dtype))
        return "Sqrt -> Pow", True
    if (power := draft.number(node.input[1])) not in (0.5, -0.5, -1):
        return None
    if power == -1:
        draft.replace(place, "Reciprocal", x)
        return "Pow -> Reciprocal", True
    if power == 0.5:
        draft.replace(place, "Sqrt", x)
        return "Pow -> Sqrt", True
    if draft.rng.random() < 0.5:
        name, place = draft.put(place, "Sqrt", x)
        draft.replace(place, "Reciprocal", name)
    else:
        name, place = draft.put(place, "Reciprocal", x)
        draft.replace(place, "Sqrt", name)
    return "Pow -> Sqrt and Reciprocal", True


@mutation
def centred(draft: Draft) -> tuple[str, bool] | None:
    """A LayerNorm, or half of one: the mean is taken away in front of one reader, or of all."""
    edges = [(p, i) for p, i in draft.float_edges() if p.node.op_type in ("Pow", "Mul", "Div")]
    if not edges:
        return None
    place, position = draft.rng.choice(edges)
    x = place.node.input[position]
    if not draft.shape(x):
        return None
    average, place = draft.with_axes(place, "ReduceMean", x, [-1])
    name, place = draft.put(place, "Sub", x, average)
    everywhere = draft.rng.random() < 0.5
    for index in range(place.index, len(place.scope.nodes) if everywhere else place.index + 1):
        node = place.scope.nodes[index]
        node.input[:] = [name if given == x else given for given in node.input]
    return f"{x} centred {'everywhere' if everywhere else 'in one place'}", False


# operands


def _alike(draft: Draft, place: Place, name: str) -> list[str]:
    """Other values of the type and shape of ``name`` that the node can read."""
    dtype, shape = draft.dtype(name), draft.shape(name)
    before = {
        given
        for node in list(place.scope.nodes)[: place.index]
        for given in (*node.input, *node.output)
        if given
    }
    if place.scope.main:
        before |= {value.name for value in draft.model.graph.input}
    return sorted(
        other
        for other in before
        if other != name and draft.dtype(other) == dtype and draft.shape(other) == shape
    )


@mutation
def swapped(draft: Draft) -> tuple[str, bool] | None:
    place = draft.pick("Add", "Mul", "Mul", "Div", "Sub", "Pow")
    if place is None or place.node.input[0] == place.node.input[1]:
        return None
    first, second = place.node.input
    place.node.input[:] = [second, first]
    return f"operands of {place.node.op_type} swapped", place.node.op_type in ("Add", "Mul")


@mutation
def other_operand(draft: Draft) -> tuple[str, bool] | None:
    edges = draft.float_edges()
    if not edges:
        return None
    place, position = draft.rng.choice(edges)
    old = place.node.input[position]
    found = _alike(draft, place, old)
    if not found:
        return None
    new = draft.rng.choice(found)
    place.node.input[position] = new
    return f"{place.node.op_type} reads {new} in place of {old}", False


@mutation
def operator(draft: Draft) -> tuple[str, bool] | None:
    """Another operator with as many operands."""
    place = draft.pick("Add", "Mul", "Sub", "Div", "Sqrt", "Reciprocal", "Sigmoid", "Max")
    if place is None:
        return None
    two = ("Add", "Sub", "Mul", "Div", "Max", "Min")
    one = ("Sqrt", "Reciprocal", "Abs", "Neg", "Identity", "Exp", "Sigmoid", "Tanh")
    old = place.node.op_type
    place.node.op_type = draft.rng.choice(two if old in two else one)
    return f"{old} -> {place.node.op_type}", False


@mutation
def insert_operator(draft: Draft) -> tuple[str, bool] | None:
    edges = draft.float_edges()
    if not edges:
        return None
    place, position = draft.rng.choice(edges)
    kind = draft.rng.choice(("Abs", "Neg", "Sqrt", "Reciprocal", "Sigmoid", "Tanh", "Relu"))
    name, place = draft.put(place, kind, place.node.input[position])
    place.node.input[position] = name
    return f"{kind} in front of {place.node.op_type}", False
