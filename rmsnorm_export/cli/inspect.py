"""``inspect``: what ``optimize`` would do, without doing it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files, first_problem, is_folder
from rmsnorm_export.cli.options import FILE
from rmsnorm_export.errors import Error
from rmsnorm_export.rewrite.options import HealthOptions, Requirement

if TYPE_CHECKING:
    from rmsnorm_export.rewrite.result import Report


@define(
    "inspect",
    HealthOptions,
    Requirement,
    params=[click.Argument(["models"], type=FILE, nargs=-1, required=True, metavar="MODEL...")],
)
def command(files: Files, models: tuple[str, ...], require: Any, **options: Any) -> None:
    """List the RMSNorms of each MODEL, and what looks like one but is not, with the reason.

    Nothing is written but reports. MODEL is an ONNX file, - for stdin, or a folder of graphs that
    an exporter of decoders has made. One that cannot be read does not end the rest.

    \b
    Examples:
      rmsnorm-export inspect model.onnx
      rmsnorm-export inspect --health --inputs sample.npz model.onnx
      rmsnorm-export inspect --require all --for onnxruntime models/*.onnx
    """
    from rmsnorm_export.api import inspect
    from rmsnorm_export.decoder.result import GenerationExport

    requirement = Requirement(require=require)
    files.check(*models, arrays := options["inputs"])
    files.remember(arrays)
    reports: dict[str, Report] = {}
    problem: Error | None = None
    with console.progress(files.state, "Looking for RMSNorms") as step:
        for number, model in enumerate(models):
            step(model, number, len(models))
            try:
                parts = inspect(files.source(model), **options).parts()
            except Error as error:
                problem = problem or error
                continue
            folder = f"{model.rstrip('/')}/" if len(models) > 1 else ""
            reports |= {f"{folder}{name}" if name else model: one for name, one in parts.items()}
    if problem and not reports:
        raise problem
    if len(models) == 1 and not is_folder(models[0]):
        report = reports[models[0]]
        files.finish(report, requirement.unmet(report))
        return
    seconds = sum(report.seconds for report in reports.values())
    path = Path(models[0]) if len(models) == 1 else None
    result = GenerationExport(path, reports, seconds=seconds)
    files.finish(result, problem or first_problem(reports, requirement)[0])
