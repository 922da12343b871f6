"""Which nodes of a part of a graph may branch where no sample of it looks.

What is made of analytic operators alone, and agrees with a norm on rows of every size, is one
everywhere. ``Abs``, ``Sign`` and ``Relu`` change their formula at 0: they pass where the sign of
their operand is fixed, or is that of elements of x. Operators that tell places apart pass where the
axis was as long as it ever is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from rmsnorm_export.audit.behaviour import EpsilonPlace
from rmsnorm_export.audit.operators import CENTRED, SIZES
from rmsnorm_export.audit.parts import Region
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.recognize.consts import MOVES, REARRANGED, Constants, standard
from rmsnorm_export.recognize.context import FLOATS, widens
from rmsnorm_export.recognize.types import Types

_CASTS = frozenset(("Cast", "CastLike"))
_MOVED = frozenset((*MOVES, "Expand", "Slice", "Split", "Gather", "Tile"))
_PLACED = frozenset(("Slice", "Split", "Gather", "Concat", "AveragePool", "LpPool", "Conv"))
"""Operators that may treat one place otherwise than another."""
_SIZED = frozenset((*SIZES, *REARRANGED, "Cast", "Mul", "ReduceProd"))
"""Operators that shapes are made with."""
_TERMS = frozenset(("Add", "Sum", "Mean", "Sub"))
_BOUNDS = frozenset(("Max", "Min", "Clip"))
_MEANS = frozenset(("ReduceSum", "ReduceMean", "CumSum", "AveragePool", "GlobalAveragePool"))
_FACTORS = frozenset(("Mul", "Div", "MatMul", "Gemm", "Conv", "Einsum"))
_KINKED = frozenset(("Abs", "Sign", "Relu", "ReduceL1"))
_SQUARES = frozenset(("ReduceSumSquare", "ReduceL2", "LpPool", "GlobalLpPool", "Sqrt", "Exp"))
_POSITIVE = _SQUARES | _KINKED - {"Sign"}
_OTHERS = frozenset(("Log", "ReduceLogSumExp", "ReduceLogSum", "LpNormalization", *CENTRED))


@dataclasses.dataclass(frozen=True, slots=True)
class _Sign:
    """The sign of a value, wherever x is.

    Attributes:
        of: 1 where nothing is negative, -1 where nothing is positive, 0 not known.
        odd: the value with whose elements it changes its sign: ``of`` is that of the quotient. They
            change it with elements of x, or are constants.
    """

    of: int = 0
    odd: ir.Value | None = None

    @property
    def fixed(self) -> int:
        """The sign where it is the same for every x, else 0."""
        return 0 if self.odd else self.of


class Branches:
    """Finds the nodes of a region that may branch.

    Args:
        region: the part of a graph.
        constants: numbers of those of its constants that are floats.
        types: of its values.
        place: of its epsilon: a maximum with a constant is that of a ``floor``, once.
        shape: of x, with which it was evaluated.
    """

    def __init__(
        self, region: Region, constants: Mapping[ir.Value, Array], types: Types,
        place: EpsilonPlace, shape: Sequence[int],
    ) -> None:  # fmt: skip
        self._types, self._nodes = types, region.nodes
        self._sizes = Constants()
        self._sizes.info_of = types.info
        self._dtype, self._floors = types.dtype(region.x), int(place == "floor")
        self._still: set[ir.Value | None] = {*region.constants, None}
        self._given = region.given
        pairs = zip(types.shape(region.x) or (), shape, strict=False)
        self._loose = {size for size, seen in pairs if size != seen}
        self._signs = dict.fromkeys((region.x, *region.twins), _Sign(1, region.x))
        self._numbers: dict[ir.Value | None, float] = {}
        for value, array in constants.items():
            sign = 1 if (array >= 0).all() else -1 if (array <= 0).all() else 0
            self._signs[value] = _Sign(sign) if sign else _Sign(1, value)
            if value in region.given:
                self._signs[value] = _Sign()
            elif array.size and (array == array.flat[0]).all():
                self._numbers[value] = float(array.flat[0])

    def first(self) -> ir.Node | None:
        """Return the first node that may branch where no sample is; None: there is none."""
        for node in self._nodes:
            op, sign = standard(node), None
            inputs = [self._signs[value] for value in node.inputs if value in self._signs]
            floats = self._types.dtype(node.outputs[0]) in FLOATS
            if op in SIZES or self._still.issuperset(node.inputs):
                self._still.update(node.outputs)
                same = op == "Max" and len(set(node.inputs)) == 1
                if floats and (size := self._sizes.scalar(node.outputs[0])):
                    self._numbers[node.outputs[0]] = size  # of a fixed shape
                    self._signs[node.outputs[0]] = _Sign(1 if size > 0 else -1)
                elif floats or not (same or op in _SIZED or self._types.integers(node.outputs[0])):
                    return node
                continue
            known = all(value in self._signs or value in self._still for value in node.inputs)
            if known and inputs and floats and (op not in _PLACED or self._is_fixed(node)):
                sign = self._through(op, node, inputs)
            if sign is None:
                return node
            for output in node.outputs:
                moved = op in _MOVED and sign.odd is not None
                self._signs[output] = _Sign(sign.of, output) if moved else sign
        return None

    def _is_fixed(self, node: ir.Node) -> bool:
        """Return whether it tells no places apart on an axis that may be longer than it was."""
        assert node.inputs[0] is not None
        before, *after = (self._types.shape(v) for v in (node.inputs[0], *node.outputs))
        if before is None or None in before:
            return False
        return all(d is not None and self._open(d) == self._open(before) for d in after)

    def _open(self, dims: Sequence[int | str | None]) -> list[int | str | None]:
        return [size for size in dims if size in self._loose or not isinstance(size, int)]

    def _through(self, op: str, node: ir.Node, inputs: list[_Sign]) -> _Sign | None:
        """Return the sign of the output of a node; None where the operator is not analytic."""
        first = inputs[0]
        if op in _KINKED and not first.of:
            return None
        if op in _CASTS and not widens(self._dtype, self._types.dtype(node.outputs[0])):
            return None
        if op == "Neg":
            return _Sign(-first.of, first.odd)
        if op in _CASTS or op in _MOVED or op in ("Identity", "Reciprocal", "Sign"):
            return first
        if op in _MEANS:
            return _Sign(first.fixed)
        if op == "Concat":
            known = all(sign.of for sign in inputs)
            return _Sign(1, node.outputs[0]) if known else _Sign()
        if op == "Where":  # by a constant, as all that is computed from x is a float here
            return None if node.inputs[0] in self._given else _Sign()
        if op in _FACTORS:
            return self._product(op, node, inputs)
        if op == "Pow":
            return self._power(first, node.inputs[1])
        if op in _BOUNDS:  # of the one kink both sides were seen
            self._floors -= 1
            floor = len(node.inputs) == 2 and self._floors == 0
            return _Sign(1) if floor and all(sign.fixed == 1 for sign in inputs) else None
        if op in _TERMS:
            return _Sign(int(op != "Sub" and all(sign.fixed == 1 for sign in inputs)))
        return _Sign(int(op in _POSITIVE)) if op in _OTHERS | _POSITIVE else None

    def _product(self, op: str, node: ir.Node, inputs: list[_Sign]) -> _Sign:
        """Return the sign of a product, or of a sum of products."""
        if op not in ("Mul", "Div"):
            numbers = (
                a.as_float() for a in node.attributes.values() if a.type == ir.AttributeType.FLOAT
            )
            positive = all(sign.fixed == 1 for sign in inputs) and min(numbers, default=0.0) >= 0
            return _Sign(int(positive))
        odd = [sign.odd for sign in inputs if sign.odd]
        if op == "Mul" and node.inputs[0] is node.inputs[1]:
            return _Sign(1)
        of = math.prod(sign.of for sign in inputs)
        if len(set(odd)) > 1:
            return _Sign(abs(of), node.outputs[0])
        return _Sign(of, odd[0] if len(odd) == 1 else None)

    def _power(self, base: _Sign, exponents: ir.Value | None) -> _Sign | None:
        exponent = self._numbers.get(exponents)
        if exponent is None:
            return None
        if exponent % 1:
            return _Sign(base.fixed)
        return base if exponent % 2 else _Sign(1)
