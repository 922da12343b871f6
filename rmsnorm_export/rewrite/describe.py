"""Description of a plan: the sites, kept norms and refusals of a report.

Described while the source nodes are in place, before anything is applied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from rmsnorm_export.graph.load import LoadedModel
from rmsnorm_export.graph.opset import default_opset
from rmsnorm_export.lower.builder import REPLACES
from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.spec import QUANTIZE
from rmsnorm_export.printable import plural
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import ANEW, name_of
from rmsnorm_export.rewrite.options import OptimizeOptions
from rmsnorm_export.rewrite.plan import Plan
from rmsnorm_export.rewrite.result import Report, Site

_IN_HALF = "squares in float16 overflow above 255: {} (inspect --health names what helps)"


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
    one_node = TARGETS[options.target or "portable"].form == "one node"
    kept_matches, fused = set(plan.kept), []
    for site in (site for site in plan.sites if site.part not in kept_matches):
        norm = next(node for node in site.nodes if REPLACES in node.metadata_props)
        described = _described_site(site.part, norm, site)
        op = norm.op_type if one_node else " ".join(node.op_type for node in site.nodes)
        fused.append(dataclasses.replace(described, op=op, proof=proofs.get(site)))
    kept = [_described_site(match, match.nodes[-1]) for match in plan.kept]
    if not one_node:
        kept = [dataclasses.replace(site, op=site.spelling) for site in kept]
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
    )


def _described_site(match: Match, node: ir.Node, lowered: Lowered | None = None) -> Site:
    """Return the norm ``match`` that is, or will be, ``node``."""
    attributes, anew = match.spec.non_default(), node.metadata_props.get(ANEW)
    written_anew = () if anew is None else (f"the node is written anew: {anew}",)
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
        notes=written_anew if lowered is None else tuple(lowered.notes),
        module=match.module,
        residual=match.residual is not None,
        quantized=match.quantized is not None,
        rotary=match.rotary is not None,
    )
