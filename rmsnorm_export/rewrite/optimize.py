"""``optimize`` and ``inspect`` in plain steps: load, plan, prove, describe, apply."""

from __future__ import annotations

import dataclasses
import os
import time

import onnx_ir as ir

from rmsnorm_export.graph.load import LoadedModel, Source, load_model, no_gc
from rmsnorm_export.graph.opset import default_opset
from rmsnorm_export.graph.save import SaveResult, WeightsPolicy, save_model, to_bytes
from rmsnorm_export.options import takes
from rmsnorm_export.rewrite.apply import apply
from rmsnorm_export.rewrite.describe import count_nodes, describe_plan, own_functions
from rmsnorm_export.rewrite.options import InspectOptions, OptimizeOptions
from rmsnorm_export.rewrite.plan import PlanOptions, make_plan, needed_opset, plan_at_opset
from rmsnorm_export.rewrite.prove import prove_plan
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.rewrite.unfold import remove_unused_own, unfold


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Result:
    """Outcome of `optimize`.

    Attributes:
        model: the optimized model; external weights are referenced, not loaded.
        report: what was done and why.
    """

    model: ir.Model
    report: Report
    source: LoadedModel

    def save(
        self, path: str | os.PathLike[str], *, weights: WeightsPolicy = "auto", force: bool = False
    ) -> SaveResult:
        """Write the model atomically.

        Args:
            path: the .onnx file to make.
            weights: what happens to external weights: ``reference`` them where they are (same
                folder only), ``link`` or ``copy`` the files, or ``embed`` them; ``auto`` references
                in the same folder and links elsewhere.
            force: overwrite an existing file.

        Raises:
            UsageError: the file exists and ``force`` is not given, or the policy cannot be met.
            InputError: the place cannot be written.
        """
        with no_gc():
            return save_model(self.model, path, source=self.source, weights=weights, force=force)

    def to_bytes(self, *, weights: WeightsPolicy = "auto") -> bytes:
        """The model as a serialized ModelProto.

        Args:
            weights: ``embed`` or ``reference`` for a model with external weights.

        Raises:
            InputError: the model has external weights and ``weights`` does not say what to do.
        """
        with no_gc():
            return to_bytes(self.model, weights=weights)


@takes(OptimizeOptions)
def optimize(source: Source, options: OptimizeOptions) -> Result:
    """Make every RMSNorm of a model one node.

    Args:
        source: path of an .onnx file, its bytes, an ``onnx.ModelProto`` or an ``onnx_ir.Model``;
            never changed.

    Returns:
        The new model and the report.

    Raises:
        InputError: the model cannot be read, or not be raised to the opset.
        UsageError: an option has no such value.
        BackendMissingError: ``prove`` without ONNX Runtime.
    """
    start = time.perf_counter()
    rules = PlanOptions(
        target=options.target,
        numerics=options.numerics,
        fold_residual=options.fold_residual,
        fold_gate=options.fold_gate,
    )
    with no_gc():
        loaded = load_model(source)
        version, nodes = default_opset(loaded.model), count_nodes(loaded.model)
        loaded = dataclasses.replace(loaded, model=unfold(loaded.model, rules.row))
        loaded, plan = plan_at_opset(loaded, rules, options.opset)
        plan, proofs = (
            prove_plan(plan, options.seed, options.progress) if options.prove else (plan, {})
        )
        report = describe_plan(loaded, plan, rules, proofs=proofs, drawings=options.drawings)
        apply(plan.model, plan.sites, plan.names)
        remove_unused_own(plan.model)
        report = dataclasses.replace(
            report,
            opset_before=version,
            opset_after=default_opset(plan.model),
            nodes_before=nodes,
            nodes_after=count_nodes(plan.model),
            functions=sum(1 for _ in own_functions(plan.model)),
            seconds=time.perf_counter() - start,
        )
    return Result(plan.model, report, loaded)


@takes(InspectOptions)
def inspect(source: Source, options: InspectOptions) -> Report:
    """Say which RMSNorms a model has, and what `optimize` would do with each; changes nothing.

    Args:
        source: as for `optimize`.
    """
    rules = PlanOptions(target=options.target, numerics=options.numerics)
    start = time.perf_counter()
    with no_gc():
        loaded = load_model(source)
        plan = make_plan(unfold(loaded.model, rules.row), rules)
        report = describe_plan(loaded, plan, rules, drawings=options.drawings)
        opset = max(report.opset_before, needed_opset(plan) if options.target else 0)
        return dataclasses.replace(report, opset_after=opset, seconds=time.perf_counter() - start)
