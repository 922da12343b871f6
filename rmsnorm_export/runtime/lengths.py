"""What attention operators ask of inputs: how many tokens there are, and how wide a head is.

Random numbers are no numbers of tokens, and onnxruntime-genai's builder leaves widths open.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from rmsnorm_export.op.native import MICROSOFT_DOMAIN
from rmsnorm_export.recognize.types import Types

_GROUPED, _STATE = "GroupQueryAttention", 3
_COUNTS = {
    (_GROUPED, 5): (-1, 0, _STATE), (_GROUPED, 6): (0, 0, _STATE),
    ("SparseAttention", 7): (0, 0, 3), ("SparseAttention", 8): (0, 0, 3),
}  # fmt: skip
"""Operator and input -> an addend to the number of tokens, and the inputs that have so many."""


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
    types = Types(model)
    counted = {}
    for value in model.graph.inputs:
        for node, index in value.uses():
            count = _COUNTS.get((node.op_type, index)) if node.domain == MICROSOFT_DOMAIN else None
            length = _length(node, count, types, model) if count is not None else None
            if length is not None and value.name:
                counted[value.name] = length
    return counted


def widths(model: ir.Model) -> Iterator[tuple[str | None, int]]:
    """Yield names of widths and what they are: the rows of the product after it, of all heads."""
    for node in model.graph:
        state = node.inputs[_STATE] if node.op_type == _GROUPED else None
        size = state.shape[-1] if state is not None and state.shape else None
        if not isinstance(size, ir.SymbolicDim):
            continue
        for use in node.outputs[0].uses():
            weight = use.node.inputs[1] if use.node.op_type.startswith("MatMul") else None
            if weight is not None:
                rows = use.node.attributes.get_int("K", None) or (weight.shape or (0,))[0]
                if isinstance(rows, int):
                    yield size.value, rows // node.attributes.get_int("num_heads")


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
