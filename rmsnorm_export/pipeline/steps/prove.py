"""prove: every rewrite of [optimize] against the nodes that it replaced."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from rmsnorm_export.errors import ExitCode, InputError, VerificationError
from rmsnorm_export.pipeline.result import StepFailure
from rmsnorm_export.pipeline.settings import Settings
from rmsnorm_export.pipeline.steps import optimize as optimizing
from rmsnorm_export.pipeline.steps.base import (
    REPORT,
    Made,
    Progress,
    options,
    require_package,
    subject_inputs,
    subject_needs,
)
from rmsnorm_export.pipeline.tables import StepName
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.rewrite.result import Report

_PROOF_FAILED = "proof-failed"


def needs(settings: Settings) -> tuple[StepName, ...]:
    """The raw and the optimized model."""
    return (*subject_needs(settings, "raw"), "optimize")


def inputs(settings: Settings) -> dict[str, str]:
    """The options, those of [optimize] among them, and both models."""
    return {
        **options(settings.optimize, "weights", "require"),
        **options(settings.prove),
        **subject_inputs(settings, "raw"),
        **subject_inputs(settings, "optimized"),
    }


def check(settings: Settings, force: bool) -> None:  # noqa: ARG001
    """ONNX Runtime."""
    require_package("onnxruntime", "[prove]", 'pip install "rmsnorm-export[ort]"')


def run(settings: Settings, folder: Path, progress: Progress, force: bool) -> Made:  # noqa: ARG001
    """Optimize the raw model again, with proofs, and compare what was done with the first time."""
    progress("reading the model", 0, 1)
    from rmsnorm_export.printable import number
    from rmsnorm_export.records import to_json
    from rmsnorm_export.rewrite.optimize import optimize

    assert settings.optimize is not None
    assert settings.prove is not None
    result = optimize(
        settings.onnx("raw"),
        **optimizing.arguments(settings.optimize),
        prove=True,
        seed=settings.prove.seed,
        progress=progress,
    )
    report = result.report
    (folder / REPORT).write_text(to_json(report), encoding="utf-8")
    failed = [refusal for refusal in report.refused if refusal.reason == _PROOF_FAILED]
    proofs = [site.proof for site in report.fused if site.proof is not None]
    failure = None
    if failed:
        failure = StepFailure(
            f"{len(failed)} proofs failed.",
            f"{failed[0].node}: {failed[0].found}",
            f"see {settings.step_folder('prove').name}/{REPORT}; --numerics exact allows the "
            "least, and please report it",
            int(ExitCode.VERIFICATION),
        )
    else:
        _check_same(settings.step_folder("optimize") / REPORT, report)
    worst = _worst(proofs)
    if not proofs and not failed:
        summary = "nothing was rewritten, so there is nothing to prove"
    else:
        summary = f"{len(proofs)} of {len(report.fused) + len(failed)} proofs hold"
        summary += f", at most {number(worst.max_ulp)} ulp from the original" if worst else ""
    return Made(
        summary=summary,
        facts={"report": [REPORT], "proofs": len(proofs), "failed": len(failed)},
        failure=failure,
    )


def _worst(proofs: list[Proof]) -> Proof | None:
    return max(proofs, key=lambda proof: proof.max_ulp, default=None)


def _check_same(path: Path, report: Report) -> None:
    """What was proved is what [optimize] did.

    Raises:
        VerificationError: it is not.
        InputError: the report of [optimize] cannot be read.
    """
    from rmsnorm_export.records import from_json

    try:
        before = from_json(path.read_text("utf-8"), Report)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            "The report of [optimize] cannot be read.",
            found=f"{path}: {error}",
            fix="run again with --force-step optimize",
        ) from error
    if _plain(before) != _plain(report):
        raise VerificationError(
            "The rewrites that were proved are not those of the optimized model.",
            found=f"{len(before.fused)} sites then, {len(report.fused)} now, or with other nodes",
            fix="run again with --force-step optimize, and report it if it happens again",
        )


def _plain(report: Report) -> Report:
    """A report without what differs from run to run, and without proofs."""
    sites = tuple(dataclasses.replace(site, proof=None) for site in report.fused)
    return dataclasses.replace(report, source="", seconds=0.0, fused=sites)
