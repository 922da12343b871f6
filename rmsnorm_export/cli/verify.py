"""``verify``: run two models, each on its backend, on the same inputs and compare every output."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmsnorm_export.cli import console, html_file
from rmsnorm_export.cli.options import State, format_option, logging_options, seed_option
from rmsnorm_export.compare.backends import backend_choices
from rmsnorm_export.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from rmsnorm_export.compare.backends import BackendChoice
    from rmsnorm_export.compare.result import Difference, OutputComparison, Verification
    from rmsnorm_export.show.report_text import Line

_BACKEND = click.Choice(backend_choices())
_BACKEND_HELP = (
    "What runs A. auto: PyTorch for a PyTorch source, for an engine its own, else onnxruntime,"
    " which is ONNX Runtime on the CPU.  [default: auto]"
)


def _shapes(
    _: click.Context, __: click.Parameter, values: tuple[str, ...]
) -> dict[str, tuple[tuple[int, ...], ...]]:
    """What can be read without the models is read first."""
    from rmsnorm_export.runtime.sizes import ONE_POINT, read

    return {name: rows for (_, name), rows in read(values or None, None, ONE_POINT).items()}


@click.command("verify", short_help="Compare the outputs of two models.")
@click.argument("a")
@click.argument("b")
@click.option(
    "--inputs",
    metavar="FILE.npz",
    help="Arrays to feed, by input name; random ones without it.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME=1x16",
    callback=_shapes,
    help="Shape of one random input; may be repeated. Symbolic sizes are small otherwise.",
)
@seed_option("Of the random inputs.")
@click.option(
    "--rtol",
    type=float,
    help="Largest difference, relative to the largest element of the output.  "
    "[default: 1e-9 for float64, 1e-4 float32, 1e-2 float16, 4e-2 bfloat16; 0 with --atol]",
)
@click.option("--atol", type=float, help="Largest absolute difference, added to that of --rtol.")
@click.option("--max-ulp", type=float, help="Largest difference in units in the last place, too.")
@click.option("--backend-a", type=_BACKEND, default="auto", help=_BACKEND_HELP)
@click.option(
    "--backend-b",
    type=_BACKEND,
    default="auto",
    help="As --backend-a, for B.",
)
@click.option(
    "--no-bisect",
    is_flag=True,
    help="When an output differs, do not look for the value at which the models begin to differ.",
)
@html_file.option
@html_file.force_option
@format_option
@logging_options
@click.pass_context
def command(
    context: click.Context,
    a: str,
    b: str,
    inputs: str | None,
    shapes: dict[str, tuple[tuple[int, ...], ...]],
    seed: int,
    rtol: float | None,
    atol: float | None,
    max_ulp: float | None,
    backend_a: BackendChoice,
    backend_b: BackendChoice,
    no_bisect: bool,
    html_path: Path | None,
    force: bool,
) -> None:
    """Compare the outputs of model B with those of model A.

    A and B are ONNX files, of which one may be - for stdin; engines; or PyTorch models as export
    takes them: package.module:factory, a local Hugging Face folder, a config.json or a .pt2 file.
    A factory and a .pt2 file run code: give only those that you trust.

    ONNX files run in ONNX Runtime on the CPU, A without its graph optimization, B with it; with a
    tensorrt backend an engine is built from them, in a temporary folder. Exit code 4 when a bound
    does not hold, 6 when a backend or its GPU is missing, 3 when an engine cannot be used here.

    \b
    Examples:
      rmsnorm-export verify model.onnx fused.onnx
      rmsnorm-export verify ./my-llama llama.onnx --shape input_ids=1x16
      rmsnorm-export verify model.onnx model.onnx --backend-b tensorrt
    """
    state = context.ensure_object(State)
    if a == b == console.STDIO:
        raise UsageError(
            "Only one model can be read from stdin.", found="verify - -", fix="give one path"
        )
    with console.logging_to_stderr(state):
        from rmsnorm_export.cli.failure import Failure, ReportedError
        from rmsnorm_export.cli.source import model_source
        from rmsnorm_export.compare.verify import verify

        html_file.check(html_path, force=force, taken=(a, b, inputs))
        backend_a, backend_b = _backend(a, backend_a), _backend(b, backend_b)
        first, second = model_source(a), model_source(b)
        with console.progress(state, "Comparing"):
            outcome = verify(
                first,
                second,
                inputs=inputs,
                shapes=shapes or None,
                seed=seed,
                rtol=rtol,
                atol=atol,
                max_ulp=max_ulp,
                backend_a=backend_a,
                backend_b=backend_b,
                bisect=not no_bisect,
            )
        failure = None
        if not outcome.passed:
            failure = Failure(
                "The models differ by more than is allowed",
                outcome.found,
                _fix(outcome),
                ExitCode.VERIFICATION,
            )
        html_file.write(html_path, outcome, force=force, failure=failure, compared=(a, b))
        if state.json:
            extra = {"error": failure.as_dict()} if failure else None
            console.show_json(state, outcome, extra)
        else:
            console.show(state, comparison_lines(outcome, a, b, state.verbosity))
    if failure is not None:
        raise ReportedError(failure)


def _backend(argument: str, choice: BackendChoice) -> BackendChoice:
    """``auto`` for what ``export`` takes and nothing else does: PyTorch."""
    path = Path(argument)
    if choice != "auto" or argument == console.STDIO:
        return choice
    with contextlib.suppress(OSError, ValueError):
        if path.is_dir() or path.suffix == ".json":
            return "torch"
        module, colon, name = argument.partition(":")
        names = [*module.split("."), *name.split(".")]
        if colon and not path.exists() and all(part.isidentifier() for part in names):
            return "torch"
    return choice


def _fix(outcome: Verification) -> str:
    """What to do about models that differ."""
    table = "see the table for where; --rtol, --atol and --max-ulp set the bounds"
    return "; ".join(outcome.notes) or table


_HEADINGS = ["output", "type", "max abs", "allowed", "max ulp", "differ", "cosine", ""]


def comparison_lines(outcome: Verification, a: str, b: str, verbosity: int) -> list[Line]:
    """A comparison as text.

    Args:
        outcome: of the comparison.
        a, b: what was compared, for the reader.
        verbosity: below 0 the verdict alone, above 0 with details of each output.
    """
    from rmsnorm_export.printable import one_line, printable
    from rmsnorm_export.show.report_text import table

    total = len(outcome.outputs)
    good = sum(output.passed for output in outcome.outputs)
    verdict = "the models agree" if outcome.passed else "the models DIFFER"
    style = "bold green" if outcome.passed else "bold red"
    lines: list[Line] = [(f"{verdict}: {good} of {total} outputs within bounds", style)]
    if verbosity < 0:
        return lines
    for label, path, how in zip("AB", (a, b), backend_texts(outcome), strict=True):
        lines.append(f"  {label}  {printable(path)} ({how})")
    lines.append(f"  {one_line(outcome.runtime)} | inputs: {one_line(outcome.source)}")
    lines += [f"      {one_line(fed)}" for fed in outcome.inputs]
    rows = table([_HEADINGS, *map(_row, outcome.outputs)], right=(2, 3, 4, 5))
    lines += ["", ("  " + rows[0], "bold")]
    for output, row in zip(outcome.outputs, rows[1:], strict=True):
        lines.append(("  " + row, "" if output.passed else "red"))
        if verbosity > 0:
            lines += _details(output)
    if outcome.first_difference is not None:
        lines += ["", *_difference(outcome.first_difference, verbosity)]
    if outcome.notes:
        lines += ["", *(f"note: {one_line(note)}" for note in outcome.notes)]
    return lines


def backend_texts(outcome: Verification) -> tuple[str, str]:
    """How each model was run, e.g. ``graph optimization off`` or ``PyTorch``."""
    first, second = (
        f"{'CUDA, ' if backend.endswith('cuda') else ''}graph optimization {'on' if on else 'off'}"
        if backend.startswith("onnxruntime")
        else backend
        for backend, on in zip(outcome.backends, outcome.optimized, strict=True)
    )
    return first, second


def _difference(first: Difference, verbosity: int) -> list[Line]:
    """Where the models begin to differ."""
    from rmsnorm_export.printable import number, one_line, printable

    lines: list[Line] = [(f"first difference: {one_line(first.conclusion)}", "bold")]
    where = f"{printable(first.op)} {printable(first.node)}" if first.op else "an input"
    if first.module:
        where += f", module {printable(first.module)}"
    lines.append(f"  value   {printable(first.value)} ({where})")
    if first.site is not None and first.site.place != "at":
        before = "last norm before it" if first.site.place == "before" else "norm among its nodes"
        module = f", module {printable(first.site.module)}" if first.site.module else ""
        lines.append(f"  {before}   {first.site.op} {printable(first.site.name)}{module}")
    metrics = first.comparison.metrics
    lines.append(
        f"  differs by {number(metrics.max_abs)}, {number(first.comparison.bound_abs)} allowed"
        f" | {first.compared} of {first.shared} shared values compared"
    )
    if verbosity > 0:
        lines.append(f"      {one_line(first.comparison.tolerance)}")
        lines += [f"      computed from {printable(name)}" for name in first.inputs]
    return lines + [f"  note: {one_line(note)}" for note in first.notes]


def _row(output: OutputComparison) -> list[str]:
    from rmsnorm_export.printable import number, printable

    metrics = output.metrics
    shape = "x".join(map(str, metrics.shape)) or "scalar"
    return [
        printable(output.name),
        f"{metrics.dtype} {shape}",
        number(metrics.max_abs),
        number(output.bound_abs),
        number(metrics.max_ulp),
        f"{metrics.mismatch:.2%}",
        f"{metrics.cosine:.7f}",
        "ok" if output.passed else "FAILED",
    ]


def _details(output: OutputComparison) -> list[Line]:
    """Relative and mean distance, and how many elements are how many ulp apart."""
    from rmsnorm_export.printable import number, one_line

    metrics = output.metrics
    buckets = ", ".join(f"{name}: {count:,}" for name, count in metrics.ulp_histogram)
    agree = "agree" if metrics.nan_inf_agree else "do NOT agree"
    lines: list[Line] = [f"      allowed  {one_line(output.tolerance)}"] if output.tolerance else []
    lines += [
        f"      max rel {number(metrics.max_rel)}, mean ulp {number(metrics.mean_ulp)},"
        f" NaN and infinities {agree}"
    ]
    return lines + ([f"      elements by ulp  {buckets}"] if buckets else [])
