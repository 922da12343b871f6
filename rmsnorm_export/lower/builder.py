"""The new nodes of one site under construction.

Every new norm node carries three metadata properties: the nodes that it replaces, the numerics
class of the rewrite, and the spelling of the source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rmsnorm_export.lower.lower import LowerContext, Lowered
from rmsnorm_export.op.dtypes import Array, numpy_dtype
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.spec import DOMAIN, Kind
from rmsnorm_export.recognize.consts import producer_of
from rmsnorm_export.recognize.context import widens
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import FORMERLY, name_of
from rmsnorm_export.recognize.shape_rules import Dims
from rmsnorm_export.recognize.types import Types

REPLACES = "rmsnorm_export.replaces"
NUMERICS_CLASS = "rmsnorm_export.numerics"
SPELLING = "rmsnorm_export.spelling"
_OWN_ENDING = re.compile(r"(/(Skip|Gated|Rotary)?RMSNorm(_\d+)?)+$")

# Weights are a node or three away from their initializer; longer chains are not worth a walk.
_MAX_WALK = 8


def stored_as(value: ir.Value, dtype: int, types: Types) -> ir.Value | None:
    """Return the value of type ``dtype`` whose elements ``value`` has, or None.

    Looks through Identity and through Casts that lose nothing: an f16 weight that the source casts
    to f32 is used as it is stored.
    """
    for _ in range(_MAX_WALK):
        own = types.dtype(value)
        if own == dtype:
            return value
        node = producer_of(value, "Cast", "Identity")
        source = None if node is None else node.inputs[0]
        if node is None or source is None:
            return None
        if node.op_type == "Cast" and not widens(types.dtype(source), own):
            return None
        value = source
    return None


def shape_text(dims: Dims) -> str:
    """Return a shape as a message shows it."""
    if dims is None:
        return "unknown shape"
    return "[" + ", ".join("?" if d is None else str(d) for d in dims) + "]"


class SiteBuilder:
    """The new nodes of one site, in topological order.

    Args:
        match: whose nodes they replace.
        numerics: class of the rewrite.
        context: gives unique names, types and shapes.
        kind: of the operator, in the names of the new nodes and values.
    """

    def __init__(
        self, match: Match, numerics: Numerics, context: LowerContext, kind: Kind = "RMSNorm"
    ) -> None:
        self._match = match
        self._numerics: Numerics = numerics
        self._types = context.types
        self._unique, self._shared = context.names, context.shared
        self._name = f"{_stem(match)}/{kind}"
        self._tape = ir.tape.Tape()
        self.initializers: list[ir.Value] = []

    def lowered(self, *replace: tuple[ir.Value, ir.Value], **more: Any) -> Lowered:
        """Return the nodes, with the pairs (value of the graph, new value) that they replace.

        Args:
            **more: other fields of ``Lowered``.
        """
        twins = () if self._match.quantized is None else self._match.quantized.twins
        new = dict(replace)
        # Twins first: of values that become one, the last gives it its name.
        pairs = [*((twin, new[one]) for twin, one in twins if one in new), *replace]
        nodes = self._tape.nodes
        return Lowered(nodes, pairs, self._numerics, self._match, self.initializers, **more)

    def norm(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, int | float | str],
        outputs: Sequence[ir.Value | None],
        *,
        domain: str = "",
        name: str | None = None,
    ) -> None:
        """Append the norm node; None in ``outputs`` is an output that is not asked for."""
        self._tape.op_multi_out(
            op_type,
            inputs,
            attributes,
            domain=domain,
            version=1 if domain else None,
            outputs=[ir.Value(name="") if v is None else v for v in outputs],
            name=name or self._unique(self._name),
            metadata_props=_provenance(self._match, self._numerics),
        )

    def like(self, value: ir.Value, dtype: int, suffix: str) -> ir.Value:
        """Return a new value with the shape of ``value`` and element type ``dtype``."""
        shape = value.shape
        return self._value(self._types.info(value)[1] if shape is None else shape, dtype, suffix)

    def cast(self, value: ir.Value, dtype: int, suffix: str) -> ir.Value:
        """Return ``value`` cast to ``dtype``; itself when it is known to have that type."""
        if self._types.dtype(value) == dtype:
            return value
        return self.add("Cast", [value], self.like(value, dtype, suffix), suffix, {"to": dtype})

    def transpose(self, value: ir.Value, order: Sequence[int]) -> ir.Value:
        """Return ``value`` with its axes in this order; itself where that is ()."""
        if not order:
            return value
        dtype, dims = self._types.info(value)
        moved = self._value(None if dims is None else [dims[axis] for axis in order], dtype, "x")
        return self.add("Transpose", [value], moved, "transpose", {"perm": tuple(order)})

    def ones(self, dims: Sequence[int], dtype: int, factor: float = 1.0) -> ir.Value:
        """Return a new initializer of ones, or one number: the scale of a norm that has none."""
        return self._constant(np.full(tuple(dims), factor, numpy_dtype(dtype)), dtype, "ones")

    def number(self, value: float, dtype: int) -> ir.Value:
        """Return a new initializer of one number."""
        return self._constant(np.array(value, numpy_dtype(dtype)), dtype, "factor")

    def shared(self, array: Array, dtype: int, label: str) -> ir.Value:
        """Return an initializer that many sites read, stored once for each place that sees it."""
        # Of the main graph every subgraph sees the initializers; a function has its own.
        scope = self._match.scope
        place = "main" if scope.startswith("main/") else scope
        key = (array.tobytes(), array.shape, dtype, place)
        if key not in self._shared:
            self._shared[key] = _constant(self._unique(f"{DOMAIN}.{label}"), array, dtype)
        self.initializers.append(self._shared[key])
        return self._shared[key]

    def taken(self) -> list[ir.Node]:
        """Return the nodes so far, which are then no longer here."""
        nodes, self._tape = [*self._tape.nodes], ir.tape.Tape()
        return nodes

    def reshape(self, value: ir.Value, dims: Sequence[int]) -> ir.Value:
        """Return ``value`` with the dimensions ``dims`` (one may be -1)."""
        shape = self._constant(np.array(dims, np.int64), ir.DataType.INT64, "scale_shape")
        sizes = [None if d < 0 else d for d in dims]
        result = self._value(sizes, self._types.dtype(value), "scale")
        return self.add("Reshape", [value, shape], result, "scale_reshape")

    def _value(
        self, dims: ir.Shape | Sequence[int | str | None] | None, dtype: int | None, suffix: str
    ) -> ir.Value:
        element_type = None if dtype is None else ir.DataType(dtype)
        shape = None if dims is None else ir.Shape(dims)  # of its own
        return ir.val(self._unique(f"{self._name}_{suffix}"), element_type, shape)

    def _constant(self, array: Array, dtype: int, suffix: str) -> ir.Value:
        value = _constant(self._unique(f"{self._name}_{suffix}"), array, dtype)
        self.initializers.append(value)
        return value

    def add(
        self,
        op_type: str,
        inputs: Sequence[ir.Value],
        result: ir.Value,
        suffix: str,
        attributes: Mapping[str, int | Sequence[int]] | None = None,
    ) -> ir.Value:
        """Append a node next to the norm; its output is ``result``."""
        name = self._unique(f"{self._name}_{suffix}")
        return self._tape.op(op_type, inputs, attributes, output=result, name=name)

    def copy(
        self, node: ir.Node, inputs: Sequence[ir.Value | None], suffix: str
    ) -> Sequence[ir.Value]:
        """Append ``node`` of a function body with other inputs; return its values."""
        outputs = [self._value(None, None, suffix) for _ in node.outputs]
        return self._tape.op_multi_out(
            node.op_type, inputs, node.attributes, outputs=outputs, name=outputs[0].name
        )


def _constant(name: str, array: Array, dtype: int) -> ir.Value:
    tensor = ir.Tensor(array, dtype=ir.DataType(dtype), name=name)
    return ir.val(name, const_value=tensor)


def _stem(match: Match) -> str:
    """Return the start of a site's names: the module it came from, or its last node."""
    last = match.nodes[-1] if match.nodes else None
    name = match.module
    if name is None and last is not None:
        name = last.metadata_props.get(FORMERLY) or last.name
    return _OWN_ENDING.sub("", name or match.output.name or "norm") or "norm"


def _provenance(match: Match, numerics: Numerics) -> dict[str, str]:
    """Return the metadata of a norm node: the nodes of the source that it replaces, and how.

    Nodes that come from an earlier run know what that run replaced.
    """
    last = match.nodes[-1].metadata_props if match.nodes else {}
    return {
        REPLACES: last.get(REPLACES) or ", ".join(name_of(node) for node in match.nodes),
        NUMERICS_CLASS: numerics,
        SPELLING: last.get(SPELLING) or match.spelling,
    }
