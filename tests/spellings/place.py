"""Puts norms into a graph: producers, consumers, subgraphs, functions; the whole model."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from .build import Evaluate, Norm, dims_of
from .case import NUMPY, Case
from .choices import Frame, Spelling, shown
from .graph import FLOATS, FUNCTION_DOMAIN, Graph

SCANNED = 2
"""Steps of a Scan, and iterations of a Loop."""


@dataclasses.dataclass
class Emission:
    """State of one model under construction."""

    frame: Frame
    spellings: Sequence[Spelling]
    rng: np.random.Generator
    leaks: list[tuple[str, int, int]] = dataclasses.field(default_factory=list)
    norms: int = 0


def build(spelling: Spelling | Sequence[Spelling], frame: Frame | None = None) -> Case:
    """One norm, or several in a row, in one graph.

    Both are settled first, so that every combination gives a valid model.
    """
    frame = (frame or Frame()).settled()
    several = [spelling] if isinstance(spelling, Spelling) else list(spelling)
    several = _well_conditioned(several, frame)
    spellings = [one.settled(frame) for one in several]
    state = Emission(frame, spellings, np.random.default_rng(frame.seed))
    graph = Graph(frame.opset, constants=frame.constants, share=frame.share, named=frame.named)
    dtype = FLOATS[frame.dtype]
    outer = (*_scanned(frame), *dims_of(frame))
    x, fed = _producer(graph, state, outer)
    y, inside = _place(graph, state, x, frame.place)
    outputs = _consumer(graph, state, x, y)
    expected = {}
    truth = inside(fed)
    for name, function in outputs.items():
        graph.output(name, dtype, outer)
        expected[name] = function(fed, truth)
    for value, leaked, rank in state.leaks:
        if frame.leak_as == "consumer":
            value = graph.op("Neg", value)
        if all(value != info.name for info in graph.outputs):
            graph.output(value, leaked, [None] * rank)
    return Case(
        model=graph.model(value_infos=frame.value_infos),
        variant=describe(frame, spellings),
        feeds=graph.feeds,
        norms=state.norms,
        most=state.norms,
        reassociated=frame.half
        and any(one.rounding == "plain" and _rounds_otherwise(one) for one in spellings),
        reordered=any(_differs_at_the_ends(one) for one in spellings),
        expected=expected,
    )


def _rounds_otherwise(one: Spelling) -> bool:
    """In a half type not the roundings of Pow, ReduceMean, Add, Sqrt and one inverse."""
    return (
        one.square not in ("pow", "mul")
        or one.mean != "mean"
        or one.root != "sqrt"
        or one.inverse not in ("div", "reciprocal", "one_div")
    )


def _differs_at_the_ends(one: Spelling) -> bool:
    """Products, or inverse and root, in another order than the operator's; zero rows of LpNorm."""
    without = one.epsilon == "none" or one.epsilon_value == 0.0
    inside = one.inverse.endswith("_inside") and without
    clamped = one.epsilon.startswith("clamp")  # by 0 as well
    by_clip = clamped and not one.swap_epsilon and not one.epsilon_shape
    return one.gain != "last" or one.square == "lp" or inside or by_clip


def _well_conditioned(several: list[Spelling], frame: Frame) -> list[Spelling]:
    """Takes sums away where a later norm would blow up what cancels in them.

    It does where the root can be small although the row is not: of one element, of a part of the
    row, or without epsilon. Then the smallest difference in front decides about the numbers, in
    whatever spelling.
    """
    repeated = len(several) > 1 or "loop" in frame.place
    touchy = any(
        one.partial != "none" or one.epsilon == "none" or not one.epsilon_value for one in several
    )
    if repeated and (touchy or frame.n == 1):
        return [dataclasses.replace(one, residual="none", bias="none") for one in several]
    return several


def _scanned(frame: Frame) -> tuple[int, ...]:
    """The axis in front that a Scan cuts off."""
    return (SCANNED,) if "scan" in frame.place else ()


# producers and consumers, all exact: they must not blur what is measured


def _rows(frame: Frame, rng: np.random.Generator) -> np.ndarray:
    x = rng.standard_normal((*_scanned(frame), *frame.shape))
    if frame.rows == "wide":
        # squares stay inside the range of the type, subnormals included
        decades = 1.0 if frame.half else 12.0
        rows = (*x.shape[: -len(frame.row)], *(1 for _ in frame.row))
        x *= 10.0 ** rng.uniform(-decades, decades, rows)
    elif frame.rows == "zero":
        x[(0,) * (x.ndim - len(frame.row))] = 0.0
    return x.astype(NUMPY[FLOATS[frame.dtype]])


def _producer(graph: Graph, state: Emission, dims: Sequence[int | str]) -> tuple[str, np.ndarray]:
    frame = state.frame
    array = _rows(frame, state.rng)
    exact = array.astype(np.float64)
    if frame.producer == "transpose":
        swapped = np.ascontiguousarray(np.swapaxes(array, -1, -2))
        order = [*range(array.ndim - 2), array.ndim - 1, array.ndim - 2]
        x = graph.input("x", swapped, [*dims[:-2], dims[-1], dims[-2]])
        return graph.op("Transpose", x, perm=order), exact
    x = graph.input("x", array, dims)
    if frame.producer == "identity":
        x = graph.op("Identity", x)
    elif frame.producer == "matmul":
        x, order = _permuted(graph, state, x)
        exact = exact[..., order]
    elif frame.producer == "add":
        other = state.rng.standard_normal(array.shape).astype(array.dtype)
        x = graph.op("Add", x, graph.input("other", other, dims))
        exact = (exact + other.astype(np.float64)).astype(array.dtype).astype(np.float64)
    return x, exact


def _permuted(graph: Graph, state: Emission, x: str) -> tuple[str, np.ndarray]:
    """A MatMul by a permutation, exact in every type; and the order of its columns."""
    size = state.frame.shape[-1]
    order = state.rng.permutation(size)
    matrix = np.eye(size)[:, order].astype(NUMPY[FLOATS[state.frame.dtype]])
    return graph.op("MatMul", x, graph.const(matrix, kind="initializer")), order


def _consumer(graph: Graph, state: Emission, x: str, y: str) -> dict[str, Evaluate]:
    """Outputs by name, each with its value from that of x and that of y."""
    kind = state.frame.consumer
    if kind == "neg":
        return {graph.op("Neg", y): lambda _, y: -y}
    if kind == "two":
        return {y: lambda _, y: y, graph.op("Neg", y): lambda _, y: -y}
    if kind == "add_x":
        return {graph.op("Add", y, x): lambda x, y: x + y}
    if kind == "matmul":
        name, order = _permuted(graph, state, y)
        return {name: lambda _, y: y[..., order]}
    return {y: lambda _, y: y}


# places


def _norms(graph: Graph, state: Emission, x: str) -> tuple[str, Evaluate]:
    steps = []
    leaks = None if state.frame.place else state.leaks
    for spelling in state.spellings:
        x, step = Norm(graph, state.frame, spelling, state.rng, leaks).emit(x)
        steps.append(step)
        leaks = None
    state.norms += len(steps)

    def evaluate(a: np.ndarray) -> np.ndarray:
        for step in steps:
            a = step(a)
        return a

    return x, evaluate


def _place(graph: Graph, state: Emission, x: str, place: tuple[str, ...]) -> tuple[str, Evaluate]:
    if not place:
        return _norms(graph, state, x)
    return _PLACES[place[0]](graph, state, x, place[1:])


def _if(
    graph: Graph, state: Emission, x: str, rest: tuple[str, ...], both: bool = False
) -> tuple[str, Evaluate]:
    dtype, dims = FLOATS[state.frame.dtype], dims_of(state.frame)
    then = graph.child()
    y, evaluate = _place(then, state, x, rest)
    then.output(y, dtype, dims)
    otherwise = graph.child()
    z = _place(otherwise, state, x, rest)[0] if both else otherwise.op("Identity", x)
    otherwise.output(z, dtype, dims)
    root = graph.root
    condition = root.input(root.fresh("condition"), np.array(True), ())
    y = graph.op(
        "If",
        graph.resolve(condition),
        then_branch=then.subgraph(),
        else_branch=otherwise.subgraph(),
    )
    return y, evaluate


def _input(body: Graph, hint: str, dtype: int, dims: Sequence[int | str]) -> str:
    """An input of a subgraph: declared, not fed."""
    name = body.fresh(hint)
    body.declare(name, dtype, dims)
    return name


def _loop(graph: Graph, state: Emission, x: str, rest: tuple[str, ...]) -> tuple[str, Evaluate]:
    dtype, dims = FLOATS[state.frame.dtype], dims_of(state.frame)
    body = graph.child()
    _input(body, "iteration", TensorProto.INT64, ())
    going = _input(body, "going", TensorProto.BOOL, ())
    carried = _input(body, "carried", dtype, dims)
    y, evaluate = _place(body, state, carried, rest)
    body.output(body.op("Identity", going), TensorProto.BOOL, ())
    body.output(y, dtype, dims)
    trips = graph.const(np.array(SCANNED, np.int64), kind="node")
    always = graph.const(np.array(True), kind="node")
    y = graph.op("Loop", trips, always, x, body=body.subgraph())

    def repeated(a: np.ndarray) -> np.ndarray:
        for _ in range(SCANNED):
            a = evaluate(a)
        return a

    return y, repeated


def _scan(graph: Graph, state: Emission, x: str, rest: tuple[str, ...]) -> tuple[str, Evaluate]:
    dtype, dims = FLOATS[state.frame.dtype], dims_of(state.frame)
    body = graph.child()
    row = _input(body, "scanned", dtype, dims)
    y, evaluate = _place(body, state, row, rest)
    body.output(y, dtype, dims)
    return graph.op("Scan", x, body=body.subgraph(), num_scan_inputs=1), evaluate


def _function(graph: Graph, state: Emission, x: str, rest: tuple[str, ...]) -> tuple[str, Evaluate]:
    body = graph.child(is_function=True)
    y, evaluate = _place(body, state, "in_x", rest)
    name = graph.fresh("Body")
    body.add_function(name, ["in_x", *body.received.values()], [y])
    actual = [x, *(graph.resolve(outer) for outer in body.received)]
    return graph.op(name, *actual, domain=FUNCTION_DOMAIN), evaluate


_PLACES = {
    "if": _if,
    "if_both": functools.partial(_if, both=True),
    "loop": _loop,
    "scan": _scan,
    "function": _function,
}


def describe(frame: Frame, spellings: Sequence[Spelling]) -> str:
    """What differs from the default, readable."""
    parts = []
    for chosen, default in [(frame, Frame()), *((one, Spelling()) for one in spellings)]:
        differs = [
            f"{field.name}={shown(getattr(chosen, field.name))}"
            for field in dataclasses.fields(chosen)
            if getattr(chosen, field.name) != getattr(default, field.name)
        ]
        parts.append(f"{type(chosen).__name__}({', '.join(differs)})")
    return " ".join(parts)
