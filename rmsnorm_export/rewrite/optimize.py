"""``optimize`` and ``inspect``: load, normalise, recognise, lower, prove, apply, report."""

from __future__ import annotations

import dataclasses
import time

import onnx_ir as ir

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.contract import Contract
from rmsnorm_export.graph.functions import count_nodes, own_functions
from rmsnorm_export.graph.load import Source, load_model, no_gc
from rmsnorm_export.graph.opset import default_opset
from rmsnorm_export.op.spec import FLOAT16
from rmsnorm_export.options import keywords
from rmsnorm_export.proof.comparison import Prepare
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.rewrite.apply import apply_plan
from rmsnorm_export.rewrite.at_opset import plan_at_opset
from rmsnorm_export.rewrite.describe import describe_plan
from rmsnorm_export.rewrite.normalise import normalise
from rmsnorm_export.rewrite.options import HealthOptions, InspectOptions, OptimizeOptions
from rmsnorm_export.rewrite.plan import Plan
from rmsnorm_export.rewrite.proofs import prove_loading, prove_sites
from rmsnorm_export.rewrite.result import Report, Result
from rmsnorm_export.rewrite.runs import fit_model, lacks_bfloat16, runs_in
from rmsnorm_export.rewrite.transposed import widen_transposes
from rmsnorm_export.runtime.inputs import sample_inputs

_WITH_PLUGIN = ("tensorrt", "tensorrt-rtx")
"""Runtimes in which a rotary embedding goes with its norm, unless the options say otherwise."""


def optimize_model(source: Source, options: OptimizeOptions) -> Result:
    """Make every RMSNorm of a model one node; arguments and errors as for ``optimize``."""
    start = time.perf_counter()
    options = _settled(options)
    with no_gc():
        loaded = load_model(source)
        contract = Contract(loaded.model)
        before = dataclasses.replace(loaded, model=loaded.model.clone()) if options.prove else None
        opset, nodes = default_opset(loaded.model), count_nodes(loaded.model)
        loaded = normalise(loaded, options)
        loaded, plan = plan_at_opset(loaded, options)  # recognise and lower
        plan, proofs = prove_sites(plan, options)
        report = describe_plan(loaded, plan, options, proofs, opset=opset, nodes=nodes)
        model, report = _carried_out(plan, report, options, contract)
        report = prove_loading(model, report, options, before)
    return Result(model, dataclasses.replace(report, seconds=time.perf_counter() - start))


def described(report: Report, model: ir.Model) -> Report:
    """Return the report with the facts of the model that it is of now."""
    return dataclasses.replace(
        report,
        opset_after=default_opset(model),
        nodes_after=count_nodes(model),
        functions=sum(1 for _ in own_functions(model)),
        runs_in=runs_in(model),
    )


def inspect_model(source: Source, options: HealthOptions) -> Report:
    """List the RMSNorms of a model; arguments and errors as for ``inspect``."""
    start, runtime = time.perf_counter(), options.runtime
    rewrite = OptimizeOptions(**keywords(options, InspectOptions))
    rewrite = rewrite if runtime is None else _settled(rewrite)
    with no_gc():
        loaded = load_model(source)
        contract = Contract(loaded.model)
        loaded = normalise(loaded, rewrite)
        opset, nodes = default_opset(loaded.model), count_nodes(loaded.model)
        raised, plan = plan_at_opset(loaded, rewrite)
        report = describe_plan(raised, plan, rewrite, {}, opset=opset, nodes=nodes)
        report = dataclasses.replace(report, runs_in=runs_in(loaded.model))
        if options.health or options.inputs is not None:
            from rmsnorm_export.health.analysis import analyze

            fields = analyze(loaded, options.inputs, options.target or "portable")
            report = dataclasses.replace(report, notes=raised.notes, **fields)
        if runtime is not None:  # only the result tells whether it runs there
            _, report = _carried_out(plan, report, rewrite, contract)
        return dataclasses.replace(report, planned=True, seconds=time.perf_counter() - start)


def _carried_out(
    plan: Plan, report: Report, options: OptimizeOptions, contract: Contract
) -> tuple[ir.Model, Report]:
    """Apply a plan; return the model as its runtime loads it, and the report with its facts.

    Raises:
        InputError: the runtime cannot run it.
    """
    apply_plan(plan)
    model = plan.model
    if any(site.part.dtype == FLOAT16 for site in plan.sites):
        new = {node for site in plan.sites for node in site.nodes}
        notes = widen_transposes(model, plan.types, new, options.consumer)
        report = dataclasses.replace(report, notes=(*report.notes, *notes))
    if options.dtype is None:  # else the runtime takes what the conversion makes of it
        model, report = fitted(model, report, options)
    contract.restore(model)
    return model, described(report, model)


def _settled(options: OptimizeOptions) -> OptimizeOptions:
    """Return the options with the runtime's choices where the user made none.

    A conversion to half precision rounds anew, so that sums may be float32 for it.
    """
    runtime, rotary, numerics = options.consumer, options.fold_rotary, options.numerics
    if rotary is None:
        rotary = runtime is not None and runtime.name in _WITH_PLUGIN
    if options.dtype is not None and numerics != "unclamped":
        numerics = "upcast"
    return dataclasses.replace(options, target=options.form, fold_rotary=rotary, numerics=numerics)


def in_half(
    model: ir.Model, report: Report, options: OptimizeOptions, prepare: Prepare
) -> tuple[ir.Model, Report]:
    """Return the model in the half type that the options ask for, as its runtime loads it.

    Args:
        model, report: after `optimize_model`; changed.
        options: with a ``dtype``.
        prepare: makes random inputs such as the model is made for.

    Raises:
        Error: as of `to_half`; or the runtime cannot run it.
    """
    from rmsnorm_export.precision.half import to_half

    assert options.dtype is not None
    sizes = {"shapes": options.shapes, "dims": options.dims}
    samples = tuple(sample_inputs(model, options.inputs, options.seed, **sizes))
    model, precision = to_half(model, options.dtype, samples, prepare, io=options.half_io)
    notes: tuple[str, ...] = ()
    if options.dtype == "f16":
        nodes, types = set(model.graph.all_nodes()), Types(model)
        beside = "a norm or a Cast"
        notes = widen_transposes(model, types, nodes, options.consumer, beside=beside)
    elif (runtime := options.consumer) is not None and (lacks := lacks_bfloat16(model, runtime)):
        what, fix = f"The runtime {runtime.label} lacks bfloat16.", "use --dtype f16, or another"
        raise InputError(what, found=lacks, fix=f"{fix} runtime, as onnxruntime-gpu")
    report = dataclasses.replace(report, precision=precision, notes=(*report.notes, *notes))
    return fitted(model, report, options)


def fitted(model: ir.Model, report: Report, options: OptimizeOptions) -> tuple[ir.Model, Report]:
    """Return the model as its runtime loads it.

    Raises:
        InputError: the runtime cannot run it.
    """
    if (runtime := options.consumer) is not None:
        model, changes = fit_model(model, runtime)
        note = f"{options.runtime} gets the target {options.form}: {runtime.why} ({runtime.source})"
        notes = (*report.notes, "; ".join([note, *changes]))
        report = dataclasses.replace(report, notes=notes, runtime=options.runtime)
    return model, report
