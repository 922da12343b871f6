"""``bench``: a model's speed and memory, raw against each target and other optimizers."""

from __future__ import annotations

from typing import Any

import click

from rmsnorm_export.benchmark.options import BenchOptions
from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files, file_options
from rmsnorm_export.cli.folder import is_folder
from rmsnorm_export.cli.options import FILE, State
from rmsnorm_export.errors import UsageError, VerificationError


@define(
    "bench", BenchOptions, short_help="Measure a model against its targets and other optimizers."
)
@click.argument("model", type=FILE)
@file_options("--report", "--png", "--html")
def command(state: State, model: str, files: Files, **options: Any) -> None:
    """Measure MODEL, an ONNX file or - for stdin, against what each target makes of it.

    Where MODEL is a folder of graphs, each is measured by itself; a plot is of one file. An engine,
    or a folder of them, is timed alone, where a GPU is.

    Every file is run once in a process of its own, for its memory and to compare its outputs with
    those of MODEL; those that are right are timed together, each once per round in random order.
    A second session of MODEL tells what is noise. Speed never decides the exit code; wrong outputs
    of a target do (4), those of a peer are said and not ranked.

    \b
    Example:
      rmsnorm-export bench model.onnx --shapes "ids=1x16,4x128" --peers onnxscript --png speed.png
    """
    from rmsnorm_export.benchmark.measure import bench
    from rmsnorm_export.tensorrt.engine.backends import is_engine

    files.check(model)
    if "--png" in files.paths:
        from rmsnorm_export.benchmark.plot import check_matplotlib

        check_matplotlib()
    if is_folder(model):
        if "--png" in files.paths:
            raise UsageError(
                "A plot is of one file.", found=f"--png, and {model} is a folder", fix="use --html"
            )
        if options["generate"] is not None:
            from rmsnorm_export.benchmark.generation import bench_generation

            with console.progress(state, "Measuring") as step:
                text = bench_generation(model, progress=step, **options)
            files.finish(text, _wrong(text.reason), inputs=[model])
            return
        from rmsnorm_export.benchmark.folder import bench_folder

        with console.progress(state, "Measuring") as step:
            made = bench_folder(model, progress=step, **options)
        wrong = [f"{name}: {one.reason}" for name, one in made.results.items() if not one.passed]
        files.finish(made, _wrong("; ".join(wrong)), inputs=[model])
        return
    if "--png" in files.paths and is_engine(model):
        raise UsageError(
            "A plot compares, and an engine is timed alone.", found="--png", fix="use --html"
        )
    source = files.source(model)
    with console.progress(state, "Measuring") as step:
        result = bench(source, progress=step, **options)
    files.finish(result, _wrong(result.reason), inputs=[model])


def _wrong(reason: str) -> VerificationError | None:
    """The error of targets with other outputs; None where there are none."""
    if not reason:
        return None
    return VerificationError(
        "A target gives other outputs than the model, or none that can be compared.",
        found=reason,
        fix="see the site by site proof: rmsnorm-export optimize MODEL --target ... --prove",
    )
