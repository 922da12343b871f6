"""A benchmark as text for a person: what it comes to, then a table per provider and shape."""

from __future__ import annotations

from rmsnorm_export.benchmark.result import AGAIN, Benchmark, Timing, Variant, headlines
from rmsnorm_export.printable import one_line, printable
from rmsnorm_export.show.report_text import Line, table

_HEADINGS = ["variant", "time / raw", "95 % interval", "median ms", "quartiles ms", "peak MiB", ""]

STYLES = {"faster": "green", "slower": "red"}


def benchmark_lines(result: Benchmark, *, verbose: int = 0) -> list[Line]:
    """The lines of a report.

    Args:
        result: of ``bench``.
        verbose: below 0 what it comes to alone, above 0 with versions, session and every file.
    """
    lines: list[Line] = []
    if not result.passed:
        lines.append((f"WRONG OUTPUTS: {one_line(result.reason)}", "bold red"))
    lines += [(one_line(line), "bold") for line in headlines(result)]
    if verbose < 0:
        return lines
    lines += [f"  {text}" for text in about(result, verbose=verbose)]
    for provider in result.providers:
        for case in result.cases:
            lines += _table(result, provider, case.label)
    if unranked := result.unranked():
        lines += ["", ("not ranked", "bold yellow")]
        lines += [
            f"  {printable(name)}{f' on {place}' if place else ''}: {one_line(why)}"
            for name, place, why in unranked
        ]
    if verbose > 0:
        lines += ["", ("files", "bold"), *(f"  {text}" for text in map(made, result.variants))]
    return lines + (["", *(f"note: {one_line(n)}" for n in result.notes)] if result.notes else [])


def about(result: Benchmark, *, verbose: int = 0) -> list[str]:
    """Source, machine, and how it was measured."""
    facts, threads = result.machine, result.session["intra_op_num_threads"]
    load = "" if facts.load_before is None else (
        f", load {facts.load_before:g} before and {facts.load_after:g} after"
    )  # fmt: skip
    wanted = None if verbose > 0 else ("onnxruntime", "onnxruntime-gpu", "rmsnorm-export")
    versions = [
        f"{name} {version}"
        for name, version in result.versions.items()
        if wanted is None or name in wanted
    ]
    lines = [
        printable(result.source),
        f"{one_line(facts.cpu)}, {facts.cores} cores{load}",
        f"{', '.join(versions)}, {threads} thread(s), numerics {result.numerics}, "
        f"seed {result.seed}, {result.seconds:.0f} s",
    ]
    if verbose > 0:
        lines.append(", ".join(f"{key} {value}" for key, value in result.session.items()))
    return lines


def _table(result: Benchmark, provider: str, case: str) -> list[Line]:
    timings = result.timed(provider, case)
    if not timings:
        return []
    base = timings[0]
    title = f"{provider}, {one_line(case)}: raw {base.median_ms:.4g} ms, {rounds_text(base)}"
    rows = table([_HEADINGS, *(_row(result, timing) for timing in timings)], right=(1, 2, 3, 4, 5))
    lines: list[Line] = ["", (title, "bold"), ("  " + rows[0], "bold")]
    for timing, row in zip(timings, rows[1:], strict=True):
        lines.append(("  " + row, STYLES.get(timing.verdict, "")))
    return lines


def _row(result: Benchmark, timing: Timing) -> list[str]:
    peak = result.peak_mib(timing.variant, timing.provider)
    is_base = timing.verdict == "baseline"
    return [
        timing.variant,
        "1" if is_base else f"{timing.ratio:.3f}",
        "" if is_base else f"{timing.low:.3f} - {timing.high:.3f}",
        f"{timing.median_ms:.4g}",
        f"{timing.q1_ms:.4g} - {timing.q3_ms:.4g}",
        "" if peak is None or timing.variant == AGAIN else f"{peak:,.0f}",
        said(timing),
    ]


def rounds_text(timing: Timing) -> str:
    """How much was measured: ``99 rounds in 9 openings``."""
    openings = f" in {timing.openings} openings" if timing.openings > 1 else ", opened once"
    return f"{timing.rounds} rounds{openings}"


def said(timing: Timing) -> str:
    """The verdict in words; of the noise floor, how far it reaches."""
    if timing.verdict == "noise floor":
        return f"noise: up to {timing.floor:.1%}"
    return timing.verdict


def made(variant: Variant) -> str:
    """One line on a file: its nodes and norms, and how long it took."""
    parts = [variant.status if variant.status != "ok" else f"{variant.nodes} nodes"]
    if variant.fused is not None:
        parts.append(f"{variant.fused} norms are one node, {variant.refused} refused")
    if variant.kind != "raw":
        parts.append(f"made in {variant.seconds:.2f} s")
    version = f" {variant.version}" if variant.version else ""
    return f"{variant.name}{version}: {', '.join(parts)}"
