"""Nodes around masks and attention that change no element, whatever a graph is given.

PyTorch looks a mask up at every place of a grid, asks of each whether it comes after the last one,
and takes the heads of what attention gives apart and puts them together. That nothing comes of it
follows from sizes: of the inputs, as they are declared, and sums of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.recognize.consts import Constants, producer_of, standard
from rmsnorm_export.recognize.shape_rules import Dims
from rmsnorm_export.recognize.types import Types

Size = int | ir.SymbolicDim

_COUNTING = ("Shape", "Expand", "Unsqueeze", "Range", "Add", "Squeeze", "Reshape")
"""Operators of which numbers of places are made."""


def drop_redundant(model: ir.Model) -> None:
    """Take away the nodes of the main graph that change no element, in place."""
    if model.opset_imports.get("", 0) < 15:  # axes are attributes, and Shape takes no part
        return
    sizes = _Sizes(model)
    rules: dict[str, Callable[[ir.Node], ir.Value | None]] = {
        "Reshape": sizes.view,
        "Expand": sizes.expanded,
        "Transpose": sizes.unmoved,
        "Where": sizes.choice_of_rows,
        "And": sizes.other_condition,
        "GatherND": sizes.whole_table,
        "Shape": sizes.size_of_input,
        "Mul": sizes.product,
    }
    for node in list(model.graph):
        rule, output = rules.get(standard(node)), node.outputs[0]
        value = rule(node) if rule and not output.is_graph_output() else None
        if value is not None:
            output.replace_all_uses_with(value)
    passes.RemoveUnusedNodesPass()(model)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    passes.CommonSubexpressionEliminationPass()(model)


@dataclasses.dataclass(frozen=True, slots=True)
class _Count:
    """Integers that grow by one along an axis, which is counted from the end; None: along none."""

    axis: int | None
    first: Size


class _Sizes:
    """The rules. Each returns a value that can stand for the output of a node, or None."""

    def __init__(self, model: ir.Model) -> None:
        self._constants, self._inputs = Constants(), model.graph.inputs
        self._types = Types(model, self._constants)

    def same_view(self, node: ir.Node) -> ir.Value | None:
        """Return the value that views give back in the sizes that it had."""
        value, dims = node.inputs[0], self._dims(node.outputs[0])
        while value is not None and dims is not None and self._dims(value) != dims:
            view = producer_of(value, "Reshape", "Unsqueeze", "Squeeze")
            value = view.inputs[0] if view and standard(node) == "Reshape" else None
        return None if dims is None else value

    def view(self, node: ir.Node) -> ir.Value | None:
        """Return ``same_view``; or the sine or cosine of a view, which both have in common."""
        same, part = self.same_view(node), producer_of(node.inputs[0], "Cos", "Sin")
        if same is not None or part is None or len(part.outputs[0].uses()) > 1:
            return same
        allowzero = node.attributes.get_int("allowzero", 0)
        angles = _added(node, "Reshape", part.inputs[0], node.inputs[1], allowzero=allowzero)
        return _added(node, part.op_type, angles)

    def expanded(self, node: ir.Node) -> ir.Value | None:
        """Return what an Expand takes, or one of the number to which sums of numbers come back."""
        value, (dtype, dims) = node.inputs[0], self._types.info(node.outputs[0])
        if (same := self.same_view(node)) is not None or value is None or not dims:
            return same
        number = self._summed(value)
        if number is value or dtype is None:
            return None
        if self._types.info(number)[0] != dtype:
            number = _added(node, "Cast", number, to=dtype)
        return _added(node, "Expand", number, node.inputs[1])

    def _summed(self, value: ir.Value) -> ir.Value:
        """Return the integer with which constants are summed that come to nothing, or the value.

        Sums wrap around, and a Cast to fewer bits keeps the lowest, so that all of it is exact.
        """
        number, total, term = value, 0, self._single(value)
        while term is not None:
            if total == 0:
                number = term
            node = term.producer()
            term, constant = (None, 0) if node is None else self._term(node)
            total, term = total + constant, self._single(term)
        return number

    def _term(self, node: ir.Node) -> tuple[ir.Value | None, int]:
        """Return what a node adds a constant integer to, and that; or None."""
        operator, first = standard(node), node.inputs[0]
        if operator == "Cast":
            types = [self._types.info(one)[0] for one in (*node.inputs, *node.outputs) if one]
            return (first if types == [ir.DataType.INT64, ir.DataType.INT32] else None), 0
        if operator not in ("Add", "Sub", "Gather"):
            return None, 0
        left, right = map(self._integer, node.inputs)
        if operator == "Add" and left is not None:
            return node.inputs[1], left
        if right is None or (operator == "Gather" and right):
            return None, 0
        return first, right if operator == "Add" else -right

    def _single(self, value: ir.Value | None) -> ir.Value | None:
        """Return the value if it has one element."""
        return value if self._dims(value) in ((), (1,)) else None

    def unmoved(self, node: ir.Node) -> ir.Value | None:
        """Return what a Transpose takes, where it moves axes of one element alone."""
        dims = self._dims(node.outputs[0])
        if dims is None or self._dims(node.inputs[0]) != dims:
            return None
        order = [axis for axis in node.attributes.get_ints("perm", ()) if dims[axis] != 1]
        return node.inputs[0] if order and order == sorted(order) else None

    def size_of_input(self, node: ir.Node) -> ir.Value | None:
        """Return a size by its name, read off the first input that has it."""
        start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", None)
        sizes = (self._dims(node.inputs[0]) or ())[start:end]
        if len(sizes) != 1 or isinstance(sizes[0], int):
            return None
        for value in self._inputs:
            dims = self._types.info(value)[1] or ()
            if sizes[0] in dims:
                axis = dims.index(sizes[0])
                return _added(node, "Shape", value, start=axis, end=axis + 1)
        return None

    def product(self, node: ir.Node) -> ir.Value | None:
        """Return what is multiplied by an integer one; or a choice, for a condition as a number."""
        for value, factor in (node.inputs, node.inputs[::-1]):
            if self._integer(factor) == 1 and self._dims(value) == self._dims(node.outputs[0]):
                return value
            if (choice := self._choice(node, value, self._constants.array(factor))) is not None:
                return choice
        return None

    def _choice(
        self, node: ir.Node, number: ir.Value | None, factor: Array | None
    ) -> ir.Value | None:
        """Return a choice between a factor and zero of its sign."""
        cast, dims = producer_of(number, "Cast"), self._dims(node.outputs[0])
        condition = None if cast is None else cast.inputs[0]
        if condition is None or self._types.info(condition) != (ir.DataType.BOOL, dims):
            return None
        if factor is None or factor.size != 1 or not np.isfinite(factor).all():
            return None
        return _added(node, "Where", condition, ir.tensor(factor), ir.tensor(factor * 0))

    def choice_of_rows(self, node: ir.Node) -> ir.Value | None:
        """Return a choice between whole rows, made before their heads are taken apart."""
        condition, other, heads = node.inputs
        split, rows, apart = producer_of(heads, "Reshape"), self._dims(condition), self._dims(heads)
        dims = None if split is None else self._dims(split.inputs[0])
        if heads is None or split is None or rows is None or apart is None or dims is None:
            return None
        by_rows = len(rows) == len(apart) == len(dims) + 1 and rows[-2:] == (1, 1)
        as_wide = self._dims(node.outputs[0]) == apart and self._dims(other) in ((), (1,))
        if not by_rows or not as_wide or apart[:-2] != dims[:-1]:
            return None
        narrow = _added(node, "Reshape", condition, [0] * (len(dims) - 1) + [1])
        chosen = _added(node, "Where", narrow, other, split.inputs[0])
        chosen.type, chosen.shape = heads.type, ir.Shape(dims)
        return _added(node, "Reshape", chosen, split.inputs[1])

    def other_condition(self, node: ir.Node) -> ir.Value | None:
        """Return the one of two conditions beside which the other one always holds."""
        dims = self._dims(node.outputs[0])
        for value, other in (node.inputs, node.inputs[::-1]):
            if dims is not None and self._dims(value) == dims and self._always_holds(other):
                return value
        return None

    def whole_table(self, node: ir.Node) -> ir.Value | None:
        """Return the table of which a GatherND reads every element, in their order."""
        table, columns = node.inputs[0], producer_of(node.inputs[1], "Concat")
        sizes, dims = self._dims(table), self._dims(node.outputs[0])
        if columns is None or sizes is None or dims is None or len(columns.inputs) != len(sizes):
            return None
        last = columns.attributes.get_int("axis") in (-1, len(dims))
        counts = [self._count(column) for column in columns.inputs]
        axes = [c.axis + 1 + len(dims) for c in counts if c and c.axis and c.first == 0]
        in_order = len(axes) == len(sizes) and axes == sorted({*axes} - {len(dims)})
        if node.attributes.get_int("batch_dims", 0) or not last or not in_order:
            return None
        expected = tuple(dict(zip(axes, sizes, strict=True)).get(a, 1) for a in range(len(dims)))
        around = [axis for axis in range(len(dims)) if axis not in axes]
        return _added(node, "Unsqueeze", table, around) if expected == dims else None

    def _always_holds(self, condition: ir.Value | None) -> bool:
        array = self._constants.array(condition)
        compared = producer_of(condition, "LessOrEqual")
        if compared is None:
            return array is not None and bool(array.all())
        (low, high), dims = map(self._count, compared.inputs), self._dims(compared.inputs[0])
        if low is None or high is None or high.axis is not None or dims is None:
            return False
        steps: Size = 0 if low.axis is None else _dimension(dims[low.axis]) - 1
        return _is_natural(high.first - (low.first + steps))

    def _count(self, value: ir.Value | None) -> _Count | None:
        """Return what is known of integers that number places."""
        if (constant := self._integer(value)) is not None:
            return _Count(None, constant)
        node = None if value is None else value.producer()
        operator = standard(node)
        if node is None or operator not in _COUNTING:
            return None
        if operator == "Shape":
            ends = node.attributes.get_int("start", 0), node.attributes.get_int("end", None)
            sizes = (self._dims(node.inputs[0]) or ())[slice(*ends)]
            return _Count(None, _dimension(sizes[0])) if len(sizes) == 1 else None
        first = self._count(node.inputs[0])
        if first is None or operator == "Expand":
            return first
        if operator == "Unsqueeze" and first.axis is not None:
            return self._unsqueezed(node, first)
        if operator == "Range":
            by_one = first.axis is None and self._constants.ints(node.inputs[2]) == (1,)
            return _Count(-1, first.first) if by_one else None
        if operator == "Add":
            second = self._count(node.inputs[1])
            if second is None or None not in (first.axis, second.axis):
                return None
            return _Count(first.axis or second.axis, first.first + second.first)
        return first if first.axis is None else None

    def _unsqueezed(self, node: ir.Node, count: _Count) -> _Count | None:
        dims, axes = self._dims(node.outputs[0]), self._constants.ints(node.inputs[1])
        if dims is None or axes is None or count.axis is None:
            return None
        old = [a for a in range(len(dims)) if a not in axes and a - len(dims) not in axes]
        return dataclasses.replace(count, axis=old[count.axis] - len(dims))

    def _integer(self, value: ir.Value | None) -> int | None:
        """Return a constant of one integer."""
        integers = self._constants.ints(value) or ()
        return integers[0] if len(integers) == 1 else None

    def _dims(self, value: ir.Value | None) -> Dims:
        """Return the sizes of a value where all of them are known by number or by name."""
        dims = None if value is None else self._types.info(value)[1]
        return None if dims is None or None in dims else dims


def _dimension(dim: int | str | None) -> Size:
    return dim if isinstance(dim, int) else ir.SymbolicDim(dim)


def _is_natural(size: Size) -> bool:
    if isinstance(size, int):
        return size >= 0
    return str(size.simplify().value).isdecimal()


def _added(
    before: ir.Node,
    operator: str,
    *inputs: ir.Value | ir.TensorProtocol | Sequence[int] | None,
    **attributes: Any,
) -> ir.Value:
    """Return the output of a node that is put before another one; its numbers are constants."""
    tape = ir.tape.Tape()
    values = [
        one
        if one is None or isinstance(one, ir.Value)
        else tape.op("Constant", [], {"value": ir.tensor(one)})
        for one in inputs
    ]
    output = tape.op(operator, values, attributes)
    assert before.graph is not None
    before.graph.insert_before(before, tape.nodes)
    return output
