"""``bench``: a model's speed and memory, raw against each target and other optimizers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rmsnorm_export.benchmark.options import BenchOptions
from rmsnorm_export.cli import console, files
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.options import State
from rmsnorm_export.errors import VerificationError


@define(
    "bench", BenchOptions, short_help="Measure a model against its targets and other optimizers."
)
@click.argument("model")
@files.file_option("--report", "Write the result to FILE as JSON.")
@files.file_option("--png", "Write a plot to FILE; needs matplotlib.")
@files.file_option(
    "--html", "Write the result to FILE as a page for a browser: complete in itself, no network."
)
@files.force_option("Replace existing files of these.")
def command(
    state: State,
    model: str,
    report_path: Path | None,
    png_path: Path | None,
    html_path: Path | None,
    force: bool,
    **options: Any,
) -> None:
    """Measure MODEL, an ONNX file or - for stdin, against what each target makes of it.

    Every file is run once in a process of its own, for its memory and to compare its outputs with
    those of MODEL; those that are right are timed together, each once per round in random order.
    A second session of MODEL tells what is noise. Speed never decides the exit code; wrong outputs
    of a target do (4), those of a peer are said and not ranked.

    \b
    Example:
      rmsnorm-export bench model.onnx --shapes "ids=1x16,4x128" --peers onnxscript --png speed.png
    """
    from rmsnorm_export.benchmark.measure import bench

    paths = {"--report": report_path, "--png": png_path, "--html": html_path}
    files.check_files(paths, force=force, taken=(model,))
    if png_path is not None:
        from rmsnorm_export.benchmark.plot import check_matplotlib

        check_matplotlib()
    source = console.model_source(model)
    with console.progress(state, "Measuring") as step:
        result = bench(source, progress=step, **options)
    error = None
    if not result.passed:
        error = VerificationError(
            "A target gives other outputs than the model.",
            found=result.reason,
            fix="see the site by site proof: rmsnorm-export optimize MODEL --target ... --prove",
        )
    if report_path is not None:
        from rmsnorm_export.cli.failure import error_document
        from rmsnorm_export.records import to_json

        files.write_file(report_path, to_json(result, extra=error_document(error)), force=force)
    if png_path is not None:
        from rmsnorm_export.benchmark.plot import to_png

        files.write_file(png_path, to_png(result), force=force)
    files.write_page(html_path, result, force=force, error=error)
    console.finish(state, result, error)
