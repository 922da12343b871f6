"""What an operator may be in a norm of any spelling: what sums, what takes a root, what ends it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rmsnorm_export.op import native
from rmsnorm_export.recognize.consts import (
    MOVES,
    SCALED,
    Constants,
    producer_of,
    standard,
    stored_tensor,
)
from rmsnorm_export.recognize.types import Types


@dataclasses.dataclass(frozen=True, slots=True)
class Traits:
    """What a node does to a row.

    Attributes:
        sums, roots: as the mean square and its root in a norm of any spelling.
        pieces: takes a row to pieces, which may be added.
        mixes: none of its outputs has the elements of a row any more, as what is normalised has.
        ends: nothing is known of it, or recognition knows it.
    """

    sums: bool = False
    roots: bool = False
    pieces: bool = False
    mixes: bool = False
    ends: bool = False


NOTHING, ENDS = Traits(), Traits(ends=True)
SOME = Traits(sums=True)
"""Elements of a row are added, or put in another order."""
_SUM, _ROOT = Traits(sums=True, mixes=True), Traits(roots=True)

SIZES, ADDITIONS = ("Shape", "Size"), ("Add", "Sum", "Mean")
CENTRED = (
    "LayerNormalization", "InstanceNormalization", "GroupNormalization",
    "MeanVarianceNormalization",
)  # fmt: skip
"""Operators that subtract the mean: of a row beside its negative they divide by the root."""
_FIXED: Mapping[str, Traits] = {
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceLogSum",
                     "CumSum", "AveragePool", "GlobalAveragePool"), _SUM),
    **dict.fromkeys(("Split", "Slice", "Gather", "GatherElements", "GatherND"),
                    Traits(pieces=True)),
    **dict.fromkeys(("ReduceL2", "ReduceLogSumExp", "LpPool", "GlobalLpPool"),
                    Traits(sums=True, roots=True, mixes=True)),
    "LpNormalization": Traits(sums=True, roots=True),
    "Sqrt": _ROOT,
    **dict.fromkeys((*SCALED, "DynamicQuantizeLinear", "Bernoulli", "Multinomial",
                     "RandomNormalLike", "RandomUniformLike",
                     native.RMS_NORMALIZATION, native.SIMPLIFIED), ENDS),
}  # fmt: skip
SUMS = frozenset(op for op, one in _FIXED.items() if one.mixes)
"""Operators that add up squares or elements."""
_LINEAR = ("MatMul", "Gemm", "Conv")
_OTHERS = frozenset((*_FIXED, *CENTRED, *_LINEAR, "Pow", "Einsum", "Exp"))
_WITH_ROOTS = frozenset((*(op for op, one in _FIXED.items() if one.roots), *CENTRED, "Pow", "Exp"))
_LOGARITHMS = frozenset(("Log", "ReduceLogSum", "ReduceLogSumExp"))
_FILLED = ("ConstantOfShape", "Expand", "EyeLike", "Tile")

_MOST_READ = 1 << 20
"""Elements of the matrix of a product that is read, to see whether it takes sums."""

_FIRST = 8

_TERM = re.compile(r"\.\.\.|[A-Za-z]")


class Operators:
    """The traits of the nodes of one model.

    Args:
        types: element types and shapes.
        explained: nodes of which recognition has said what they are.
        op_types: of all nodes: where there is no logarithm, an exponential is no root.
        calls: what is known of functions; those of the callees are to be there before a caller.
    """

    def __init__(
        self, types: Types, explained: Collection[ir.Node | None], op_types: Collection[str]
    ) -> None:
        self._types, self._explained = types, explained
        self._exponential = NOTHING if _LOGARITHMS.isdisjoint(op_types) else _ROOT
        self.constants = Constants()
        self.calls: dict[ir.OperatorIdentifier, Traits] = {}

    def takes_root(self, node: ir.Node) -> bool:
        """Return whether a node takes a root that nobody has explained."""
        return node.op_type in _WITH_ROOTS and self.traits(node, ()).roots

    def traits(self, node: ir.Node, variables: Sequence[ir.Value]) -> Traits:
        """Return what ``node`` does to those of its inputs that are no constants."""
        if self.calls and (called := self.calls.get(node.op_identifier())) is not None:
            return called
        if node.domain:
            return ENDS
        op = node.op_type
        if op not in _OTHERS:
            return NOTHING
        if (traits := _FIXED.get(op)) is None:
            traits = self._traits(node, variables)
        if op in SCALED and self.constants.rounds(node):
            return NOTHING
        return ENDS if (traits.sums or traits.roots) and node in self._explained else traits

    def _traits(self, node: ir.Node, variables: Sequence[ir.Value]) -> Traits:
        op, (first, *others) = node.op_type, (*node.inputs, None)
        if op == "Exp":
            return self._exponential
        if op in _LINEAR:
            return self._product(node, variables)
        if op == "Einsum":
            return self._einsum(node, variables)
        if op == "Pow":
            number = self.constants.scalar(others[0])
            return _ROOT if number is None or number % 1 != 0 else NOTHING
        beside = is_beside(first)
        return Traits(sums=beside, roots=beside)

    def _product(self, node: ir.Node, variables: Sequence[ir.Value]) -> Traits:
        if len(variables) == 1 and len(node.inputs) > 1:
            return self._with(node.inputs[0] if node.inputs[1] in variables else node.inputs[1])
        shapes = [value.shape for value in variables]
        if len(variables) != 2 or node.op_type == "Conv" or None in shapes:
            return SOME  # to infer a shape would take longer than to try
        turned = [node.attributes.get_int(name, 0) for name in ("transA", "transB")]
        left, right = (
            tuple(shape or ())[:: -1 if turn else 1]
            for shape, turn in zip(shapes, turned, strict=True)
        )
        if not len(left) or not len(right) or 1 in (left[-1], right[-2:][0]):
            return NOTHING  # a multiple
        others = [*left[-2:-1], *(right[-1:] if len(right) > 1 else ())]
        # The name of a size may be that of one; of all rows with all the squares are the diagonal.
        return _SUM if all(isinstance(size, int) for size in others) else SOME

    def _einsum(self, node: ir.Node, variables: Sequence[ir.Value]) -> Traits:
        operands, arrow, result = node.attributes.get_string("equation", "").partition("->")
        terms = [_TERM.findall(term) for term in operands.split(",")]
        labels = [label for term in terms for label in term]
        kept = _TERM.findall(result) if arrow else [x for x in labels if labels.count(x) == 1]
        rows = [term for term, value in zip(terms, node.inputs, strict=False) if value in variables]
        if all(label in kept for term in rows for label in term):
            return NOTHING
        others = [value for value in node.inputs if value not in variables]
        if not others or all(label in term for term in rows for label in kept):
            return _SUM
        return self._with(others[0]) if len(rows) == len(others) == 1 else ENDS

    def _with(self, value: ir.Value | None) -> Traits:
        """Return what a product with this constant does: with a dense matrix it ends a row."""
        if value is None:
            return ENDS
        tensor = stored_tensor(value) if value.const_value is None else value.const_value
        dims = self._types.shape(value) if tensor is None else tuple(tensor.shape)
        if dims is not None and sum(size != 1 for size in dims) <= 1:
            return _SUM
        if tensor is None:
            return SOME if standard(value.producer()) in _FILLED else ENDS
        if tensor.size > _MOST_READ or isinstance(tensor, ir.ExternalTensor):
            return ENDS
        array = tensor.numpy().reshape(-1)
        # A few numbers of a dense matrix tell that it is one.
        few = len(set(array[:_FIRST].tolist())) <= 2 and len(np.unique(array)) <= 2
        return SOME if few else ENDS


def is_beside(value: ir.Value | None) -> bool:
    """Return whether a value is rows beside others, behind what reshapes them."""
    for _ in range(8):
        node = None if value is None else value.producer()
        if node is None or standard(node) not in (*MOVES, "Cast", "Identity"):
            break
        value = node.inputs[0]
    return producer_of(value, "Concat") is not None
