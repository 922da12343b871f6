"""``optimize`` and ``inspect`` in plain steps: load, plan, prove, describe, apply."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import cast

import numpy as np

from rmsnorm_export.graph.bundle import Bundle, open_folder
from rmsnorm_export.graph.functions import sort_functions
from rmsnorm_export.graph.load import Source, load_model, no_gc
from rmsnorm_export.graph.opset import default_opset
from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.op.native import SKIP_SIMPLIFIED
from rmsnorm_export.options import keywords, takes
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal, refuse
from rmsnorm_export.rewrite.apply import apply
from rmsnorm_export.rewrite.describe import count_nodes, describe_plan, own_functions
from rmsnorm_export.rewrite.options import InspectOptions, OptimizeOptions
from rmsnorm_export.rewrite.plan import Plan, make_plan, needed_opset, plan_at_opset
from rmsnorm_export.rewrite.result import GenerationExport, Report
from rmsnorm_export.rewrite.rewritten import FolderResult, Result
from rmsnorm_export.rewrite.runs import fit_model, runs_in
from rmsnorm_export.rewrite.unfold import remove_unused_own, unfold, with_defaults

_WITH_PLUGIN = ("tensorrt", "tensorrt-rtx")
"""Runtimes in which a rotary embedding goes with its norm, unless the options say otherwise."""

_MAX_SCALE = 1 << 24
"""Elements of a scale that a proof may read: 64 MiB in f32, far above any row length."""


@takes(OptimizeOptions)
def optimize(source: Source, options: OptimizeOptions) -> Result:
    """Make every RMSNorm of a model one node.

    Args:
        source: path of an .onnx file, its bytes, an ``onnx.ModelProto`` or an ``onnx_ir.Model``;
            or of a folder of graphs, e.g. of prefill and decode, that an exporter of decoders has
            written. Never changed.

    Returns:
        The new model and the report; of a folder a result that has ``results`` and ``reports`` by
        the name of each graph, and saves a folder.

    Raises:
        InputError: the model cannot be read, or not be raised to the opset, or the runtime cannot
            run it.
        UsageError: an option has no such value.
        BackendMissingError: ``prove`` without ONNX Runtime.
    """
    if (folder := _as_folder(source)) is not None:
        start = time.perf_counter()
        results = {n: optimize(f, **keywords(options)) for n, f in folder.files.items()}
        return cast("Result", FolderResult(folder, results, time.perf_counter() - start))
    row, residual = options.consumer, options.fold_residual
    if row is not None and options.target is None and row.target == "ort":
        residual = residual and SKIP_SIMPLIFIED in row.forms
    rotary = options.fold_rotary
    if rotary is None:
        rotary = row is not None and row.name in _WITH_PLUGIN
    options = dataclasses.replace(
        options, target=options.form, fold_residual=residual, fold_rotary=rotary
    )
    return _rewritten(source, options)


def _as_folder(source: Source) -> Bundle | None:
    """The graphs of a folder; None where the source is none."""
    if isinstance(source, str | Path) and Path(source).is_dir():
        return open_folder(source)
    return None


def _rewritten(source: Source, options: OptimizeOptions) -> Result:
    start = time.perf_counter()
    with no_gc():
        loaded = with_defaults(load_model(source), options.constant_initializers)
        row = TARGETS[options.form]
        if (runtime := options.consumer) is not None:
            kept = tuple(o for o in row.operators if o != SKIP_SIMPLIFIED or o in runtime.forms)
            row = dataclasses.replace(row, operators=kept)
        version, nodes = default_opset(loaded.model), count_nodes(loaded.model)
        loaded = dataclasses.replace(
            loaded, model=unfold(loaded.model, None if options.sites else row)
        )
        loaded, plan = plan_at_opset(loaded, options)
        plan, proofs = _prove(plan, options) if options.prove else (plan, {})
        report = describe_plan(loaded, plan, options, proofs=proofs)
        apply(plan.model, plan.sites, plan.names)
        remove_unused_own(plan.model)
        sort_functions(plan.model)
        model, notes = plan.model, report.notes
        if runtime is not None:
            model, more = fit_model(model, runtime)
            notes = (*notes, f"for {options.runtime}: {'; '.join([options.form, *more])}")
        fusions = None
        if options.fusions is not None:
            from rmsnorm_export.rewrite.fusions import fuse

            model, fusions = fuse(model, options.fusions, seed=options.seed)
            if fusions.residuals >= len(report.apart("residual")):
                report = dataclasses.replace(report, unfolded=report.apart("quantizer", "rotary"))
        report = dataclasses.replace(
            report,
            fusions=fusions,
            opset_before=version,
            opset_after=default_opset(model),
            nodes_before=nodes,
            nodes_after=count_nodes(model),
            functions=sum(1 for _ in own_functions(model)),
            notes=notes,
            runs_in=runs_in(model),
            seconds=time.perf_counter() - start,
        )
    return Result(model, report, loaded)


@takes(InspectOptions)
def inspect(source: Source, options: InspectOptions) -> Report:
    """List the RMSNorms of a model, and what `optimize` would do with each; changes nothing.

    Args:
        source: as for `optimize`; of a folder the result has ``reports`` by the name of each graph.
    """
    start = time.perf_counter()
    if (folder := _as_folder(source)) is not None:
        reports = {n: inspect(f, **keywords(options)) for n, f in folder.files.items()}
        seconds = time.perf_counter() - start
        return cast("Report", GenerationExport(folder.folder, reports, (), "", seconds))
    with no_gc():
        loaded = with_defaults(load_model(source), options.constant_initializers)
        rewrite = OptimizeOptions(**keywords(options))
        plan = make_plan(unfold(loaded.model, TARGETS[rewrite.form]), rewrite)
        report = describe_plan(loaded, plan, rewrite)
        opset = max(report.opset_before, needed_opset(plan) if options.target else 0)
        return dataclasses.replace(
            report,
            opset_after=opset,
            runs_in=runs_in(loaded.model),
            planned=True,
            seconds=time.perf_counter() - start,
        )


def _prove(plan: Plan, options: OptimizeOptions) -> tuple[Plan, dict[Lowered, Proof]]:
    """The plan with the sites whose proof passed, and the proof of each.

    Raises:
        BackendMissingError: ONNX Runtime is not installed, or does not take the kernels.
    """
    progress = options.progress
    from rmsnorm_export.proof.prove import prove_site

    functions = tuple(plan.model.functions.values())
    proofs: dict[Lowered, Proof] = {}
    for done, site in enumerate(plan.sites):
        if progress:
            progress("proving", done, len(plan.sites))
        proofs[site] = prove_site(
            site.part,
            site,
            types=plan.types,
            opset_imports=dict(plan.model.opset_imports),
            functions=functions,
            numerics=site.numerics,
            stored_scale=_stored_scale(site.part),
            seed=options.seed,
            kernels=options.kernels,
        )
    if progress:
        progress("proving", len(plan.sites), len(plan.sites))
    failed = {site: _refuse(site.part, proof) for site, proof in proofs.items() if not proof.passed}
    return plan.without(failed), proofs


def _refuse(part: Match, proof: Proof) -> Refusal:
    if proof.compared:
        reason = "proof-failed"
        message = "the new node did not reproduce the original nodes; they were kept"
        hint = "please report this model; --numerics exact may avoid it"
    else:
        reason = "not-provable"
        message = "the site could not be run by itself, so there is no proof; its nodes were kept"
        hint = "without --prove it is rewritten; verify then compares the models as a whole"
    return refuse(part.nodes[-1], reason, message, proof.reason, hint, part.scope)


def _stored_scale(match: Match) -> np.ndarray | None:
    """The real scale of a site: the only weight that is ever read, and only for a proof."""
    tensor = match.scale.const_value if match.scale is not None else None
    if tensor is None or tensor.size > _MAX_SCALE:
        return None
    try:
        return np.asarray(tensor.numpy())
    except (OSError, ValueError):
        return None
