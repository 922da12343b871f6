"""prove: every rewrite of [optimize] against the nodes that it replaced."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rmsnorm_export.errors import InputError, VerificationError
from rmsnorm_export.options import written
from rmsnorm_export.pipeline.steps.base import REPORT, Made, Step
from rmsnorm_export.pipeline.steps.optimize import optimized
from rmsnorm_export.pipeline.tables import Prove, Subject
from rmsnorm_export.rewrite.result import GenerationExport, Report
from rmsnorm_export.system.packages import require_package
from rmsnorm_export.system.progress import Progress
from rmsnorm_export.system.reading import read_file


class ProveStep(Step[Prove]):
    """Optimizes the raw model again, with proofs; the rewrites must be those of the first time."""

    name = "prove"
    packages = ("onnx", "onnx-ir", "onnxruntime", "onnxruntime-gpu", "numpy", "ml_dtypes")

    def subjects(self) -> tuple[Subject, ...]:
        """The model before and after."""
        return ("raw", "optimized")

    def options(self) -> dict[str, Any]:
        """With those of [optimize], which it does again."""
        assert self.settings.optimize is not None
        return written(self.settings.optimize.options) | super().options()

    def surroundings(self) -> dict[str, str]:
        """The library of kernels that is named."""
        paths = [] if self.table.kernels is None else [self.table.kernels]
        return self.settings.files.plain(paths, self.settings.document.path.parent, "[prove]")

    def check(self, force: bool) -> None:  # noqa: ARG002
        """ONNX Runtime, which takes the kernels that are named."""
        from rmsnorm_export.tensorrt.plugin.native import session_options

        require_package("onnxruntime", "[prove]", "[ort]")
        if self.table.kernels is not None:
            session_options(self.table.kernels)

    def run(self, folder: Path, progress: Progress, force: bool) -> Made:  # noqa: ARG002
        progress("reading the model", 0, 1)
        from rmsnorm_export.printable import number, plural

        assert self.settings.optimize is not None
        options = dataclasses.replace(
            self.settings.optimize.options,
            drawings=True,
            prove=True,
            seed=self.table.seed,
            kernels=None if self.table.kernels is None else str(self.table.kernels),
            progress=progress,
        )
        _, report, reports = optimized(self.settings, options)
        (folder / REPORT).write_text(self.document(report, folder), encoding="utf-8")
        failed = [site for one in reports.values() for site in one.unproved]
        fused = [site for one in reports.values() for site in one.fused]
        proofs = [site.proof for site in fused if site.proof is not None]
        failure = None
        if failed:
            failure = VerificationError(
                f"{plural(len(failed), 'rewrite')} without a proof that holds.",
                found=f"{failed[0].node}: {failed[0].found}",
                fix=f"see {self.home.name}/{REPORT}; --numerics exact allows the least, and please "
                "report it",
            )
        else:
            _check_same(self.settings.step_folder("optimize") / REPORT, report)
        if not proofs and not failed:
            summary = "nothing was rewritten, so there is nothing to prove"
        else:
            total = len(fused) + len(failed)
            holds = "proof holds" if total == 1 else "proofs hold"
            summary = f"{len(proofs)} of {total} {holds}"
        if proofs:
            worst = max(proof.max_ulp for proof in proofs)
            summary += f", at most {number(worst)} ulp from the original"
        return Made(
            summary=summary,
            facts={"report": [REPORT], "proofs": len(proofs), "failed": len(failed)},
            failure=failure,
        )


def _check_same(path: Path, report: Report | GenerationExport) -> None:
    """What was proved is what [optimize] did.

    Raises:
        VerificationError: it is not.
        InputError: the report of [optimize] cannot be read.
    """
    from rmsnorm_export.records import from_json

    try:
        before = _graphs(from_json(read_file(path), type(report)))
    except OSError as error:
        raise InputError(
            "The report of [optimize] cannot be read.",
            found=f"{path}: {error}",
            fix="run again with --force-step optimize",
        ) from error
    now = _graphs(report)
    if before != now:
        then, count = (sum(len(one.fused) for one in graphs.values()) for graphs in (before, now))
        raise VerificationError(
            "The rewrites that were proved are not those of the optimized model.",
            found=f"{then} sites then, {count} now, or with other nodes",
            fix="run again with --force-step optimize, and report it if it happens again",
        )


def _graphs(report: Report | GenerationExport) -> dict[str, Report]:
    """The report of each graph, without what differs from run to run."""
    reports = {"": report} if isinstance(report, Report) else report.reports
    return {name: _without_proofs(one) for name, one in reports.items()}


def _without_proofs(report: Report) -> Report:
    """A report without what differs from run to run, and without proofs."""
    sites = tuple(dataclasses.replace(site, proof=None) for site in report.fused)
    return dataclasses.replace(report, source="", seconds=0.0, fused=sites)
