"""optimize: every RMSNorm of the raw model becomes one node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmsnorm_export.errors import RequirementError
from rmsnorm_export.pipeline.settings import Settings
from rmsnorm_export.pipeline.steps.base import (
    MODEL_FILES,
    REPORT,
    Made,
    Progress,
    files_in,
    options,
    subject_inputs,
    subject_needs,
)
from rmsnorm_export.pipeline.tables import Optimize, StepName
from rmsnorm_export.rewrite.result import Report


def needs(settings: Settings) -> tuple[StepName, ...]:
    """The export."""
    return subject_needs(settings, "raw")


def inputs(settings: Settings) -> dict[str, str]:
    """The options and the raw model."""
    return options(settings.optimize) | subject_inputs(settings, "raw")


def check(settings: Settings, force: bool) -> None:
    """Nothing but this package."""


def arguments(table: Optimize) -> dict[str, Any]:
    """What ``rmsnorm_export.optimize`` is told, by [optimize] and for its proofs alike."""
    return {
        "target": table.target,
        "numerics": table.numerics,
        "opset": table.opset,
        "fold_residual": table.fold_residual,
        "fold_gate": table.fold_gate,
        "drawings": True,
    }


def run(settings: Settings, folder: Path, progress: Progress, force: bool) -> Made:  # noqa: ARG001
    """Optimize without proofs, and save."""
    progress("optimizing", 0, 2)
    from rmsnorm_export.records import to_json
    from rmsnorm_export.rewrite.optimize import optimize

    table = settings.optimize
    assert table is not None
    result = optimize(settings.onnx("raw"), **arguments(table))
    _check_required(result.report, table.require)
    progress("writing the model", 1, 2)
    saved = result.save(folder / f"{settings.name}.onnx", weights=table.weights)
    files = files_in(folder)
    (folder / REPORT).write_text(to_json(result.report), encoding="utf-8")
    head = result.report.headline()
    return Made(
        summary=head,
        facts={
            MODEL_FILES: files,
            "report": [REPORT],
            "fused": len(result.report.fused),
            "kept": len(result.report.kept),
            "refused": len(result.report.unfused),
            "bytes": saved.bytes,
            "weights": saved.weights,
            "notes": [*result.report.notes, *saved.notes],
        },
    )


def _check_required(report: Report, require: int | str | None) -> None:
    done = len(report.fused) + len(report.kept)
    refused = report.unfused
    met = done > 0 and not refused if require == "all" else done >= int(require or 0)
    if met:
        return
    reasons = ", ".join(dict.fromkeys(refusal.reason for refusal in refused))
    raise RequirementError(
        f"[optimize] require = {require!r} is not met.".replace("'", '"'),
        found=f"{done} norms are one node, {len(refused)} refused"
        + (f" ({reasons})" if refused else ""),
        fix="run rmsnorm-export inspect on the model for the reasons, or lower require",
    )
