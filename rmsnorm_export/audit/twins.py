"""Values that are computed twice, by equal nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import onnx_ir as ir

from rmsnorm_export.recognize.consts import Constants, standard, stored_tensor
from rmsnorm_export.recognize.context import same_attributes

_NOT_REPEATED = frozenset((
    "", "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli",
    "Multinomial", "Dropout",
))  # fmt: skip
"""Operators, and functions, that may compute something else the next time."""
_COMMUTATIVE = ("Add", "Mul")
_MOST_COMPARED = 1 << 13
"""Elements of a constant that is compared with others."""


class Twins:
    """The nodes of a model that compute the same as an earlier one of their graph.

    Args:
        constants: small ones.
    """

    def __init__(self, constants: Constants) -> None:
        self._constants = constants
        self._alike: dict[tuple[object, ...], list[ir.Node]] = {}
        self._firsts: dict[ir.Value, ir.Value] = {}

    def first(self, node: ir.Node, variables: Collection[ir.Value]) -> ir.Node:
        """Return the first node that computes the same.

        ``variables``: its inputs that are no constants.
        """
        op = standard(node)
        if op in _NOT_REPEATED:
            return node
        inputs = tuple(
            self._firsts.get(v, v) if v is not None and v in variables else self._number(v)
            for v in node.inputs
        )
        order = frozenset(inputs) if op in _COMMUTATIVE else inputs
        alike = self._alike.setdefault((node.graph, node.op_type, order), [])
        same = (one for one in alike if len(one.outputs) == len(node.outputs))
        first = next((one for one in same if same_attributes(one, node)), None)
        if first is None:
            alike.append(node)
            return node
        self._firsts |= dict(zip(node.outputs, first.outputs, strict=True))
        return first

    def of(self, value: ir.Value) -> list[ir.Value]:
        """Return the values that are the same as this one, the first of them."""
        return [twin for twin, first in self._firsts.items() if first is value]

    def _number(self, value: ir.Value | None) -> object:
        """Return what is equal for equal constants, as far as they are read."""
        array = self._constants.array(value)
        tensor = None if value is None else stored_tensor(value)
        if array is None and tensor is not None and not isinstance(tensor, ir.ExternalTensor):
            array = tensor.numpy() if tensor.size <= _MOST_COMPARED else None
        if array is None:
            return value
        return array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).digest()
