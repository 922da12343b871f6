"""Two models compared on the same inputs: every output with its bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmsnorm_export.compare.result import Difference, OutputComparison, Verification
from rmsnorm_export.printable import number, one_line, plural
from rmsnorm_export.show.text import Block, Line, Table, badness, note_lines

_COLUMNS: dict[str, Callable[[OutputComparison], str]] = {
    "output": lambda output: output.name,
    "type": lambda o: f"{o.metrics.dtype} {'x'.join(map(str, o.metrics.shape)) or 'scalar'}",
    "max abs": lambda output: number(output.metrics.max_abs),
    "allowed": lambda output: number(output.bound_abs),
    "max ulp": lambda output: number(output.metrics.max_ulp),
    "differ": lambda output: f"{output.metrics.mismatch:.2%}",
    "cosine": lambda output: f"{output.metrics.cosine:.7f}",
    "verdict": lambda output: "ok" if output.passed else "FAILED",
}
_DETAILS: dict[str, Callable[[OutputComparison], str]] = {
    "NaN, inf": lambda o: (
        o.no_numbers() + ("" if o.metrics.nan_inf_agree else " do NOT agree") or "none"
    ),
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
    lines: list[Block] = [_agreement(verified)]
    if verbose < 0:
        return lines
    sides = [
        f"{label}  {path} ({backend})"
        for label, path, backend in zip("AB", compared, verified.backends, strict=True)
    ]
    if verified.greedy and verbose == 0:
        lines += [f"  {', '.join(sides)}: {verified.source}", *_greedy_lines(verified.outputs)]
    else:
        lines += [f"  {side}" for side in sides]
        lines.append(f"  {one_line(verified.runtime)} | inputs: {one_line(verified.source)}")
        lines += [f"      {one_line(fed)}" for fed in verified.inputs]
        lines += _greedy_lines(verified.outputs) if verified.greedy else []
    lines.append(_outputs_table(verified, verbose=verbose))
    if verified.first_difference is not None:
        lines += ["", *_difference_lines(verified.first_difference, verbose)]
    notes = verified.notes[1:] if verified.greedy else verified.notes  # the verdict has the first
    return lines + (["", *note_lines(notes)] if notes else [])


def _agreement(verified: Verification) -> Line:
    """Return the first line; of greedy tokens it says how many are the same."""
    passed = sum(output.passed for output in verified.outputs)
    what = "step" if verified.greedy else "output"
    within = f"{passed:,} of {plural(len(verified.outputs), what)} within bounds"
    within += "".join(f"; {one_line(note)}" for note in verified.notes[: int(verified.greedy)])
    within = one_line(verified.not_run) or within
    odd = one_line(verified.no_numbers())
    kind = "bad" if not verified.passed else "warn" if odd else "good"
    return f"the models {_VERDICTS[verified.verdict]}: {within}{odd}", kind


def _greedy_lines(outputs: Sequence[OutputComparison]) -> list[Line]:
    """Return the step at which the logits differ most; one that failed comes before others."""
    if not outputs:
        return []
    worst = max(outputs, key=lambda o: (not o.passed, badness(o.metrics.max_abs)))
    measured, allowed = number(worst.metrics.max_abs), number(worst.bound_abs)
    return [f"  largest difference {measured} ({allowed} allowed), in the {one_line(worst.name)}"]


def _outputs_table(verified: Verification, *, verbose: int) -> Table:
    """Return the outputs; of greedy tokens those that failed, or with ``verbose`` above 0 all."""
    outputs = [o for o in verified.outputs if verbose > 0 or not (verified.greedy and o.passed)]
    columns = _COLUMNS | _DETAILS if verbose > 0 else _COLUMNS
    rows = [[cell(output) for cell in columns.values()] for output in outputs]
    styles = ["" if output.passed else "bad" for output in outputs]
    title = "logits of every step" if verified.greedy and verbose > 0 else ""
    folded = bool(title) and verified.passed
    return Table(title, [*columns], rows, numbers=_NUMBERS, styles=styles, folded=folded)


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
