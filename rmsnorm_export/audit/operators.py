"""What an operator may be in a norm of any spelling: what sums, what takes a root, what ends it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from rmsnorm_export.op import native
from rmsnorm_export.recognize.bodies import bodies_of
from rmsnorm_export.recognize.consts import Constants, constant_tensor, standard
from rmsnorm_export.recognize.types import Types

SIZES = ("Shape", "Size")
PARTS = ("Split", "Slice", "Gather", "GatherElements", "GatherND")
"""Operators that take a row to pieces, so that any sum of these is one over the row."""

_SUMS = frozenset((
    "ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceLogSum", "CumSum",
    "AveragePool", "GlobalAveragePool",
))  # fmt: skip
_BOTH = frozenset(("ReduceL2", "ReduceLogSumExp", "LpPool", "GlobalLpPool"))
_ROOTS = frozenset(("Sqrt", "Exp"))
_CENTRED = frozenset((
    "LayerNormalization", "InstanceNormalization", "GroupNormalization",
    "MeanVarianceNormalization",
))  # fmt: skip
"""Operators that subtract the mean: of a row beside its negative they divide by the root."""
_ENDS = frozenset((
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Bernoulli", "Multinomial",
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
    native.RMS_NORMALIZATION, native.SIMPLIFIED,
))  # fmt: skip
_FILLED = ("ConstantOfShape", "Expand", "EyeLike", "Tile")

_MOST_READ = 1 << 20
"""Elements of the matrix of a product that is read, to see whether it takes sums."""

_TERM = re.compile(r"\.\.\.|[A-Za-z]")


@dataclasses.dataclass(frozen=True, slots=True)
class Traits:
    """What a node does to a row.

    Attributes:
        sums, roots: as the mean square and its root in a norm of any spelling.
        mixes: none of its outputs has the elements of a row any more, as what is normalised has.
        ends: nothing is known of it, or recognition knows it.
    """

    sums: bool = False
    roots: bool = False
    mixes: bool = False
    ends: bool = False


NOTHING, ENDS, SUM = Traits(), Traits(ends=True), Traits(sums=True, mixes=True)


class Operators:
    """The traits of the nodes of one model.

    Args:
        types: element types and shapes.
        explained: nodes of which recognition has said what they are.
        calls: what is known of functions; those of the callees are to be there before a caller.
    """

    def __init__(self, types: Types, explained: Collection[ir.Node]) -> None:
        self._types, self._explained = types, explained
        self._constants = Constants()
        self.calls: dict[ir.OperatorIdentifier, Traits] = {}

    def may_root(self, node: ir.Node) -> bool:
        """Return whether there may be a root in what the node computes; asked of every node."""
        op = node.op_type
        if op in _ROOTS or op in _BOTH or op in _CENTRED or op == "LpNormalization":
            return True
        if op == "Pow":
            number = self._constants.scalar(node.inputs[1]) if len(node.inputs) > 1 else None
            return number is None or number % 1 != 0
        called = self.calls.get(node.op_identifier())
        return called is not None and called.roots

    def traits(self, node: ir.Node, variables: Sequence[ir.Value]) -> Traits:
        """Return what ``node`` does to those of its inputs that are no constants."""
        if (called := self.calls.get(node.op_identifier())) is not None:
            return called
        traits = self._traits(node, variables)
        return ENDS if (traits.sums or traits.roots) and node in self._explained else traits

    def _traits(self, node: ir.Node, variables: Sequence[ir.Value]) -> Traits:
        op = standard(node)
        if not op or op in _ENDS or bodies_of(node):
            return ENDS
        if op in _SUMS:
            return SUM
        if op in PARTS:
            return Traits(sums=True)
        if op in _BOTH or op == "LpNormalization":
            return Traits(sums=True, roots=True, mixes=op in _BOTH)
        if op in _CENTRED:
            data = node.inputs[0]
            beside = data is not None and _beside(data)
            return Traits(sums=beside, roots=beside)
        if op in ("MatMul", "Gemm", "Conv"):
            return self._product(node, variables)
        if op == "Einsum":
            return self._einsum(node, variables)
        return Traits(roots=True) if self.may_root(node) else NOTHING

    def _product(self, node: ir.Node, variables: Sequence[ir.Value]) -> Traits:
        if len(variables) == 1 and len(node.inputs) > 1:
            other = node.inputs[0] if node.inputs[1] in variables else node.inputs[1]
            return self._with(other)
        left, right = (self._types.shape(value) or () for value in variables[:2])
        if node.op_type != "MatMul" or len(variables) != 2 or not left or not right:
            return ENDS
        if 1 in (left[-1], right[-2:][0]):
            return NOTHING  # a multiple
        one = (len(left) == 1 or left[-2] == 1) and (len(right) == 1 or right[-1] == 1)
        return SUM if one else ENDS

    def _einsum(self, node: ir.Node, variables: Sequence[ir.Value]) -> Traits:
        operands, arrow, result = node.attributes.get_string("equation", "").partition("->")
        terms = [_TERM.findall(term) for term in operands.split(",")]
        labels = [label for term in terms for label in term]
        kept = _TERM.findall(result) if arrow else [x for x in labels if labels.count(x) == 1]
        rows = [term for term, value in zip(terms, node.inputs, strict=False) if value in variables]
        if all(label in kept for term in rows for label in term):
            return NOTHING
        if all(label in term for term in rows for label in kept):
            return SUM
        others = [value for value in node.inputs if value not in variables]
        return self._with(others[0]) if len(rows) == len(others) == 1 else ENDS

    def _with(self, value: ir.Value | None) -> Traits:
        """Return what a product with this constant does: with a dense matrix it ends a row."""
        if value is None:
            return ENDS
        node = value.producer()
        tensor = value.const_value
        if tensor is None and standard(node) == "Constant" and node is not None:
            tensor = constant_tensor(node.attributes)
        dims = self._types.shape(value) if tensor is None else tuple(tensor.shape)
        if dims is not None and sum(size != 1 for size in dims) <= 1:
            return SUM
        matrix = Traits(sums=True)  # or an order of the elements
        if tensor is None:
            return matrix if standard(node) in _FILLED else ENDS
        if tensor.size > _MOST_READ or tensor.dtype == ir.DataType.STRING:
            return ENDS
        try:
            array = tensor.numpy().reshape(-1)
        except (OSError, ValueError, TypeError):
            return ENDS
        # A few numbers of a dense matrix tell that it is one.
        few = len(np.unique(array[:64])) <= 2 and len(np.unique(array)) <= 2
        return matrix if few else ENDS


def _beside(value: ir.Value) -> bool:
    """Return whether a value is rows beside others, behind what reshapes them."""
    for _ in range(8):
        node = value.producer()
        if standard(node) == "Concat":
            return True
        if node is None or standard(node) not in ("Reshape", "Transpose", "Unsqueeze", "Cast"):
            return False
        if node.inputs[0] is None:
            return False
        value = node.inputs[0]
    return False
