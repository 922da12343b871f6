"""The proofs of a plan: every site before and after, and those that fail are given up."""

from __future__ import annotations

import numpy as np

from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import refuse
from rmsnorm_export.rewrite.plan import Plan
from rmsnorm_export.system.progress import Progress

_MAX_SCALE = 1 << 24
"""Elements of a scale that a proof may read: 64 MiB in f32, far above any row length."""


def prove_plan(
    plan: Plan, seed: int, progress: Progress | None
) -> tuple[Plan, dict[Lowered, Proof]]:
    """The plan with the sites whose proof passed, and the proof of each.

    Raises:
        BackendMissingError: ONNX Runtime is not installed.
    """
    from rmsnorm_export.proof.prove import prove_site

    functions = tuple(plan.model.functions.values())
    proofs: dict[Lowered, Proof] = {}
    for done, site in enumerate(plan.sites):
        if progress is not None:
            progress("proving", done, len(plan.sites))
        proofs[site] = prove_site(
            site.part,
            site,
            opset_imports=dict(plan.model.opset_imports),
            functions=functions,
            numerics=site.numerics,
            stored_scale=_stored_scale(site.part),
            seed=seed,
        )
    if progress is not None:
        progress("proving", len(plan.sites), len(plan.sites))
    failed = {
        site: refuse(
            site.part.nodes[-1],
            "proof-failed",
            "the new node did not reproduce the original nodes; they were kept",
            proof.reason,
            "please report this model; --numerics exact may avoid it",
            site.part.scope,
        )
        for site, proof in proofs.items()
        if not proof.passed
    }
    return plan.without(failed), proofs


def _stored_scale(match: Match) -> np.ndarray | None:
    """The real scale of a site: the only weight that is ever read, and only for a proof."""
    tensor = match.scale.const_value if match.scale is not None else None
    if tensor is None or tensor.size > _MAX_SCALE:
        return None
    try:
        return np.asarray(tensor.numpy())
    except (OSError, ValueError):
        return None
