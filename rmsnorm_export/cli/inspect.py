"""``inspect``: what ``optimize`` would do, without doing it."""

from __future__ import annotations

from typing import Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files, file_options, file_size
from rmsnorm_export.cli.folder import is_folder
from rmsnorm_export.cli.options import State
from rmsnorm_export.rewrite.options import InspectOptions


@define("inspect", InspectOptions, short_help="List the RMSNorms of a model, and what is none.")
@click.argument("model")
@file_options("--html")
def command(state: State, model: str, files: Files, **options: Any) -> None:
    """List the RMSNorms of MODEL, and what looks like one but is not, with the reason.

    Nothing is written but the page of --html. MODEL is an ONNX file, - for stdin, or a folder of
    graphs that an exporter of decoders has made.
    """
    import dataclasses

    import rmsnorm_export

    files.check(model)
    if is_folder(model):
        with console.progress(state, "Looking for RMSNorms"):
            made = rmsnorm_export.inspect_folder(model, drawings=files.drawn, **options)
        files.finish(made, inputs=[model])
        return
    source = files.source(model)
    with console.progress(state, "Looking for RMSNorms"):
        report = rmsnorm_export.inspect(source, drawings=files.drawn, **options)
    report = dataclasses.replace(report, source=console.source_name(model, report.source))
    files.finish(report, inputs=[model], facts=file_size(model))
