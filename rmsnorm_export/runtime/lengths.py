"""Inputs that count tokens: random numbers, or ones, are none that an attention operator takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from rmsnorm_export.op.native import MICROSOFT_DOMAIN
from rmsnorm_export.recognize.consts import Constants
from rmsnorm_export.recognize.types import Types

_COUNTS = {
    ("GroupQueryAttention", 5): (-1, 0, 3), ("GroupQueryAttention", 6): (0, 0, 3),
    ("SparseAttention", 7): (0, 0, 3), ("SparseAttention", 8): (0, 0, 3),
}  # fmt: skip
"""Operator and input -> an addend to the number of tokens, and the inputs query and past."""


@dataclasses.dataclass(frozen=True, slots=True)
class Length:
    """A number of tokens: sizes of inputs by (name, axis), and a number."""

    sizes: tuple[tuple[str, int], ...]
    more: int

    def of(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Return the number where the inputs have these shapes."""
        return max(0, self.more + sum(shapes[name][axis] for name, axis in self.sizes))


def lengths(model: ir.Model) -> dict[str, Length]:
    """Map integer inputs of attention operators that count tokens to how many there are."""
    types = Types(model, Constants())
    counted = {}
    for value in model.graph.inputs:
        for node, index in value.uses():
            count = _COUNTS.get((node.op_type, index)) if node.domain == MICROSOFT_DOMAIN else None
            length = _length(node, count, types, model) if count is not None else None
            if length is not None and value.name:
                counted[value.name] = length
    return counted


def _length(
    node: ir.Node, count: tuple[int, int, int], types: Types, model: ir.Model
) -> Length | None:
    more, query, past = count
    places: list[tuple[str, int]] = []
    for index, axis in ((query, 1), (past, 2)):
        value = node.inputs[index] if index < len(node.inputs) else None
        dims = None if value is None else types.info(value)[1]
        if value is None and index == past:
            continue
        size = dims[axis] if dims is not None and axis < len(dims) else None
        if isinstance(size, int):
            more += size
        elif (place := next(_places(size, model), None)) is not None:
            places.append(place)
        else:
            return None
    return Length(tuple(places), more)


def _places(size: str | None, model: ir.Model) -> Iterator[tuple[str, int]]:
    """Yield where an input has a size of this name."""
    for value in model.graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            if isinstance(dim, ir.SymbolicDim) and dim.value == size and size is not None:
                yield (value.name or "", axis)
