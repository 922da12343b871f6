"""A benchmark: what it comes to, then a table per provider and shape."""

from __future__ import annotations

from rmsnorm_export.benchmark.result import Benchmark, Timing, headlines
from rmsnorm_export.printable import one_line
from rmsnorm_export.show.text import Block, Table, note_lines, titled

_HEADS = ("variant", "time / raw", "95 % interval", "median ms", "quartiles ms", "")
_TIMING_STYLES = {"faster": "good", "slower": "bad"}


def benchmark_blocks(result: Benchmark, *, verbose: int = 0) -> list[Block]:
    """Return the lines of a benchmark; with ``verbose`` above 0 what noise is."""
    lines: list[Block] = []
    if not result.passed:
        lines.append((f"WRONG OUTPUTS: {one_line(result.reason)}", "bad"))
    lines += [(one_line(line), "bold") for line in headlines(result)]
    if verbose < 0:
        return lines
    lines += [
        f"  {result.source}",
        f"  {one_line(result.machine)}",
        f"  {result.runtime}, numerics {result.numerics}, {result.seconds:.0f} s",
    ]
    for provider in result.providers:
        for case in result.cases:
            if timings := result.timed(provider, case):
                base = timings[0]
                often = f" in {base.openings} openings" if base.openings > 1 else ", opened once"
                title = f"on {provider}, {one_line(case)}: raw {base.median_ms:.4g} ms"
                rows = [_timing_texts(timing) for timing in timings]
                styles = [_TIMING_STYLES.get(timing.verdict, "") for timing in timings]
                title = f"{title}, {base.rounds} rounds{often}"
                bars = [(timing.low, timing.ratio, timing.high) for timing in timings]
                numbers = _HEADS[1:-1]
                lines.append(Table(title, _HEADS, rows, numbers, styles=styles, bars=bars))
    if verbose > 0 and result.timings:
        lines.append("raw again: a second session of the same file, whose difference is noise")
    unranked = [f"  {name}: {one_line(why)}" for name, why in result.unranked.items()]
    lines += titled("not ranked", unranked)
    return lines + (["", *note_lines(result.notes)] if result.notes else [])


def _timing_texts(timing: Timing) -> list[str]:
    """Return one timing, as many texts as ``_HEADS``; of the noise floor, how far it reaches."""
    is_base = timing.verdict == "baseline"
    noise = timing.verdict == "noise floor"
    return [
        timing.variant,
        "1" if is_base else f"{timing.ratio:.3f}",
        "" if is_base else f"{timing.low:.3f} - {timing.high:.3f}",
        f"{timing.median_ms:.4g}",
        f"{timing.q1_ms:.4g} - {timing.q3_ms:.4g}",
        f"noise: up to {timing.floor:.1%}" if noise else timing.verdict,
    ]
