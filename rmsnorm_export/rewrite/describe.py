"""Description of a plan: the sites, kept norms and refusals of a report.

Described while the source nodes are in place, before anything is applied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from rmsnorm_export.graph.load import LoadedModel
from rmsnorm_export.graph.opset import default_opset
from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.lower.builder import REPLACES
from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.spec import DOMAIN, QUANTIZE
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import name_of
from rmsnorm_export.rewrite.draw import Gallery
from rmsnorm_export.rewrite.options import OptimizeOptions
from rmsnorm_export.rewrite.plan import Plan
from rmsnorm_export.rewrite.result import Report, Site


def describe_plan(
    loaded: LoadedModel,
    plan: Plan,
    options: OptimizeOptions,
    proofs: Mapping[Lowered, Proof] | None = None,
) -> Report:
    """Return the report of a plan; opset and nodes are those of the model as it is.

    Args:
        loaded: the model of the plan.
        plan: what is to be done.
        options: what the plan was made for.
        proofs: of its sites.
    """
    gallery = Gallery(plan.types) if options.drawings else None
    one_node = TARGETS[options.target or "portable"].form == "one node"
    proofs, kept_matches = proofs or {}, set(plan.kept)
    fused: list[Site] = []
    for site in (site for site in plan.sites if site.part not in kept_matches):
        norm = next(node for node in site.nodes if REPLACES in node.metadata_props)
        described = _described_site(site.part, norm, gallery, site)
        op = norm.op_type if one_node else " ".join(node.op_type for node in site.nodes)
        numerics, notes = site.numerics, tuple(site.notes)
        fused.append(
            dataclasses.replace(
                described, op=op, numerics=numerics, notes=notes, proof=proofs.get(site)
            )
        )
    kept = [_described_site(match, match.nodes[-1], gallery) for match in plan.kept]
    opset, nodes = default_opset(plan.model), count_nodes(plan.model)
    return Report(
        source=loaded.description,
        target=options.target,
        numerics=options.numerics,
        fused=tuple(fused),
        kept=tuple(kept),
        refused=plan.refusals,
        unfolded=(*(r for site in plan.sites for r in site.apart), *plan.unfolded),
        opset_before=opset,
        opset_after=opset,
        nodes_before=nodes,
        nodes_after=nodes,
        notes=loaded.notes,
        drawings=() if gallery is None else tuple(gallery.drawings),
    )


def count_nodes(model: ir.Model) -> int:
    """Count the nodes, without the bodies of this package's own operators."""
    own = (g for f in own_functions(model) for g in (f.graph, *f.subgraphs()))
    return sum(map(len, all_graphs(model))) - sum(map(len, own))


def own_functions(model: ir.Model) -> Iterator[ir.Function]:
    """Return the functions in this package's domain."""
    return (function for function in model.functions.values() if function.domain == DOMAIN)


def _described_site(
    match: Match, node: ir.Node, gallery: Gallery | None, new: Lowered | None = None
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
        numerics="exact",
        dtype=type_name(match.dtype),
        n=match.n,
        epsilon=match.spec.epsilon,
        scope=match.scope,
        attributes=attributes,
        module=match.module,
        residual=match.residual is not None,
        quantized=match.quantized is not None,
        rotary=match.rotary is not None,
        drawing=None if gallery is None else gallery.add(match, new, name_of(node)),
    )
