"""A benchmark: what it comes to, then a table per provider and shape."""

from __future__ import annotations

from collections.abc import Mapping

from rmsnorm_export.benchmark.result import Benchmark, Timing, Variant, headlines
from rmsnorm_export.printable import one_line, plural
from rmsnorm_export.show.text import Block, Table, note_lines, titled

_HEADS = ("variant", "time / raw", "95 % interval", "median ms", "quartiles ms", "")
_TIMING_STYLES = {"faster": "good", "slower": "bad"}


def benchmark_blocks(result: Benchmark, *, verbose: int = 0) -> list[Block]:
    """Return the lines of a benchmark; with ``verbose`` above 0 versions, session and files."""
    lines: list[Block] = []
    if not result.passed:
        lines.append((f"WRONG OUTPUTS: {one_line(result.reason)}", "bad"))
    lines += [(one_line(line), "bold") for line in headlines(result)]
    if verbose < 0:
        return lines
    lines += [f"  {text}" for text in _made_on(result, verbose=verbose)]
    for provider in result.providers:
        for case in result.cases:
            if timings := result.timed(provider, case.label):
                base = timings[0]
                often = f" in {base.openings} openings" if base.openings > 1 else ", opened once"
                title = f"{provider}, {one_line(case.label)}: raw {base.median_ms:.4g} ms"
                rows = [_timing_texts(timing) for timing in timings]
                styles = [_TIMING_STYLES.get(timing.verdict, "") for timing in timings]
                title = f"{title}, {base.rounds} rounds{often}"
                lines.append(Table(title, _HEADS, rows, numbers=_HEADS[1:-1], styles=styles))
    unranked = [
        f"  {name}{f' on {place}' if place else ''}: {one_line(why)}"
        for name, place, why in result.unranked()
    ]
    lines += titled("not ranked", unranked)
    if verbose > 0:
        lines += titled("files", [f"  {_file_text(variant)}" for variant in result.variants])
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


def _made_on(result: Benchmark, *, verbose: int) -> list[str]:
    """Return source, machine, and how it was measured."""
    machine = result.machine
    load = ""
    if machine.load_before is not None:
        load = f", load {machine.load_before:g} before and {machine.load_after:g} after"
    brief = ("onnxruntime", "onnxruntime-gpu", "rmsnorm-export")
    versions = {
        name: version for name, version in result.versions.items() if verbose > 0 or name in brief
    }
    lines = [
        result.source,
        f"{one_line(machine.cpu)}, {machine.cores} cores{load}",
        f"{_pairs_text(versions)}, {result.threads}, numerics {result.numerics}, "
        f"seed {result.seed}, {result.seconds:.0f} s",
    ]
    return [*lines, _pairs_text(result.session)] if verbose > 0 else lines


def _pairs_text(pairs: Mapping[str, int | str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in pairs.items())


def _file_text(variant: Variant) -> str:
    """Return one line on a file: its nodes and norms, and how long it took."""
    if variant.nodes is None and variant.status == "ok":
        return "an engine"
    parts = [variant.status if variant.status != "ok" else plural(variant.nodes or 0, "node")]
    if variant.fused is not None:
        verb = "is" if variant.fused == 1 else "are"
        parts.append(f"{plural(variant.fused, 'norm')} {verb} one node, {variant.refused} refused")
    if variant.kind != "raw":
        parts.append(f"made in {variant.seconds:.2f} s")
    return f"{variant.name}: {', '.join(parts)}"
