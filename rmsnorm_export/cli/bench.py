"""``bench``: a model's speed and memory, raw against each target and other optimizers."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from rmsnorm_export.cli import console, report_file
from rmsnorm_export.cli.options import (
    TARGETS,
    State,
    format_option,
    logging_options,
    numerics_option,
    seed_option,
)
from rmsnorm_export.errors import ExitCode

if TYPE_CHECKING:
    from rmsnorm_export.benchmark.result import Benchmark
    from rmsnorm_export.cli.failure import Failure
    from rmsnorm_export.lower.targets import Target
    from rmsnorm_export.op.numerics import Numerics

_PEERS = ("ort.transformers", "onnxscript", "onnxsim", "onnxslim")
_PROVIDERS = ("cpu", "cuda", "tensorrt")


def _names(
    known: tuple[str, ...],
) -> Callable[[click.Context, click.Parameter, str | None], tuple[str, ...] | None]:
    """Names out of ``known``, with commas between them; ``none`` for none of them."""

    def read(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...] | None:
        if value is None:
            return None
        names = tuple(name.strip() for name in value.split(","))
        if names == ("none",):
            return ()
        for name in names:
            if name not in known:
                raise click.BadParameter(f"{name!r} is not one of {', '.join(known)}")
        return names

    return read


@click.command("bench", short_help="Measure a model against its targets and other optimizers.")
@click.argument("model")
@click.option(
    "--targets",
    callback=_names(TARGETS),
    default=",".join(TARGETS),
    show_default=True,
    metavar="NAME,...",
    help="What to make of MODEL and measure; none: only peers.",
)
@click.option(
    "--peers",
    callback=_names(_PEERS),
    default="none",
    show_default=True,
    metavar="NAME,...",
    help=f"Other optimizers, run in processes of their own: {', '.join(_PEERS)}.",
)
@click.option(
    "--provider",
    "providers",
    callback=_names(_PROVIDERS),
    metavar="NAME,...",
    help="cpu, cuda, tensorrt.  [default: all that this ONNX Runtime has]",
)
@click.option(
    "--shapes",
    metavar='"NAME=SHAPE,...;..."',
    help='Where to measure, e.g. "ids=1x16,1x128,4x128"; the n-th shapes of all inputs belong '
    "together.  [default: 1x16, 1x128 and 4x128 for a batch and a length]",
)
@click.option(
    "--seconds",
    type=float,
    default=5.0,
    show_default=True,
    metavar="S",
    help="Time to measure at each shape on each provider; at least 20 rounds are made.",
)
@click.option("--rounds", type=int, metavar="N", help="Number of rounds, in place of --seconds.")
@click.option(
    "--threads",
    type=int,
    metavar="N",
    help="Threads of every session.  [default: one per core]",
)
@click.option(
    "--peer-seconds",
    type=float,
    default=300.0,
    show_default=True,
    metavar="S",
    help="When a peer's optimizer is stopped.",
)
@numerics_option
@seed_option("Of the random inputs and of the order within a round.")
@click.option(
    "--report",
    "report_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the result to FILE as JSON.",
)
@click.option(
    "--png",
    "png_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a plot to FILE; needs matplotlib.",
)
@click.option(
    "--html",
    "html_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the result to FILE as a page for a browser: complete in itself, no network.",
)
@click.option("--force", is_flag=True, help="Replace existing files of these.")
@format_option
@logging_options
@click.pass_context
def command(
    context: click.Context,
    model: str,
    targets: tuple[str, ...],
    peers: tuple[str, ...],
    providers: tuple[str, ...] | None,
    shapes: str | None,
    seconds: float,
    rounds: int | None,
    threads: int | None,
    peer_seconds: float,
    numerics: Numerics,
    seed: int,
    report_path: Path | None,
    png_path: Path | None,
    html_path: Path | None,
    force: bool,
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
    state = context.ensure_object(State)
    with console.logging_to_stderr(state):
        from rmsnorm_export.benchmark.measure import bench
        from rmsnorm_export.cli.source import model_source
        from rmsnorm_export.show.benchmark_text import benchmark_lines

        files = {"--report": report_path, "--png": png_path, "--html": html_path}
        _check(files, model, force=force)
        with console.progress(state, "Measuring") as step:
            result = bench(
                model_source(model),
                targets=cast("tuple[Target, ...]", targets),
                peers=peers,
                providers=providers,
                shapes=shapes,
                seconds=seconds,
                rounds=rounds,
                seed=seed,
                numerics=numerics,
                threads=threads,
                peer_seconds=peer_seconds,
                progress=step,
            )
        failure = _failure(result)
        _write(files, result, failure, force=force)
        if state.json:
            console.show_json(state, result, {"error": failure.as_dict()} if failure else None)
        else:
            console.show(state, benchmark_lines(result, verbose=state.verbosity))
    if failure is not None:
        from rmsnorm_export.cli.failure import ReportedError

        raise ReportedError(failure)


def _check(files: dict[str, Path | None], model: str, *, force: bool) -> None:
    """Before the work: every file can be written, and matplotlib is there for a PNG."""
    taken = [model]
    for option, path in files.items():
        if path is not None:
            report_file.check(path, force=force, taken=tuple(taken), option=option)
            taken.append(os.fspath(path))
    if files["--png"] is not None:
        from rmsnorm_export.benchmark.plot import check_matplotlib

        check_matplotlib()


def _failure(result: Benchmark) -> Failure | None:
    if result.passed:
        return None
    from rmsnorm_export.cli.failure import Failure

    return Failure(
        "A target gives other outputs than the model",
        result.reason,
        "see the site by site proof: rmsnorm-export optimize MODEL --target ... --prove",
        ExitCode.VERIFICATION,
    )


def _write(
    files: dict[str, Path | None], result: Benchmark, failure: Failure | None, *, force: bool
) -> None:
    """The files that were asked for, each whole or not at all."""
    if path := files["--report"]:
        from rmsnorm_export.records import to_json

        extra = {"error": failure.as_dict()} if failure else None
        report_file.write(path, to_json(result, extra=extra), force=force)
    if path := files["--png"]:
        from rmsnorm_export.benchmark.plot import to_png

        report_file.write(path, to_png(result), force=force)
    if path := files["--html"]:
        from rmsnorm_export.show.benchmark_page import benchmark_page
        from rmsnorm_export.show.page import About

        about = About(
            date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            problem=None if failure is None else (failure.what, failure.found, failure.fix),
        )
        report_file.write(path, benchmark_page(result, about), force=force)
