"""Two models compared on the same inputs: every output with its bounds."""

from __future__ import annotations

from collections.abc import Callable

from rmsnorm_export.compare.backends import how_it_ran
from rmsnorm_export.compare.result import Difference, OutputComparison, Verification
from rmsnorm_export.printable import number, one_line, plural, printable
from rmsnorm_export.show import section_of
from rmsnorm_export.show.page import Page, Table
from rmsnorm_export.show.text import Line, headline, largest, note_lines, table

_TEXT_NUMBERS = ("Max abs", "Allowed", "Max ulp", "Differ", "Cosine")
_NUMBERS: dict[str, Callable[[OutputComparison], str]] = {
    "Max abs": lambda output: number(output.metrics.max_abs),
    "Allowed": lambda output: number(output.bound_abs),
    "Max rel": lambda output: number(output.metrics.max_rel),
    "Max ulp": lambda output: number(output.metrics.max_ulp),
    "Ulp allowed": lambda o: "\u2013" if o.bound_ulp is None else number(o.bound_ulp),
    "Mean ulp": lambda output: number(output.metrics.mean_ulp),
    "Differ": lambda output: f"{output.metrics.mismatch:.2%}",
    "Cosine": lambda output: f"{output.metrics.cosine:.7f}",
}
"""What was measured of an output; a line of text has some of it."""

_OUTPUT_HEADS = ("Output", "Verdict", "Type", *_NUMBERS, "NaN, inf", "Why so much is allowed")

_VERDICTS = {
    "agree": "agree",
    "differ": "DIFFER",
    "not compared": "were NOT COMPARED",
    "not run": "could NOT BE RUN here",
}
_MODELS = ("the first model", "the second model")
_CAPTION = "Outputs of B against those of A"

_PLACES = {"at": "", "among": "norm among its nodes", "before": "last norm before it"}
"""Where the norm is in respect of the first difference."""


def _passed(verified: Verification) -> int:
    return sum(output.passed for output in verified.outputs)


def _outputs_within(verified: Verification) -> str:
    if verified.not_run:
        return one_line(verified.not_run)
    return f"{_passed(verified):,} of {plural(len(verified.outputs), 'output')} within bounds"


def _output_type(output: OutputComparison, by: str) -> str:
    shape = by.join(map(str, output.metrics.shape)) or "scalar"
    return f"{printable(output.metrics.dtype)} {shape}"


def _agree(output: OutputComparison) -> str:
    """Whether NaN and infinities are in the same places."""
    return "agree" if output.metrics.nan_inf_agree else "do NOT agree"


def _runs(verified: Verification) -> list[str]:
    """How each model was run."""
    pairs = zip(verified.backends, verified.optimized, strict=True)
    return [how_it_ran(backend, optimized=on) for backend, on in pairs]


def verification_lines(
    verified: Verification, *, compared: tuple[str, str] = _MODELS, verbose: int = 0
) -> list[Line]:
    """The lines of a comparison; with ``verbose`` above 0 the details of each output.

    Args:
        verified: its outcome.
        compared: what was compared: paths, or e.g. ``PyTorch``.
        verbose: as for ``show.show_lines``.
    """
    kind = "good" if verified.passed else "bad"
    lines = [
        headline((f"the models {_VERDICTS[verified.verdict]}: {_outputs_within(verified)}", kind))
    ]
    if verbose < 0:
        return lines
    for label, path, how in zip("AB", compared, _runs(verified), strict=True):
        lines.append(f"  {label}  {printable(path)} ({how})")
    lines.append(f"  {one_line(verified.runtime)} | inputs: {one_line(verified.source)}")
    lines += [f"      {one_line(fed)}" for fed in verified.inputs]
    if not verified.outputs:
        return lines + (["", *note_lines(verified.notes)] if verified.notes else [])
    heads = ["output", "type", *map(str.lower, _TEXT_NUMBERS), ""]
    rows = table([heads, *map(_output_texts, verified.outputs)], right=(2, 3, 4, 5))
    lines += ["", (rows[0], "bold")]
    for output, row in zip(verified.outputs, rows[1:], strict=True):
        lines.append((row, "" if output.passed else "red"))
        if verbose > 0:
            lines += _output_details(output)
    if verified.first_difference is not None:
        lines += ["", *_difference_lines(verified.first_difference, verbose)]
    return lines + (["", *note_lines(verified.notes)] if verified.notes else [])


def _output_texts(output: OutputComparison) -> list[str]:
    return [
        printable(output.name),
        _output_type(output, "x"),
        *(_NUMBERS[head](output) for head in _TEXT_NUMBERS),
        "ok" if output.passed else "FAILED",
    ]


def _output_details(output: OutputComparison) -> list[Line]:
    """Relative and mean distance, and how many elements are how many ulp apart."""
    buckets = ", ".join(f"{name}: {count:,}" for name, count in output.metrics.ulp_histogram)
    lines: list[Line] = [f"      allowed  {one_line(output.tolerance)}"] if output.tolerance else []
    lines.append(
        f"      max rel {_NUMBERS['Max rel'](output)}, mean ulp {_NUMBERS['Mean ulp'](output)},"
        f" NaN and infinities {_agree(output)}"
    )
    return lines + ([f"      elements by ulp  {buckets}"] if buckets else [])


def _by_how_much(first: Difference) -> tuple[str, str]:
    """The difference with its bound, and how many values were looked at for it."""
    measured = first.comparison
    return (
        f"{number(measured.metrics.max_abs)}, {number(measured.bound_abs)} allowed",
        f"{first.compared:,} of {plural(first.shared, 'shared value')}",
    )


def _difference_lines(first: Difference, verbose: int) -> list[Line]:
    """Where the models begin to differ."""
    lines: list[Line] = [(f"first difference: {one_line(first.conclusion)}", "bold")]
    where = f"{printable(first.op)} {printable(first.node)}" if first.op else "an input"
    if first.module:
        where += f", module {printable(first.module)}"
    lines.append(f"  value   {printable(first.value)} ({where})")
    if first.site is not None and (place := _PLACES[first.site.place]):
        module = f", module {printable(first.site.module)}" if first.site.module else ""
        lines.append(f"  {place}   {first.site.op} {printable(first.site.name)}{module}")
    differs, compared = _by_how_much(first)
    lines.append(f"  differs by {differs} | {compared} compared")
    if verbose > 0:
        lines.append(f"      {one_line(first.comparison.tolerance)}")
        lines += [f"      computed from {printable(name)}" for name in first.inputs]
    return lines + note_lines(first.notes, "  ")


def verification_tables(verified: Verification) -> list[Table]:
    """Return every output with its distance and what is allowed."""
    rows = [
        [
            output.name,
            "ok" if output.passed else "FAILED",
            _output_type(output, "\u00d7"),
            *(measured(output) for measured in _NUMBERS.values()),
            _agree(output),
            output.tolerance,
        ]
        for output in verified.outputs
    ]
    return [Table(_CAPTION, _OUTPUT_HEADS, rows, numbers=_NUMBERS, names=("Output",))]


def verification_page(verified: Verification) -> Page:
    """Return the page of a comparison."""
    metrics = [output.metrics for output in verified.outputs]
    worst = largest([m.max_ulp for m in metrics] or [0.0])
    differ = largest([m.mismatch for m in metrics] or [0.0])
    agree = verified.failure.rstrip(".") or "The models agree"
    return Page(
        "Verification",
        "",
        [(f"{agree}: {_outputs_within(verified)}", "good" if verified.passed else "bad")],
        sections=[section_of(verified, "Verification")],
        numbers=[
            (f"{_passed(verified):,} of {len(metrics):,}", "outputs within bounds"),
            (number(worst), "largest distance, ulp"),
            (f"{differ:.2%}", "of elements differ, at most"),
        ],
    )
