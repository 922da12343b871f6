"""``optimize`` and ``inspect`` in plain steps: load, plan, prove, describe, apply."""

from __future__ import annotations

import dataclasses
import os
import time

import onnx_ir as ir

from rmsnorm_export.graph.load import LoadedModel, Source, load_model, no_gc
from rmsnorm_export.graph.opset import default_opset
from rmsnorm_export.graph.save import SaveResult, WeightsPolicy, save_model, to_bytes
from rmsnorm_export.lower.targets import Target, check_choices
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.rewrite.apply import apply
from rmsnorm_export.rewrite.describe import count_nodes, describe_plan, own_functions
from rmsnorm_export.rewrite.plan import PlanOptions, make_plan, needed_opset, plan_at_opset
from rmsnorm_export.rewrite.prove import prove_plan
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.rewrite.unfold import remove_unused_own, unfold
from rmsnorm_export.system.progress import Progress


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


def optimize(
    source: Source,
    *,
    target: Target = "portable",
    numerics: Numerics = "reordered",
    opset: int | None = None,
    fold_residual: bool = True,
    fold_gate: bool = True,
    prove: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
    drawings: bool = False,
) -> Result:
    """Make every RMSNorm of a model one node.

    Args:
        source: path of an .onnx file, its bytes, an ``onnx.ModelProto`` or an ``onnx_ir.Model``;
            never changed.
        target: ``portable`` (this package's operator with its function body in the file), ``onnx``
            (RMSNormalization, opset 23) or ``ort`` (ONNX Runtime's SimplifiedLayerNormalization).
        numerics: loosest class of rewrite allowed: ``exact`` (the rounding steps of the source),
            ``reordered`` (one rounding of a half type moved or dropped), ``upcast`` (a source that
            computes in a half type is computed in float32).
        opset: raise the default domain to this version; None: only if the target needs it.
        fold_residual: take the Add in front of a norm into the node where the target can.
        fold_gate: take a SiLU or sigmoid gate into the node where the target can.
        prove: run every site before and after in ONNX Runtime and in float64; a site whose proof
            fails keeps its original nodes and is reported as refused (``proof-failed``).
        seed: of the random inputs of the proofs.
        progress: called during long work with what is done (``proving``), the steps that are over
            and the steps in all.
        drawings: keep the old and new nodes of the sites for a report that draws them.

    Returns:
        The new model and the report.

    Raises:
        InputError: the model cannot be read, or not be raised to the opset.
        UsageError: an option has no such value.
        BackendMissingError: ``prove`` without ONNX Runtime.
    """
    check_choices(target, numerics)
    start = time.perf_counter()
    options = PlanOptions(
        target=target, numerics=numerics, fold_residual=fold_residual, fold_gate=fold_gate
    )
    with no_gc():
        loaded = load_model(source)
        version, nodes = default_opset(loaded.model), count_nodes(loaded.model)
        loaded = dataclasses.replace(loaded, model=unfold(loaded.model, options.row))
        loaded, plan = plan_at_opset(loaded, options, opset)
        plan, proofs = prove_plan(plan, seed, progress) if prove else (plan, {})
        report = describe_plan(loaded, plan, options, proofs=proofs, drawings=drawings)
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


def inspect(
    source: Source,
    *,
    target: Target | None = None,
    numerics: Numerics = "reordered",
    drawings: bool = False,
) -> Report:
    """Say which RMSNorms a model has, and what `optimize` would do with each; changes nothing.

    Args:
        source: as for `optimize`.
        target: judge for this target; None: only what is there.
        numerics: loosest class of rewrite allowed.
    """
    options = PlanOptions(target=target, numerics=numerics)
    check_choices(options.row.name if target is None else target, numerics)
    start = time.perf_counter()
    with no_gc():
        loaded = load_model(source)
        plan = make_plan(unfold(loaded.model, options.row), options)
        report = describe_plan(loaded, plan, options, drawings=drawings)
        opset = max(report.opset_before, needed_opset(plan) if target else 0)
        return dataclasses.replace(report, opset_after=opset, seconds=time.perf_counter() - start)
