"""A folder of graphs where a command takes a model: the same for each, and one report."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmsnorm_export.cli import console
from rmsnorm_export.cli.files import Files, size_text
from rmsnorm_export.cli.outcome import failed_proofs
from rmsnorm_export.errors import Error, RequirementError, UsageError

if TYPE_CHECKING:
    from rmsnorm_export.compare.result import Verification
    from rmsnorm_export.graph.policy import WeightsPolicy
    from rmsnorm_export.rewrite.options import Requirement
    from rmsnorm_export.rewrite.result import GenerationExport, Report


def is_folder(argument: str) -> bool:
    """Whether a MODEL argument is a folder."""
    with contextlib.suppress(OSError, ValueError):
        return argument != console.STDIO and Path(argument).is_dir()
    return False


def first_problem(
    reports: Mapping[str, Report], requirement: Requirement
) -> tuple[RequirementError | None, Error | None]:
    """The requirement that a graph does not meet; and that, or a proof that failed."""
    unmet = next(filter(None, map(requirement.unmet, reports.values())), None)
    return unmet, unmet or next(filter(None, map(failed_proofs, reports.values())), None)


def optimize_in_folder(
    model: str,
    output: str,
    files: Files,
    requirement: Requirement,
    weights: WeightsPolicy,
    options: Mapping[str, Any],
) -> None:
    """``optimize`` with a folder as MODEL."""
    from rmsnorm_export.graph.bundle import check_folder, open_folder
    from rmsnorm_export.rewrite.folder import optimize_folder
    from rmsnorm_export.rewrite.result import GenerationExport

    open_folder(model)
    if output == console.STDIO:
        raise UsageError(
            "What comes of a folder is a folder.",
            found=f"-o -, and {model} is a folder",
            fix="give the name of a folder, e.g. -o optimized/",
        )
    files.check(model, output)
    folder = check_folder(output, force=files.force)
    with console.progress(files.state, "Optimizing") as step:
        result = optimize_folder(model, progress=step, drawings=files.drawn, **options)
    unmet, error = first_problem(result.reports, requirement)
    made = GenerationExport(folder, result.reports, (), "", result.seconds)
    if unmet is None:
        files.remember(model)  # before the output may take its place
        with console.progress(files.state, "Writing"):
            made = result.save(output, weights=weights, force=files.force)
    finish_folder(files, model, made, error)


def finish_folder(
    files: Files,
    source: str,
    made: GenerationExport,
    error: Error | None,
    parity: Verification | None = None,
) -> None:
    """Print what became of a folder, write the report, and end the command.

    Args:
        files: of the report.
        source: SOURCE or MODEL of the command.
        made: the folder.
        error: what the command ends with.
        parity: the comparison with PyTorch, where there was one.
    """
    from rmsnorm_export.show import show_lines
    from rmsnorm_export.show.verification import verification_section

    verbose = files.state.verbosity
    written = ["nothing was written"] if not made.files else []
    written += [f"wrote {path} ({size_text(path.stat().st_size)})" for path in made.files]
    lines = [*show_lines(made, verbose=verbose, output=written)]
    extra: dict[str, object] = {}
    sections = []
    if parity is not None:
        compared = ("PyTorch", str(made.path))
        extra["verification"] = parity
        lines += ["", *show_lines(parity, verbose=verbose, compared=compared)]
        sections = [verification_section(parity, *compared)]
    files.finish(
        made,
        error,
        inputs=[source],
        outputs=list(made.files),
        lines=lines,
        extra=extra,
        sections=sections,
    )
