"""The proofs of a plan: every site run before and after, on hard inputs."""

from __future__ import annotations

import onnx_ir as ir

from rmsnorm_export.errors import Error
from rmsnorm_export.graph.tensors import MAX_PROTO_BYTES, tensor_slots
from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.printable import one_line
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.recognize.refusal import Refusal, refuse
from rmsnorm_export.rewrite.options import OptimizeOptions, RewriteOptions
from rmsnorm_export.rewrite.plan import Plan
from rmsnorm_export.rewrite.result import Execution


def prove_sites(plan: Plan, options: OptimizeOptions) -> tuple[Plan, dict[Lowered, Proof]]:
    """Return the plan with the sites whose proof passed, and each proof, where asked for.

    Raises:
        BackendMissingError: ONNX Runtime is not installed, or does not take the kernels.
    """
    if not options.prove:
        return plan, {}
    from rmsnorm_export.proof.prove import prove_site
    from rmsnorm_export.proof.site import FREE_ELEMENTS, Proving, stored_weight

    model, proofs = plan.model, {}
    imports, functions = dict(model.opset_imports), tuple(model.functions.values())
    most = FREE_ELEMENTS + sum(slot.tensor.size for slot in tensor_slots(model))
    proving = Proving(plan.types, imports, functions, options.seed, options.kernels, most)
    for done, site in enumerate(plan.sites):
        if options.progress:
            options.progress("proving", done, len(plan.sites))
        scale, numerics = stored_weight(site.part.scale), site.numerics
        proofs[site] = prove_site(site.part, site, proving, numerics=numerics, stored_scale=scale)
    if options.progress:
        options.progress("proving", len(plan.sites), len(plan.sites))
    failed = {site: _refuse(site, proof) for site, proof in proofs.items() if not proof.passed}
    return plan.without(failed), proofs


def executed_norms(model: ir.Model, options: RewriteOptions) -> Execution:
    """Return how many norms a session of the model executes as one kernel each."""
    from rmsnorm_export.quantize.comparison import lent_content
    from rmsnorm_export.runtime.session import executed_graph, is_norm, runtime_name

    size = sum(slot.nbytes for slot in tensor_slots(model))
    if size >= MAX_PROTO_BYTES:
        return Execution(runtime_name(), 0, f"its weights take {size / 1e9:.1f} GB")
    try:
        content, weights = lent_content(model)
        graph = executed_graph(content, kernels=options.kernels, weights=weights)
    except Error as error:
        return Execution(runtime_name(), 0, one_line(f"{error.what} {error.found}"))
    nodes = ir.serde.deserialize_graph(graph).all_nodes()
    return Execution(runtime_name(), sum(map(is_norm, nodes)))


def _refuse(site: Lowered, proof: Proof) -> Refusal:
    if proof.compared:
        reason = "proof-failed"
        message = "the new node did not reproduce the original nodes; they were kept"
        looser = site.numerics != "exact"
        hint = f"please report this model{'; --numerics exact may avoid it' if looser else ''}"
    else:
        reason = "not-provable"
        message = "the site could not be run by itself, so there is no proof; its nodes were kept"
        hint = "without --prove it is rewritten; verify then compares the models as a whole"
    return refuse(site.part.nodes[-1], reason, message, proof.reason, hint, site.part.scope)
