"""Record the nodes of each site, old and new, for a report that draws them.

Done before anything is applied, while the source nodes are in place. What is kept does not grow
with the number of equal sites, and nothing of the graph is held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rmsnorm_export.lower.builder import shape_text
from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.op.spec import DOMAIN, NormSpec
from rmsnorm_export.recognize.consts import Constants
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import name_of
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.rewrite.drawing import Drawing, DrawnNode, DrawnValue, Subgraph

MAX_NODES = 64
"""Nodes drawn per site; a norm has a dozen. The rest is left out."""

_LONGEST = 200
"""Characters kept of a name, a shape or an attribute: no drawing shows more."""

_PLUGIN = ("plugin_version", "plugin_namespace")
_USUAL = {("keepdims", "1"), ("noop_with_empty_axes", "0"), ("allowzero", "0"), ("saturate", "1")}
"""Attributes that exporters write out and that say nothing: ONNX's own defaults."""

_INPUTS = ("x", "residual", "gate", "cos", "sin", "scale", "offset_scale", "bias")


class Gallery:
    """The drawings of one model; sites with equal graphs share one.

    Args:
        types: element types and shapes, as recognition knows them.
    """

    def __init__(self, types: Types) -> None:
        self._types, self._constants = types, Constants()
        self._known: dict[tuple[object, ...], int] = {}
        self._drawings: list[Drawing] = []

    @property
    def drawings(self) -> tuple[Drawing, ...]:
        """In the order of the first site of each."""
        return tuple(self._drawings)

    def add(self, match: Match, lowered: Lowered | None, name: str) -> int:
        """Position in ``drawings`` of the drawing of a site called ``name``.

        Args:
            match: the part that is replaced, its nodes still in place.
            lowered: the new nodes; None: the site stays as it is.
        """
        inputs: dict[ir.Value, str] = {}
        for role in _INPUTS:
            value = getattr(match, role)
            if value is not None:
                inputs.setdefault(value, "scale" if role == "offset_scale" else role)
        outputs = {match.output: "y"} | ({} if match.sum is None else {match.sum: "sum"})
        before = self._subgraph(match.nodes, {**inputs, **outputs}, {})
        after = None
        if lowered is not None:
            renamed = {new: old for old, new in lowered.replace}
            roles = {**inputs, **{new: outputs.get(old, "other") for new, old in renamed.items()}}
            after = self._subgraph(lowered.nodes, roles, renamed)
        key = (match.n, _structure(before), None if after is None else _structure(after))
        if key not in self._known:
            self._known[key] = len(self._drawings)
            self._drawings.append(Drawing(_cut(name), before, after))
        return self._known[key]

    def _subgraph(
        self,
        nodes: Sequence[ir.Node],
        roles: Mapping[ir.Value, str],
        renamed: Mapping[ir.Value, ir.Value],
    ) -> Subgraph:
        values: dict[ir.Value, int] = {}
        drawn: list[DrawnValue] = []
        nodes = nodes[:MAX_NODES]
        inside = {value for node in nodes for value in node.outputs}

        def position(value: ir.Value | None) -> int:
            if value is None or not (value.name or value in inside):
                return -1
            if value not in values:
                values[value] = len(drawn)
                drawn.append(self._value(value, renamed.get(value, value), roles, inside))
            return values[value]

        shown = tuple(
            DrawnNode(
                op=_cut(node.op_type),
                name=_cut(name_of(node)),
                attributes=_drawn_attributes(node),
                inputs=tuple(map(position, node.inputs)),
                outputs=tuple(map(position, node.outputs)),
            )
            for node in nodes
        )
        return Subgraph(tuple(drawn), shown)

    def _value(
        self,
        value: ir.Value,
        named: ir.Value,
        roles: Mapping[ir.Value, str],
        inside: set[ir.Value],
    ) -> DrawnValue:
        dtype, dims = self._types.info(value)
        role = roles.get(value, "")
        constant = ""
        if value not in inside and role not in ("x", "residual", "gate"):
            array = self._constants.array(value)
            # A scale of a few elements is a weight and not a number of the formula.
            if array is not None and (not role or array.size == 1):
                constant = _number(array)
        return DrawnValue(
            name=_cut(named.name or ""),
            dtype="" if dtype is None else _type(dtype),
            shape="" if dims is None else _cut(shape_text(dims)),
            role=role,
            constant=constant,
        )


def _structure(graph: Subgraph) -> tuple[object, ...]:
    """All that is drawn but names and shapes; values are numbered in the order of the walk."""
    return (
        tuple((v.dtype, v.role, v.constant) for v in graph.values),
        tuple((n.op, n.attributes, n.inputs, n.outputs) for n in graph.nodes),
    )


def _drawn_attributes(node: ir.Node) -> tuple[tuple[str, str], ...]:
    """Attributes as text; of this package's operators those that are no default."""
    defaults: dict[str, int | float | str] = {}
    if node.domain == DOMAIN:
        defaults = NormSpec(kind="GatedRMSNorm").attributes()
        del defaults["epsilon"]
    texts = {
        name: _attribute(attribute)
        for name, attribute in node.attributes.items()
        if not (node.domain == DOMAIN and name in _PLUGIN)
    }
    return tuple(
        (_cut(name), text)
        for name, text in texts.items()
        if (name, text) not in _USUAL
        and (name not in defaults or text != _value_text(defaults[name]))
    )


def _attribute(attribute: ir.Attr) -> str:
    if attribute.is_ref():
        return f"@{_cut(attribute.ref_attr_name or '')}"
    if attribute.type == ir.AttributeType.TENSOR:
        return "a tensor"
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return "a graph"
    if attribute.name == "to" and attribute.type == ir.AttributeType.INT:
        try:
            return _type(ir.DataType(attribute.as_int()))
        except ValueError:
            return str(attribute.as_int())
    return _value_text(attribute.value)


def _type(dtype: ir.DataType) -> str:
    """As everywhere in reports: ``float32`` for ONNX's FLOAT."""
    name = dtype.name.lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def _value_text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(_value_text, value[:8])) + (", ...]" if len(value) > 8 else "]")
    return _cut(value if isinstance(value, (str, bytes)) else str(value))


def _number(array: np.ndarray) -> str:
    # NumPy's own types say their numbers; those of ml_dtypes are widened.
    readable = array if array.dtype.kind in "biuf" else array.astype(np.float32)
    return _value_text(readable.item() if array.size == 1 else readable.reshape(-1).tolist())


def _cut(text: str | bytes) -> str:
    """At most ``_LONGEST`` characters: of a longer text the beginning and the end."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    half = _LONGEST // 2 - 1
    return text if len(text) <= _LONGEST else f"{text[:half]}\u2026{text[-half:]}"
