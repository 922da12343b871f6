"""Norms that no fact followed: what a reduction, a root and a division make of rows.

A LayerNorm in single operators is one, and so is an RMSNorm that recognition refused.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from rmsnorm_export.audit.parts import region_of
from rmsnorm_export.health.result import KEEP, STORED
from rmsnorm_export.health.trial import Trial
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.spec import FLOAT_TYPES
from rmsnorm_export.proof.cut import cut
from rmsnorm_export.proof.feeds import limits
from rmsnorm_export.proof.site import Proving
from rmsnorm_export.recognize.consts import Constants, producer_of, standard
from rmsnorm_export.recognize.shape_rules import axes_of
from rmsnorm_export.recognize.types import Types

_SUMS = ("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2")
_MOVES = ("Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Expand")
_BEFORE = (*_MOVES[:2], "Pow", "Mul", "Div", "Abs")
"""What may be done to a row before it is summed up."""
_AFTER = (*_MOVES, "Add", "Mul", "Div", "Max", "Clip", "Sqrt", "Pow", "Reciprocal")
_TAKE_ROOTS = ("Sqrt", "Pow", "Reciprocal")
_MOST_STEPS = 16
_LONGEST = 1 << 16


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The nodes that make ``y`` of the rows of ``x``.

    Attributes:
        nodes: in order, the last one makes y.
        axes: of x, over which a row goes.
        dims: of x, 1 where it is no axis of a row.
        centred: the mean is subtracted.
        epsilon: a number that is added before the root, or None.
    """

    x: ir.Value
    y: ir.Value
    nodes: tuple[ir.Node, ...]
    dtype: int
    axes: tuple[int, ...]
    dims: tuple[int, ...]
    centred: bool
    epsilon: float | None


def part_of(node: ir.Node, types: Types, stored: Collection[ir.Value]) -> Part | None:
    """Return the norm that a reduction is in, or None.

    Args:
        node: of any operator.
        types: of the model.
        stored: values that are made of constants alone.
    """
    read = node.inputs[0] if standard(node) in _SUMS else None
    end = None if read is None else _end(node, stored)
    if read is None or end is None:
        return None
    (y, epsilon), row = end, row_of(read, stored)
    x = _before_centring(row, stored)
    dims, dtype, region = types.shape(x), types.dtype(y), region_of(x, y, ())
    if dims is None or region is None or node not in region.nodes:
        return None
    if dtype is None or dtype not in FLOAT_TYPES or types.dtype(x) != dtype:
        return None
    axes = tuple(axis % len(dims) for axis in axes_of(node, Constants()) or range(len(dims)))
    open_sizes = any(not isinstance(dims[axis], int) for axis in axes)
    sizes = (size if isinstance(size, int) else 8 for size in dims)
    shape = tuple(size if axis in axes else 1 for axis, size in enumerate(sizes))
    if math.prod(shape) > _LONGEST or (open_sizes and standard(node) != "ReduceMean"):
        return None
    return Part(x, y, region.nodes, int(dtype), axes, shape, x is not row, epsilon)


def _variables(node: ir.Node, stored: Collection[ir.Value]) -> set[ir.Value]:
    return {value for value in node.inputs if value is not None and value not in stored}


def row_of(value: ir.Value, stored: Collection[ir.Value]) -> ir.Value:
    """Return what a reduction is of, before the squares."""
    for _ in range(_MOST_STEPS):
        node = value.producer()
        if node is None or standard(node) not in _BEFORE:
            break
        variables = _variables(node, stored)
        if len(variables) != 1:
            break
        (value,) = variables
    return value


def _before_centring(row: ir.Value, stored: Collection[ir.Value]) -> ir.Value:
    """Return the value of which a row is the distance from the mean, or the row."""
    node = producer_of(row, "Sub")
    if node is None or node.inputs[0] is None:
        return row
    x = row_of(node.inputs[0], stored)
    region = region_of(x, row, ())
    return row if region is None or region.parameters else x


def _end(node: ir.Node, stored: Collection[ir.Value]) -> tuple[ir.Value, float | None] | None:
    """Return the normalised rows after a reduction, and the epsilon that is added before a root."""
    value, rooted, epsilon = node.outputs[0], node.op_type == "ReduceL2", None
    for _ in range(_MOST_STEPS):
        users = {user for user, _ in value.uses()}
        if len(users) != 1:
            return None
        (user,) = users
        variables, op = _variables(user, stored), standard(user)
        if len(variables) == 2 and op in ("Mul", "Div"):
            return (user.outputs[0], epsilon) if rooted else None
        if variables != {value} or op not in _AFTER:
            return None
        if op == "Add" and not rooted:
            others = (one for one in user.inputs if one is not value)
            epsilon = Constants().scalar(next(others, None))
        rooted, value = rooted or op in _TAKE_ROOTS, user.outputs[0]
    return None


class PartTrial(Trial):
    """A part, ready to be tried on rows.

    Raises:
        InputError: it needs more than its rows.
    """

    def __init__(self, part: Part, proving: Proving) -> None:
        values = (value for node in part.nodes for value in node.outputs)
        self.values = [v for v in values if proving.types.dtype(v) in FLOAT_TYPES]
        self.output, self.dtype, self.shape = part.y, part.dtype, part.dims
        self.axes, self.centred = part.axes, part.centred
        self.original = cut(
            self.values, [part.x], opset_imports=proving.opset_imports,
            type_of=proving.types.dtype,
        )  # fmt: skip

    def feeds(self, rows: Array) -> dict[str, Array]:
        return {"x0": rows}

    def cured(self, cure: str) -> tuple[ir.Model, str]:
        if cure != STORED:
            return super().cured(cure)
        model, end = super().cured(KEEP)
        epsilon = ir.val("epsilon", const_value=ir.tensor(np.float32(limits(self.dtype)[1])))
        model.graph.initializers.add(epsilon)
        for node in model.graph:
            for index, value in enumerate(node.inputs if standard(node) == "Add" else ()):
                if Constants().scalar(value) == 0:
                    node.replace_input_with(index, epsilon)
        return model, end
