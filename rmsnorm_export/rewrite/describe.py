"""Description of a plan: the sites, kept norms and refusals of a report.

Described while the source nodes are in place, before anything is applied. The drawings do not grow
with the number of equal sites, and hold nothing of the graph.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rmsnorm_export.graph.load import LoadedModel
from rmsnorm_export.graph.opset import default_opset
from rmsnorm_export.lower.builder import REPLACES, shape_text
from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.spec import DOMAIN, QUANTIZE, NormSpec
from rmsnorm_export.printable import plural, short
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.recognize.consts import Constants
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import ANEW, name_of
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.rewrite.drawing import Drawing, DrawnNode, DrawnValue, Subgraph
from rmsnorm_export.rewrite.options import OptimizeOptions
from rmsnorm_export.rewrite.plan import Plan
from rmsnorm_export.rewrite.result import Report, Site
from rmsnorm_export.runtime.inputs import type_name_of

_cut = functools.partial(short, limit=200)
"""Cuts a name, a shape or an attribute: no drawing shows more."""

_INPUTS = ("x", "residual", "gate", "cos", "sin", "scale", "offset_scale", "bias")
_OF_ROWS = ("x", "residual", "gate")
_IN_HALF = "squares in float16 overflow above 255: {} (inspect --health names what helps)"
_USUAL = {("keepdims", "1"), ("noop_with_empty_axes", "0"), ("allowzero", "0"), ("saturate", "1")}


def describe_plan(
    loaded: LoadedModel, plan: Plan, options: OptimizeOptions, proofs: Mapping[Lowered, Proof],
    *, opset: int, nodes: int,
) -> Report:  # fmt: skip
    """Return the report of a plan.

    Args:
        loaded: the model of the plan.
        plan: not applied yet.
        options: of the plan.
        proofs: of its sites.
        opset, nodes: of the model before.
    """
    gallery = Gallery(plan.types) if options.drawings else None
    one_node = TARGETS[options.target or "portable"].form == "one node"
    kept_matches, fused = set(plan.kept), []
    for site in (site for site in plan.sites if site.part not in kept_matches):
        norm = next(node for node in site.nodes if REPLACES in node.metadata_props)
        described = _described_site(site.part, norm, gallery, site)
        op = norm.op_type if one_node else " ".join(node.op_type for node in site.nodes)
        fused.append(dataclasses.replace(described, op=op, proof=proofs.get(site)))
    kept = [_described_site(match, match.nodes[-1], gallery) for match in plan.kept]
    half = plan.still_in_half()
    return Report(
        source=loaded.description,
        target=options.target,
        numerics=options.numerics,
        fused=tuple(fused),
        kept=tuple(kept),
        refused=plan.refusals,
        unfolded=(*(r for site in plan.sites for r in site.unfolded), *plan.unfolded),
        opset_before=opset,
        opset_after=default_opset(plan.model),
        nodes_before=nodes,
        nodes_after=nodes,
        notes=(*loaded.notes, *([_IN_HALF.format(plural(half, "norm"))] if half else [])),
        drawings=() if gallery is None else tuple(gallery.drawings),
    )


def _described_site(
    match: Match, node: ir.Node, gallery: Gallery | None, lowered: Lowered | None = None
) -> Site:
    """Return the norm ``match`` that is, or will be, ``node``."""
    attributes = match.spec.non_default()
    if match.quantized is not None:
        attributes[QUANTIZE] = match.quantized.how
    return Site(
        name=name_of(node),
        op=node.op_type,
        nodes=tuple(map(name_of, match.nodes)),
        spelling=match.spelling,
        numerics="exact" if lowered is None else lowered.numerics,
        dtype=type_name(match.dtype),
        n=match.n,
        epsilon=match.spec.epsilon,
        scope=match.scope,
        attributes=attributes,
        notes=_note_of(node) if lowered is None else tuple(lowered.notes),
        module=match.module,
        residual=match.residual is not None,
        quantized=match.quantized is not None,
        rotary=match.rotary is not None,
        drawing=None if gallery is None else gallery.add(match, lowered, name_of(node)),
    )


def _note_of(node: ir.Node) -> tuple[str, ...]:
    """Return the note on a node of the file that is not as it was there."""
    anew = node.metadata_props.get(ANEW)
    return () if anew is None else (f"the node is written anew: {anew}",)


class Gallery:
    """The drawings of one model, in the order of the first site of each; equal sites share one.

    Args:
        types: element types and shapes, as recognition knows them.
    """

    def __init__(self, types: Types) -> None:
        self._types, self._constants = types, Constants()
        self._positions: dict[tuple[int | None, Subgraph, Subgraph | None], int] = {}
        self.drawings: list[Drawing] = []

    def add(self, match: Match, lowered: Lowered | None, name: str) -> int:
        """Return the position in ``drawings`` of the drawing of a site called ``name``.

        Args:
            match: the part that is replaced, its nodes still in place.
            lowered: the new nodes; None: the site stays as it is.
        """
        inputs = ((getattr(match, role), role) for role in reversed(_INPUTS))
        roles = {v: role.removeprefix("offset_") for v, role in inputs if v is not None}
        ends = {match.output: "y"} | ({} if match.sum is None else {match.sum: "sum"})
        before = self._subgraph(match.nodes, roles | ends, {})
        after = None
        if lowered is not None:
            renamed = {new: old for old, new in lowered.replace}
            new_ends = {new: ends.get(old, "other") for new, old in renamed.items()}
            after = self._subgraph(lowered.nodes, roles | new_ends, renamed)
        position = self._positions.setdefault((match.n, before, after), len(self.drawings))
        if position == len(self.drawings):
            self.drawings.append(Drawing(_cut(name), before, after))
        return position

    def _subgraph(
        self, nodes: Sequence[ir.Node], roles: dict[ir.Value, str], old: dict[ir.Value, ir.Value]
    ) -> Subgraph:
        inside = {value for node in nodes for value in node.outputs}
        ends = (value for node in nodes for value in (*node.inputs, *node.outputs))
        values = dict.fromkeys(value for value in ends if value is not None)
        places: dict[ir.Value | None, int] = {value: index for index, value in enumerate(values)}
        drawn_values = []
        for value in values:
            dtype, dims = self._types.info(value)
            role = roles.get(value, "")
            number = None if value in inside or role in _OF_ROWS else self._constants.array(value)
            if role and number is not None and number.size > 1:
                number = None  # a scale of a few elements is a weight, no number of the formula
            drawn = DrawnValue(
                name=_cut(old.get(value, value).name or ""),
                dtype="" if dtype is None else type_name_of(ir.DataType(dtype)),
                shape="" if dims is None else _cut(shape_text(dims)),
                role=role,
                constant="" if number is None else _number(number),
            )
            drawn_values.append(drawn)
        drawn_nodes = (
            DrawnNode(
                op=_cut(node.op_type),
                name=_cut(name_of(node)),
                attributes=_drawn_attributes(node),
                inputs=tuple(places.get(value, -1) for value in node.inputs),
                outputs=tuple(places[value] for value in node.outputs),
            )
            for node in nodes
        )
        return Subgraph(tuple(drawn_values), tuple(drawn_nodes))


def _drawn_attributes(node: ir.Node) -> tuple[tuple[str, str], ...]:
    """Return attributes as text, without those that exporters write out and that say nothing."""
    usual = set(_USUAL)
    if node.domain == DOMAIN:
        own = NormSpec(kind="GatedRMSNorm").attributes().items()
        usual |= {(name, _value_text(value)) for name, value in own if name != "epsilon"}
    texts = ((_cut(name), _attribute(attribute)) for name, attribute in node.attributes.items())
    return tuple(text for text in texts if text not in usual and not text[0].startswith("plugin_"))


def _attribute(attribute: ir.Attr) -> str:
    if attribute.is_ref():
        return f"@{_cut(attribute.ref_attr_name or '')}"
    if attribute.type in (ir.AttributeType.TENSOR, ir.AttributeType.GRAPH):
        return f"a {attribute.type.name.lower()}"
    if attribute.name == "to" and attribute.value in set(ir.DataType):
        return type_name_of(ir.DataType(attribute.as_int()))
    return _value_text(attribute.value)


def _value_text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(_value_text, value[:8])) + (", ...]" if len(value) > 8 else "]")
    return _cut(value if isinstance(value, str | bytes) else str(value))


def _number(array: np.ndarray) -> str:
    # NumPy's own types say their numbers; those of ml_dtypes are widened.
    readable = array if array.dtype.kind in "biuf" else array.astype(np.float32)
    return _value_text(readable.item() if array.size == 1 else readable.reshape(-1).tolist())
