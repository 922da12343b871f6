"""``inspect``: what ``optimize`` would do, without doing it."""

from __future__ import annotations

from typing import Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files, file_options, file_size
from rmsnorm_export.cli.folder import inspect_several, is_folder
from rmsnorm_export.cli.options import FILE, State
from rmsnorm_export.rewrite.options import InspectOptions, InspectRequirement


@define(
    "inspect",
    InspectOptions,
    InspectRequirement,
    short_help="List the RMSNorms of models, and what is none.",
)
@click.argument("models", type=FILE, nargs=-1, required=True, metavar="MODEL...")
@file_options("--html")
def command(
    state: State, models: tuple[str, ...], files: Files, require: Any, **options: Any
) -> None:
    """List the RMSNorms of each MODEL, and what looks like one but is not, with the reason.

    Nothing is written but the page of --html. MODEL is an ONNX file, - for stdin, or a folder of
    graphs that an exporter of decoders has made.

    \b
    Examples:
      rmsnorm-export inspect model.onnx
      rmsnorm-export inspect --require all --target ort models/*.onnx
    """
    import dataclasses

    import rmsnorm_export

    requirement = InspectRequirement(require=require)
    files.check(*models)
    if len(models) > 1 or is_folder(models[0]):
        inspect_several(models, files, requirement, options)
        return
    model = models[0]
    source = files.source(model)
    with console.progress(state, "Looking for RMSNorms"):
        report = rmsnorm_export.inspect(source, drawings=files.drawn, **options)
    report = dataclasses.replace(report, source=console.source_name(model, report.source))
    files.finish(report, requirement.unmet(report), inputs=[model], facts=file_size(model))
