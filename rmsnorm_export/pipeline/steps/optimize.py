"""optimize: every RMSNorm of the raw model becomes one node."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmsnorm_export.errors import RequirementError
from rmsnorm_export.options import keywords
from rmsnorm_export.pipeline.settings import Settings
from rmsnorm_export.pipeline.steps.base import MODEL_FILES, REPORT, Made, Step, files_in
from rmsnorm_export.pipeline.tables import Optimize
from rmsnorm_export.rewrite.options import OptimizeOptions
from rmsnorm_export.system.progress import Progress

if TYPE_CHECKING:
    from rmsnorm_export.rewrite.result import GenerationExport, Report
    from rmsnorm_export.rewrite.rewritten import FolderResult, Result


class OptimizeStep(Step[Optimize]):
    """Optimizes without proofs, and saves."""

    name = "optimize"
    packages = ("onnx", "onnx-ir", "onnxscript", "numpy", "ml_dtypes")

    def run(self, folder: Path, progress: Progress, force: bool) -> Made:  # noqa: ARG002
        progress("optimizing", 0, 2)
        settings, table = self.settings, self.table
        options = dataclasses.replace(table.options, drawings=True)
        result, report, reports = optimized(settings, options)
        unmet = next(filter(None, map(table.requirement.unmet, reports.values())), None)
        if unmet is not None:
            shown = json.dumps(table.requirement.require)
            raise RequirementError(
                f"[optimize] require = {shown} is not met.",
                found=unmet.found,
                fix="run rmsnorm-export inspect on the model for the reasons, or lower require",
            )
        progress("writing the model", 1, 2)
        place = folder / settings.onnx("optimized").name
        saved: Any = result.save(place, weights=table.weights)
        facts, more = {}, ()
        if not settings.of_graphs:
            facts, more = {"bytes": saved.bytes, "weights": saved.weights}, saved.notes
        files = files_in(folder)
        (folder / REPORT).write_text(self.document(report, folder, *files), encoding="utf-8")
        return Made(
            summary="; ".join(
                f"{name}: {one.headline()}" if name else one.headline()
                for name, one in reports.items()
            ),
            facts={
                MODEL_FILES: files,
                "report": [REPORT],
                "fused": sum(len(one.fused) for one in reports.values()),
                "kept": sum(len(one.kept) for one in reports.values()),
                "refused": sum(len(one.unfused) for one in reports.values()),
                **facts,
                "notes": [*dict.fromkeys(n for one in reports.values() for n in one.notes), *more],
            },
        )


def optimized(
    settings: Settings, options: OptimizeOptions
) -> tuple[Result | FolderResult, Report | GenerationExport, dict[str, Report]]:
    """The raw model optimized, the report of it, and that of each graph."""
    from rmsnorm_export.rewrite.optimize import optimize
    from rmsnorm_export.rewrite.result import GenerationExport

    raw = settings.onnx("raw")
    if not settings.of_graphs:
        result = optimize(raw, **keywords(options))
        return result, result.report, {"": result.report}
    made: Any = optimize(raw, **keywords(options))
    place = settings.onnx("optimized")
    return made, GenerationExport(place, made.reports, (), "", made.seconds), made.reports
