"""A folder of graphs, or several models, where a command takes one: the same for each, and one
report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmsnorm_export.cli import console
from rmsnorm_export.cli.files import Files, size_text
from rmsnorm_export.cli.outcome import failed_proofs
from rmsnorm_export.errors import Error, RequirementError, UsageError
from rmsnorm_export.printable import plural, short

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
    unmet = next(
        filter(None, (requirement.unmet(report, name=name) for name, report in reports.items())),
        None,
    )
    return unmet, unmet or next(filter(None, map(failed_proofs, reports.values())), None)


def inspect_several(
    models: Sequence[str], files: Files, requirement: Requirement, options: Mapping[str, Any]
) -> None:
    """``inspect`` with a folder or several models; one that cannot be read does not end the rest.

    Raises:
        ReportedError: a model cannot be read, or a requirement is not met.
    """
    from rmsnorm_export.rewrite.folder import inspect_folder
    from rmsnorm_export.rewrite.optimize import inspect
    from rmsnorm_export.rewrite.result import GenerationExport

    reports: dict[str, Report] = {}
    problem: Error | None = None
    start = time.perf_counter()
    with console.progress(files.state, "Looking for RMSNorms") as step:
        for number, model in enumerate(models):
            if len(models) > 1:
                step(model, number, len(models))
            try:
                if is_folder(model):
                    folder = inspect_folder(model, drawings=files.drawn, **options).reports
                    inside = "" if len(models) == 1 else f"{model.rstrip('/')}/"
                    reports |= {f"{inside}{name}": one for name, one in folder.items()}
                else:
                    reports[model] = inspect(files.source(model), drawings=files.drawn, **options)
            except Error as error:
                problem = problem or error
    if problem and not reports:
        raise problem
    path = Path(models[0]) if len(models) == 1 else Path()
    made = GenerationExport(path, reports, (), "", time.perf_counter() - start)
    files.finish(made, problem or first_problem(reports, requirement)[0], inputs=models)


def optimize_several(
    models: Sequence[str],
    output: str,
    files: Files,
    requirement: Requirement,
    weights: WeightsPolicy,
    options: Mapping[str, Any],
) -> None:
    """``optimize`` with several files: each is written to the folder ``output`` under its name.

    A model that cannot be read, or does not meet the requirement, does not end the rest.

    Raises:
        UsageError, InputError: an output cannot be written; nothing was done.
        ReportedError: a model failed.
    """
    from rmsnorm_export.graph.bundle import check_folder
    from rmsnorm_export.graph.save import check_output
    from rmsnorm_export.rewrite.optimize import optimize
    from rmsnorm_export.rewrite.result import GenerationExport

    places = {model: Path(output, Path(model).name) for model in models}
    wrong = [model for model in models if model == console.STDIO or is_folder(model)]
    if wrong or output == console.STDIO or Path(output).suffix == ".onnx":
        raise UsageError(
            "Several models are files, and their output is a folder.",
            found=f"{len(models)} models, {short([*wrong, models[-1]][0])} among them, and "
            f"-o {short(output)}",
            fix="give stdin and folders of graphs alone, and -o FOLDER for several files",
        )
    if len(set(places.values())) < len(models):
        raise UsageError(
            "Two models would be written to the same file.",
            found=f"{len(models)} models with {plural(len(set(places.values())), 'name')}",
            fix="optimize those of one name by themselves",
        )
    files.check(*models, *places.values())
    folder = check_folder(output, force=True)
    for model, place in places.items():
        if folder.exists():
            check_output(place, source=model, force=files.force)
    reports: dict[str, Report] = {}
    written: list[Path] = []
    problem: Error | None = None
    start = time.perf_counter()
    for model, place in places.items():
        files.remember(model)  # before the output may take its place
        with console.progress(files.state, f"Optimizing {short(model)}") as step:
            try:
                result = optimize(model, progress=step, drawings=files.drawn, **options)
                reports[model] = result.report
                if requirement.unmet(result.report) is None:
                    folder.mkdir(exist_ok=True)
                    saved = result.save(place, weights=weights, force=files.force)
                    written += [saved.path, *saved.data_files]
            except Error as error:
                problem = problem or error
    if problem and not reports:
        raise problem
    made = GenerationExport(folder, reports, tuple(written), "", time.perf_counter() - start)
    finish_folder(files, models, made, problem or first_problem(reports, requirement)[1])


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
    finish_folder(files, [model], made, error)


def finish_folder(
    files: Files,
    sources: Sequence[str],
    made: GenerationExport,
    error: Error | None,
    parity: Verification | None = None,
) -> None:
    """Print what became of a folder, write the report, and end the command.

    Args:
        files: of the report.
        sources: SOURCE or the MODELs of the command.
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
        inputs=sources,
        outputs=list(made.files),
        lines=lines,
        extra=extra,
        sections=sections,
    )
