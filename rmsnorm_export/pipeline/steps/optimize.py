"""optimize: every RMSNorm of the raw model becomes one node."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from rmsnorm_export.errors import RequirementError
from rmsnorm_export.options import keywords
from rmsnorm_export.pipeline.steps.base import MODEL_FILES, REPORT, Made, Step, files_in
from rmsnorm_export.pipeline.tables import Optimize
from rmsnorm_export.system.progress import Progress


class OptimizeStep(Step[Optimize]):
    """Optimizes without proofs, and saves."""

    name = "optimize"
    packages = ("onnx", "onnx-ir", "onnxscript", "numpy", "ml_dtypes")

    def run(self, folder: Path, progress: Progress, force: bool) -> Made:  # noqa: ARG002
        progress("optimizing", 0, 2)
        from rmsnorm_export.rewrite.optimize import optimize

        settings, table = self.settings, self.table
        options = dataclasses.replace(table.options, drawings=True)
        result = optimize(settings.onnx("raw"), **keywords(options))
        report = result.report
        if (unmet := table.requirement.unmet(report)) is not None:
            shown = json.dumps(table.requirement.require)
            raise RequirementError(
                f"[optimize] require = {shown} is not met.",
                found=unmet.found,
                fix="run rmsnorm-export inspect on the model for the reasons, or lower require",
            )
        progress("writing the model", 1, 2)
        saved = result.save(folder / f"{settings.name}.onnx", weights=table.weights)
        files = files_in(folder)
        (folder / REPORT).write_text(self.document(report, folder, *files), encoding="utf-8")
        return Made(
            summary=report.headline(),
            facts={
                MODEL_FILES: files,
                "report": [REPORT],
                "fused": len(report.fused),
                "kept": len(report.kept),
                "refused": len(report.unfused),
                "bytes": saved.bytes,
                "weights": saved.weights,
                "notes": [*report.notes, *saved.notes],
            },
        )
