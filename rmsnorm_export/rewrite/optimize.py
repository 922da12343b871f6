"""``optimize`` and ``inspect``: load, normalise, recognise, lower, prove, apply, report."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import cast

import onnx_ir as ir

from rmsnorm_export.graph.bundle import Bundle, open_folder
from rmsnorm_export.graph.contract import Contract
from rmsnorm_export.graph.load import Source, load_model, no_gc
from rmsnorm_export.graph.opset import default_opset
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.op.native import SKIP_SIMPLIFIED
from rmsnorm_export.options import keywords, takes
from rmsnorm_export.rewrite.apply import apply_plan
from rmsnorm_export.rewrite.at_opset import plan_at_opset
from rmsnorm_export.rewrite.describe import count_nodes, describe_plan, own_functions
from rmsnorm_export.rewrite.normalise import normalise
from rmsnorm_export.rewrite.options import HealthOptions, InspectOptions, OptimizeOptions
from rmsnorm_export.rewrite.plan import plan_rewrite
from rmsnorm_export.rewrite.proofs import prove_sites
from rmsnorm_export.rewrite.result import FolderResult, GenerationExport, Report, Result
from rmsnorm_export.rewrite.runs import fit_model, runs_in

_WITH_PLUGIN = ("tensorrt", "tensorrt-rtx")
"""Runtimes in which a rotary embedding goes with its norm, unless the options say otherwise."""


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
    start = time.perf_counter()
    if (folder := _as_folder(source)) is not None:
        results = {n: optimize(f, **keywords(options)) for n, f in folder.files.items()}
        return cast("Result", FolderResult(folder, results, time.perf_counter() - start))
    options = _settled(options)
    with no_gc():
        loaded = load_model(source)
        contract = Contract(loaded.model)
        opset, nodes = default_opset(loaded.model), count_nodes(loaded.model)
        loaded = normalise(loaded, options)
        loaded, plan = plan_at_opset(loaded, options)  # recognise and lower
        plan, proofs = prove_sites(plan, options)
        report = describe_plan(loaded, plan, options, proofs)
        apply_plan(plan)
        model, report = _fitted(plan.model, report, options)
        contract.restore(model)
        report = dataclasses.replace(
            report,
            opset_before=opset,
            opset_after=default_opset(model),
            nodes_before=nodes,
            nodes_after=count_nodes(model),
            functions=sum(1 for _ in own_functions(model)),
            runs_in=runs_in(model),
            seconds=time.perf_counter() - start,
        )
    return Result(model, report)


@takes(HealthOptions)
def inspect(source: Source, options: HealthOptions) -> Report:
    """List the RMSNorms of a model, and what `optimize` would do with each; changes nothing.

    Args:
        source: as for `optimize`; of a folder the result has ``reports`` by the name of each graph.
    """
    start = time.perf_counter()
    if (folder := _as_folder(source)) is not None:
        reports = {n: inspect(f, **keywords(options)) for n, f in folder.files.items()}
        seconds = time.perf_counter() - start
        return cast("Report", GenerationExport(folder.folder, reports, (), "", seconds))
    rewrite = OptimizeOptions(**keywords(options, InspectOptions))
    with no_gc():
        loaded = normalise(load_model(source), rewrite)
        plan = plan_rewrite(loaded.model, rewrite)
        report = describe_plan(loaded, plan, rewrite, {})
        if options.health or options.inputs is not None:
            from rmsnorm_export.rewrite.survey import survey

            report = dataclasses.replace(report, **survey(loaded, options.inputs))
        needed = TARGETS[options.target].min_opset if options.target and plan.sites else 0
        return dataclasses.replace(
            report,
            opset_after=max(report.opset_before, needed),
            runs_in=runs_in(loaded.model),
            planned=True,
            seconds=time.perf_counter() - start,
        )


def _as_folder(source: Source) -> Bundle | None:
    """Return the graphs of a folder; None where the source is none."""
    if isinstance(source, str | Path) and os.path.isdir(source):
        return open_folder(source)
    return None


def _settled(options: OptimizeOptions) -> OptimizeOptions:
    """Return the options with what the runtime decides where the user does not."""
    runtime, residual, rotary = options.consumer, options.fold_residual, options.fold_rotary
    if runtime is not None and options.target is None and runtime.target == "ort":
        residual = residual and SKIP_SIMPLIFIED in runtime.forms
    if rotary is None:
        rotary = runtime is not None and runtime.name in _WITH_PLUGIN
    return dataclasses.replace(
        options, target=options.form, fold_residual=residual, fold_rotary=rotary
    )


def _fitted(model: ir.Model, report: Report, options: OptimizeOptions) -> tuple[ir.Model, Report]:
    """Return the model as its runtime loads it, fused further and quantized where asked for.

    Raises:
        InputError: the runtime cannot run it, or it cannot be quantized.
    """
    if (runtime := options.consumer) is not None:
        model, changes = fit_model(model, runtime)
        words = [options.form, runtime.why, runtime.source, *changes]
        note = f"for {options.runtime}: {'; '.join(words)}"
        report = dataclasses.replace(report, notes=(*report.notes, note))
    if options.fusions is not None:
        from rmsnorm_export.rewrite.fusions import fuse

        model, fusions = fuse(
            model, options.fusions, seed=options.seed, prompts_alone=options.prompts_alone
        )
        report = dataclasses.replace(report, fusions=fusions)
        if fusions.residuals >= len(report.apart("residual")):
            report = dataclasses.replace(report, unfolded=report.apart("quantizer", "rotary"))
    if options.quantize is not None:
        from rmsnorm_export.rewrite.quantize import quantize

        model, quantized = quantize(model, options.quantize, seed=options.seed)
        report = dataclasses.replace(report, quantized=quantized)
    return model, report
