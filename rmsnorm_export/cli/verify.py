"""``verify``: run two models, each on its backend, on the same inputs and compare every output."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmsnorm_export.cli import console, files
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.options import State
from rmsnorm_export.compare.backends import BackendChoice, how_it_ran
from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from rmsnorm_export.compare.backends import BackendChoice, how_it_ran
    from rmsnorm_export.compare.result import Difference, OutputComparison, Verification
    from rmsnorm_export.show.report_text import Line


@define("verify", VerifyOptions, short_help="Compare the outputs of two models.")
@click.argument("a")
@click.argument("b")
@files.html_option
@files.force_option("Replace an existing file of --html.")
def command(
    state: State, a: str, b: str, html_path: Path | None, force: bool, **options: Any
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
      rmsnorm-export verify ./my-llama llama.onnx --shapes input_ids=1x16
      rmsnorm-export verify model.onnx model.onnx --backend-b tensorrt
    """
    from rmsnorm_export.cli.failure import Failure
    from rmsnorm_export.compare.verify import verify

    if a == b == console.STDIO:
        raise UsageError(
            "Only one model can be read from stdin.", found="verify - -", fix="give one path"
        )
    files.check_files({"--html": html_path}, force=force, taken=(a, b, options["inputs"]))
    options["backend_a"] = _backend(a, options["backend_a"])
    options["backend_b"] = _backend(b, options["backend_b"])
    first, second = console.model_source(a), console.model_source(b)
    with console.progress(state, "Comparing"):
        outcome = verify(first, second, **options)
    failure = None
    if not outcome.passed:
        failure = Failure(
            "The models differ by more than is allowed",
            outcome.found,
            _fix(outcome),
            ExitCode.VERIFICATION,
        )
    files.write_page(html_path, outcome, force=force, failure=failure, compared=(a, b))
    console.finish(
        state, outcome, lambda: comparison_lines(outcome, a, b, state.verbosity), failure
    )


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
        how_it_ran(backend, optimized=on)
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
