"""The proofs of a plan: every site run before and after, on hard inputs; the result loaded."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
from packaging.version import Version

from rmsnorm_export.errors import Error
from rmsnorm_export.graph.load import LoadedModel, serialize
from rmsnorm_export.graph.tensors import LARGE_BYTES, lent_slots, tensor_slots
from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.printable import one_line
from rmsnorm_export.proof.comparison import executed
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.recognize.refusal import Refusal, refuse
from rmsnorm_export.rewrite.options import OptimizeOptions, RewriteOptions
from rmsnorm_export.rewrite.plan import Plan
from rmsnorm_export.rewrite.result import Loading, Report
from rmsnorm_export.runtime.session import end_fork, open_session, runtime_name
from rmsnorm_export.system.packages import version_of

_ONNXRUNTIME = "onnxruntime"


def prove_sites(plan: Plan, options: OptimizeOptions) -> tuple[Plan, dict[Lowered, Proof]]:
    """Return the plan with the sites whose proof passed, and each proof, where asked for.

    Raises:
        BackendMissingError: ONNX Runtime is not installed, or does not take the kernels.
    """
    if not options.prove:
        return plan, {}
    from rmsnorm_export.proof.prove import prove_site
    from rmsnorm_export.proof.site import FREE_ELEMENTS, Proving

    model, proofs = plan.model, {}
    imports, functions = dict(model.opset_imports), tuple(model.functions.values())
    most = FREE_ELEMENTS + sum(slot.tensor.size for slot in tensor_slots(model))
    proving = Proving(plan.types, imports, functions, options.seed, options.kernels, most)
    for done, site in enumerate(plan.sites):
        if options.progress:
            options.progress("proving", done, len(plan.sites))
        proofs[site] = prove_site(site.part, site, proving)
    if options.progress:
        options.progress("proving", len(plan.sites), len(plan.sites))
    end_fork()
    failed = {site: _refuse(site, proof) for site, proof in proofs.items() if not proof.passed}
    return plan.without(failed), proofs


def prove_loading(
    model: ir.Model, report: Report, options: RewriteOptions, source: LoadedModel | None = None
) -> Report:
    """Return the report with the outcome of a session of the whole result, where asked for.

    Weights are inputs of the first session, so that none is read: whether there is a kernel for
    each node does not depend on them. Its graph optimization is off; that of a second one and of
    the source, in which nodes and norms are counted, is not.
    """
    changed = report.fused or report.opset_before != report.opset_after
    if options.prove and source is not None and not changed:
        note = "nothing was rewritten, so that there was nothing to prove"
        return dataclasses.replace(report, notes=(*report.notes, note))
    if not (options.prove and changed):
        return report
    version, named = version_of(_ONNXRUNTIME), options.consumer
    entry = next(one for one in report.runs_in if one.runtime == _ONNXRUNTIME)
    runs = entry.since and version and Version(version) >= Version(entry.since)
    loading = Loading("")
    if runs:
        small = _without_weights(model)
        elsewhere = any(slot.is_external for slot in tensor_slots(small))
        loading = Loading(runtime_name(), perhaps=entry.perhaps or elsewhere)
        if options.progress:
            options.progress("loading the result", 0, 1)
        try:
            content = serialize(small)
            open_session(content, size=len(content), threads=1, kernels=options.kernels)
            after = executed(model, options.kernels)
            earlier = report.loading or loading  # a later step has no source of its own
            before, size = earlier.before, (earlier.bytes or (None,))[0]
            if source is not None:
                before = _executed_before(source.model)
                size = _total_bytes(source.model, source.identity and source.identity[1])
            sizes = (size, _total_bytes(model))
            loading = dataclasses.replace(loading, before=before, after=after, bytes=sizes)
        except Error as error:
            problem = one_line(error.found, 300)
            loading = dataclasses.replace(loading, problem=problem)
    other_version = "@" in (options.runtime or "") and named and version not in named.seen
    if named is not None and (named.label.split()[0] != _ONNXRUNTIME or other_version):
        loading = dataclasses.replace(loading, not_loaded=named.label)
    elif not runs:
        loading = dataclasses.replace(loading, not_loaded=f"{_ONNXRUNTIME} {version}".strip())
    return dataclasses.replace(report, loading=loading)


def _executed_before(source: ir.Model) -> tuple[int, int] | None:
    """Return what a session of the source executes; None where it does not load."""
    try:
        return executed(source)
    except Error:
        return None


def _total_bytes(model: ir.Model, file: int | None = None) -> int:
    """Return the bytes of a model, of its file where that is known, and its external weights.

    Large weights are not copied for it, so that some bytes of each, which frame it, may be missing.
    """
    apart = 0
    with lent_slots(model) as slots:
        for slot in slots:
            if slot.is_external or (slot.nbytes >= LARGE_BYTES and file is None):
                apart += slot.nbytes
            if not slot.is_external and slot.nbytes >= LARGE_BYTES:
                slot.put(ir.Tensor(np.empty(0, slot.tensor.dtype.numpy()), slot.tensor.dtype))
        return apart + (len(serialize(model)) if file is None else file)


def _without_weights(model: ir.Model) -> ir.Model:
    """Return a copy whose initializers, if they are large or in other files, are inputs."""
    copy = model.clone()
    for value in tuple(copy.graph.initializers.values()):
        tensor = value.const_value
        external = isinstance(tensor, ir.ExternalTensor)
        if tensor is not None and (external or tensor.nbytes >= LARGE_BYTES):
            del copy.graph.initializers[value.name or ""]
            value.const_value, value.type = None, ir.TensorType(tensor.dtype)
            value.shape = ir.Shape(tensor.shape.numpy())
            if not value.is_graph_input():
                copy.graph.inputs.append(value)
    return copy


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
