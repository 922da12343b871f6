"""``inspect``: what ``optimize`` would do, without doing it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rmsnorm_export.cli import console, files
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.options import State
from rmsnorm_export.rewrite.options import InspectOptions


@define("inspect", InspectOptions, short_help="List the RMSNorms of a model, and what is none.")
@click.argument("model")
@files.html_option
@files.force_option("Replace an existing file of --html.")
def command(state: State, model: str, html_path: Path | None, force: bool, **options: Any) -> None:
    """List the RMSNorms of MODEL, and what looks like one but is not, with the reason.

    Nothing is written but the page of --html. MODEL is an ONNX file, or - for stdin.
    """
    import dataclasses

    import rmsnorm_export

    files.check_files({"--html": html_path}, force=force, taken=(model,))
    source = console.model_source(model)
    with console.progress(state, "Looking for RMSNorms"):
        report = rmsnorm_export.inspect(source, drawings=html_path is not None, **options)
    report = dataclasses.replace(report, source=console.source_name(model, report.source))
    size = files.file_size(model)
    files.write_page(html_path, report, force=force, facts=size, planned=True)
    console.finish(state, report, planned=True)
