"""A part of a graph between two values, as a function of arrays."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.proof.cut import cut, sizes_by
from rmsnorm_export.proof.evaluate import run_float64
from rmsnorm_export.recognize.between import nodes_between
from rmsnorm_export.recognize.bodies import inputs_of
from rmsnorm_export.recognize.consts import standard
from rmsnorm_export.recognize.shape_rules import Dims
from rmsnorm_export.recognize.types import Types

MOST_NODES = 256
_MOST_WEIGHT = 1 << 18
_MOST_PIECES = 8
_SMALL, _LARGE = 1 << 15, 1 << 20
"""Elements of x that are evaluated at once, and where a file fixes all of its sizes."""
_MOST_COMPUTED = 1 << 22
"""Elements of all values of a part together, which are more than those of x."""
_SYMBOLS = (2, 3, 5, 4)
_ROW = 8
"""Sizes of axes of any length: no two that are next to each other are alike."""
_PIECES = ("Split", "Slice", "Gather")


@dataclasses.dataclass(frozen=True, slots=True)
class Region:
    """The nodes that make ``y`` of ``x``.

    Attributes:
        nodes: those that depend on x, in topological order.
        weights: stored constants that they, and the nodes of constants, read.
        parameters: vectors and numbers that the caller gives.
        given: they, and what is computed from them without x.
        constants: what ``nodes`` read that does not depend on x.
        pieces: of rows of x, of which the squares may be taken.
        twins: values that nodes equal to that of x make.
    """

    x: ir.Value
    y: ir.Value
    nodes: tuple[ir.Node, ...]
    weights: tuple[ir.Value, ...]
    parameters: tuple[ir.Value, ...]
    given: frozenset[ir.Value]
    constants: tuple[ir.Value, ...]
    pieces: tuple[ir.Value, ...]
    twins: tuple[ir.Value, ...]


def region_of(x: ir.Value, y: ir.Value, twins: Sequence[ir.Value]) -> Region | None:
    """Return what makes ``y``, all of which depends on x or on constants alone; None: too much.

    ``twins``: values that nodes equal to that of x make.
    """
    reached = {x, *twins}
    order = nodes_between([y], reached, MOST_NODES)
    if not order:
        return None
    needed = dict.fromkeys(value for node in order for value in inputs_of(node) if value)
    leaves = [v for v in needed if v.producer() is None and v not in reached]
    weights = [v for v in leaves if v.const_value is not None and not v.is_graph_input()]
    if any(v.const_value is not None and v.const_value.size > _MOST_WEIGHT for v in weights):
        return None
    parameters = tuple(value for value in leaves if value not in weights)
    given, nodes = set(parameters), []
    for node in order:
        inputs = node.inputs[:1] if standard(node) == "CastLike" else inputs_of(node)
        if not reached.isdisjoint(inputs):
            reached.update(node.outputs)
            nodes.append(node)
        elif not given.isdisjoint(inputs):
            given.update(node.outputs)
    read = dict.fromkeys(value for node in nodes for value in inputs_of(node) if value)
    constants = tuple(value for value in read if value not in reached)
    used = tuple(value for value in twins if value in read)
    pieces = [
        value for node in nodes if standard(node) in _PIECES and node.inputs[0] is x
        for value in node.outputs
    ]  # fmt: skip
    return Region(
        x, y, tuple(nodes), tuple(weights), parameters, frozenset(given), constants,
        tuple(pieces[:_MOST_PIECES]), used,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of x, and what the names of sizes are there."""

    shape: tuple[int, ...]
    symbols: Mapping[str, int]


def row_of(dims: Dims, axes: tuple[int, int]) -> tuple[int | str | None, ...]:
    """Return the sizes of the axes from the first to the last of these, which are negative."""
    first, last = axes
    return () if dims is None else tuple(dims[len(dims) + first : len(dims) + last + 1])


def layouts(dims: Dims) -> Iterator[Layout]:
    """Give the sizes that x may have: small ones, those of the file at last."""
    if dims is None:
        dims = (None, None, None)
    names = dict.fromkeys(size for size in dims if isinstance(size, str))
    symbols = dict(zip(names, itertools.cycle(_SYMBOLS), strict=False))
    if isinstance(dims[-1], str):
        symbols[dims[-1]] = _ROW
    free = (*itertools.islice(itertools.cycle(_SYMBOLS), len(dims) - 1), _ROW)
    whole = tuple(
        size if isinstance(size, int) else symbols[size] if isinstance(size, str) else other
        for size, other in zip(dims, free, strict=True)
    )
    if math.prod(whole) <= _SMALL:
        yield Layout(whole, symbols)
        return
    for kept in (len(whole) - 1, 1):
        small = tuple(
            size if i == kept else min(size, other)
            for i, (size, other) in enumerate(zip(whole, free, strict=True))
        )
        if math.prod(small) <= _SMALL:
            yield Layout(small, symbols)
    if math.prod(whole) <= _LARGE:
        yield Layout(whole, symbols)


def model_of(
    region: Region,
    layout: Layout,
    types: Types,
    opset_imports: Mapping[str, int],
    functions: Sequence[ir.Function],
    outputs: Sequence[ir.Value] = (),
) -> ir.Model:
    """Return a region as a model of its own, with outputs for y and the pieces, or for others.

    Raises:
        InputError: it needs another value than x and constants, or cannot be cut out.
    """
    inputs, outputs = (region.x, *region.parameters), outputs or (region.y, *region.pieces)
    return cut(
        outputs, inputs, opset_imports=opset_imports, functions=functions, type_of=types.dtype,
        sizes_of=sizes_by(types, layout.symbols), constants=region.weights,
        aliases=dict.fromkeys(region.twins, region.x),
    )  # fmt: skip


def arrays_of(region: Region, layout: Layout, types: Types) -> list[Array]:
    """Return what the parameters of a region are given: positive numbers, other than defaults.

    What a caller may replace makes a norm where it does so with any number. Integers keep theirs.
    """
    arrays = []
    for value in region.parameters:
        dims = types.shape(value) or ()
        shape = [d if isinstance(d, int) else layout.symbols.get(d or "", 1) for d in dims]
        count = math.prod(shape)
        if count > _MOST_WEIGHT:
            raise ValueError(f"{count} elements")
        array = np.linspace(0.5, 1.5, count).reshape(shape)
        if value.const_value is not None:
            default = value.const_value.numpy()
            array = default * 0.75 if default.dtype.kind == "f" else default
        arrays.append(array)
    return arrays


def run(model: ir.Model, parameters: Sequence[Array], x: Array) -> list[Array]:
    """Compute the outputs of a region's model from x, in float64.

    Raises:
        InputError: an operator cannot be evaluated, or its result is too large.
    """
    feeds = {f"x{index}": array for index, array in enumerate((x, *parameters))}
    outputs = run_float64(model, feeds, most=_MOST_COMPUTED).outputs
    return [np.asarray(outputs[f"y{index}"]) for index in range(len(outputs))]
