"""A benchmark: what it comes to, then a table per provider and shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rmsnorm_export.benchmark.result import Benchmark, Timing, Variant, headlines
from rmsnorm_export.printable import one_line, plural, printable
from rmsnorm_export.show.page import Table
from rmsnorm_export.show.text import Line, note_lines, table

_TIMING_HEADS = ("variant", "time / raw", "95 % interval", "median ms", "quartiles ms")
_TIMING_STYLES = {"faster": "green", "slower": "red"}


def _tables(result: Benchmark) -> Iterator[tuple[str, Sequence[Timing]]]:
    """Title and rows for each provider and shape."""
    for provider in result.providers:
        for case in result.cases:
            if timings := result.timed(provider, case.label):
                base = timings[0]
                often = f" in {base.openings} openings" if base.openings > 1 else ", opened once"
                yield (
                    f"{provider}, {one_line(case.label)}: raw {base.median_ms:.4g} ms,"
                    f" {base.rounds} rounds{often}",
                    timings,
                )


def _timing_texts(timing: Timing, dash: str) -> list[str]:
    """One timing, as many texts as ``_TIMING_HEADS``."""
    is_base = timing.verdict == "baseline"
    return [
        timing.variant,
        "1" if is_base else f"{timing.ratio:.3f}",
        "" if is_base else f"{timing.low:.3f} {dash} {timing.high:.3f}",
        f"{timing.median_ms:.4g}",
        f"{timing.q1_ms:.4g} {dash} {timing.q3_ms:.4g}",
    ]


def _timing_verdict(timing: Timing) -> str:
    """The verdict in words; of the noise floor, how far it reaches."""
    floor = timing.verdict == "noise floor"
    return f"noise: up to {timing.floor:.1%}" if floor else timing.verdict


def _unranked(result: Benchmark) -> list[tuple[str, str]]:
    """What could not be ranked, and why."""
    return [
        (name, f"{f' on {place}' if place else ''}: {one_line(why)}")
        for name, place, why in result.unranked()
    ]


def _pairs_text(pairs: dict[str, str] | dict[str, int | str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in pairs.items())


def benchmark_lines(result: Benchmark, *, verbose: int = 0) -> list[Line]:
    """The lines of a benchmark; with ``verbose`` above 0 versions, session and every file."""
    lines: list[Line] = []
    if not result.passed:
        lines.append((f"WRONG OUTPUTS: {one_line(result.reason)}", "bold red"))
    lines += [(one_line(line), "bold") for line in headlines(result)]
    if verbose < 0:
        return lines
    lines += [f"  {text}" for text in _made_on(result, verbose=verbose)]
    for title, timings in _tables(result):
        cells = [[*_timing_texts(t, "-"), _timing_verdict(t)] for t in timings]
        heads, *rows = table([[*_TIMING_HEADS, ""], *cells], right=(1, 2, 3, 4))
        lines += ["", (title, "bold"), (heads, "bold")]
        lines += [
            (row, _TIMING_STYLES.get(t.verdict, "")) for t, row in zip(timings, rows, strict=True)
        ]
    if unranked := _unranked(result):
        lines += ["", ("not ranked", "bold yellow")]
        lines += [f"  {printable(name)}{why}" for name, why in unranked]
    if verbose > 0:
        lines += ["", ("files", "bold"), *(f"  {_file_text(v)}" for v in result.variants)]
    return lines + (["", *note_lines(result.notes)] if result.notes else [])


def benchmark_tables(result: Benchmark) -> list[Table]:
    """Return a table for each provider and shape, and one of the files."""
    heads = [head[:1].upper() + head[1:] for head in (*_TIMING_HEADS, "verdict")]
    tables = [
        Table(
            title,
            heads,
            [[*_timing_texts(t, "\u2013"), _timing_verdict(t)] for t in timings],
            numbers=heads[1:-1],
        )
        for title, timings in _tables(result)
    ]
    rows = [[name, why] for name, why in _unranked(result)]
    return tables + ([Table("Not ranked", ("Variant", "Why"), rows)] if rows else [])


def _made_on(result: Benchmark, *, verbose: int) -> list[str]:
    """Source, machine, and how it was measured."""
    machine = result.machine
    load = ""
    if machine.load_before is not None:
        load = f", load {machine.load_before:g} before and {machine.load_after:g} after"
    brief = ("onnxruntime", "onnxruntime-gpu", "rmsnorm-export")
    versions = {
        name: version for name, version in result.versions.items() if verbose > 0 or name in brief
    }
    lines = [
        printable(result.source),
        f"{one_line(machine.cpu)}, {machine.cores} cores{load}",
        f"{_pairs_text(versions)}, {result.threads}, numerics {result.numerics}, "
        f"seed {result.seed}, {result.seconds:.0f} s",
    ]
    return [*lines, _pairs_text(result.session)] if verbose > 0 else lines


def _file_text(variant: Variant) -> str:
    """One line on a file: its nodes and norms, and how long it took."""
    if variant.nodes is None and variant.status == "ok":
        return "an engine"
    parts = [variant.status if variant.status != "ok" else plural(variant.nodes or 0, "node")]
    if variant.fused is not None:
        verb = "is" if variant.fused == 1 else "are"
        parts.append(f"{plural(variant.fused, 'norm')} {verb} one node, {variant.refused} refused")
    if variant.kind != "raw":
        parts.append(f"made in {variant.seconds:.2f} s")
    return f"{variant.name}: {', '.join(parts)}"
