"""Two models compared on the same inputs: every output with its bounds."""

from __future__ import annotations

from collections.abc import Callable

from rmsnorm_export.compare.result import Difference, OutputComparison, Verification
from rmsnorm_export.printable import number, one_line, plural
from rmsnorm_export.show.text import Block, Line, Table, note_lines

_COLUMNS: dict[str, Callable[[OutputComparison], str]] = {
    "output": lambda output: output.name,
    "type": lambda o: f"{o.metrics.dtype} {'x'.join(map(str, o.metrics.shape)) or 'scalar'}",
    "max abs": lambda output: number(output.metrics.max_abs),
    "allowed": lambda output: number(output.bound_abs),
    "max ulp": lambda output: number(output.metrics.max_ulp),
    "differ": lambda output: f"{output.metrics.mismatch:.2%}",
    "cosine": lambda output: f"{output.metrics.cosine:.7f}",
    "": lambda output: "ok" if output.passed else "FAILED",
}
_DETAILS: dict[str, Callable[[OutputComparison], str]] = {
    "NaN, inf": lambda o: (
        o.no_numbers() + ("" if o.metrics.nan_inf_agree else " do NOT agree") or "none"
    ),
    "elements by ulp": lambda o: ", ".join(f"{n}: {c:,}" for n, c in o.metrics.ulp_histogram),
    "why so much is allowed": lambda output: one_line(output.tolerance),
}
"""Head -> cell of an output; the second are columns with -v, and on a page."""

_NUMBERS = ("max abs", "allowed", "max ulp", "differ")

_VERDICTS = {
    "agree": "agree",
    "differ": "DIFFER",
    "not compared": "were NOT COMPARED",
    "not run": "could NOT BE RUN here",
}


def verification_blocks(
    verified: Verification,
    *,
    compared: tuple[str, str] = ("the first model", "the second model"),
    verbose: int = 0,
) -> list[Block]:
    """Return the lines of a comparison; with ``verbose`` above 0 the details of each output.

    Args:
        verified: its outcome.
        compared: what was compared: paths, or e.g. ``PyTorch``.
        verbose: as for ``show.show_blocks``.
    """
    passed = sum(output.passed for output in verified.outputs)
    within = f"{passed:,} of {plural(len(verified.outputs), 'output')} within bounds"
    within = one_line(verified.not_run) or within
    odd = one_line(verified.no_numbers())
    verdict = f"the models {_VERDICTS[verified.verdict]}: {within}{odd}"
    kind = "bad" if not verified.passed else "warn" if odd else "good"
    lines: list[Block] = [(verdict, kind)]
    if verbose < 0:
        return lines
    for label, path, backend in zip("AB", compared, verified.backends, strict=True):
        lines.append(f"  {label}  {path} ({backend})")
    lines.append(f"  {one_line(verified.runtime)} | inputs: {one_line(verified.source)}")
    lines += [f"      {one_line(fed)}" for fed in verified.inputs]
    columns = _COLUMNS | _DETAILS if verbose > 0 else _COLUMNS
    rows = [[cell(output) for cell in columns.values()] for output in verified.outputs]
    styles = ["" if output.passed else "bad" for output in verified.outputs]
    lines.append(Table("", [*columns], rows, numbers=_NUMBERS, styles=styles))
    if verified.first_difference is not None:
        lines += ["", *_difference_lines(verified.first_difference, verbose)]
    return lines + (["", *note_lines(verified.notes)] if verified.notes else [])


def _difference_lines(first: Difference, verbose: int) -> list[Line]:
    """Return where the models begin to differ."""
    lines: list[Line] = [(f"first difference: {one_line(first.conclusion)}", "bold")]
    where = f"{first.op} {first.node}" if first.op else "an input"
    if first.module:
        where += f", module {first.module}"
    lines.append(f"  value   {first.value} ({where})")
    if first.site is not None and first.site.place == "before":
        module = f", module {first.site.module}" if first.site.module else ""
        lines.append(f"  last norm before it   {first.site.op} {first.site.name}{module}")
    measured = first.comparison
    lines.append(
        f"  differs by {number(measured.metrics.max_abs)}, {number(measured.bound_abs)} allowed"
        f" | {first.compared:,} of {plural(first.shared, 'shared value')} compared"
    )
    if verbose > 0:
        lines.append(f"      {one_line(measured.tolerance)}")
        lines += [f"      computed from {name}" for name in first.inputs]
    return lines
