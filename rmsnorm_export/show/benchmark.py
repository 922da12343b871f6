"""A benchmark: what it comes to, then a table per provider and shape.

On a page each row holds its interval as a plot; the numbers stand beside every mark, so that
nothing is told by colour or by place alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from rmsnorm_export.benchmark.result import AGAIN, Benchmark, Timing, Variant, headlines
from rmsnorm_export.printable import one_line, plural, printable
from rmsnorm_export.show.page.document import About, Section, document, page_notes, summary
from rmsnorm_export.show.page.forest import Scale, axis, row_plot
from rmsnorm_export.show.page.markup import (
    Content,
    Markup,
    Pairs,
    badge,
    code,
    facts,
    join,
    names,
    tag,
)
from rmsnorm_export.show.page.plain_table import bare_table, plain_table
from rmsnorm_export.show.text import Line, note_lines, table

_TIMING_HEADS = ("variant", "time / raw", "95 % interval", "median ms", "quartiles ms", "peak MiB")
_TIMING_STYLES = {"faster": "green", "slower": "red"}
_BADGES = {"faster": "good", "slower": "bad"}
_FILE_NUMBERS = ("Nodes", "Norms as one node", "Refused", "Made in s")


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


def _timing_texts(result: Benchmark, timing: Timing, dash: str) -> list[str]:
    """One timing, as many texts as ``_TIMING_HEADS``."""
    peak = result.peak_mib(timing.variant, timing.provider)
    is_base = timing.verdict == "baseline"
    return [
        timing.variant,
        "1" if is_base else f"{timing.ratio:.3f}",
        "" if is_base else f"{timing.low:.3f} {dash} {timing.high:.3f}",
        f"{timing.median_ms:.4g}",
        f"{timing.q1_ms:.4g} {dash} {timing.q3_ms:.4g}",
        "" if peak is None or timing.variant == AGAIN else f"{peak:,.0f}",
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
        cells = [[*_timing_texts(result, t, "-"), _timing_verdict(t)] for t in timings]
        heads, *rows = table([[*_TIMING_HEADS, ""], *cells], right=(1, 2, 3, 4, 5))
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


def benchmark_tables(result: Benchmark) -> list[Markup]:
    """For a notebook: a table for each provider and shape."""
    return [
        bare_table(
            title,
            (*_TIMING_HEADS, "verdict"),
            [[*_timing_texts(result, t, "\u2013"), _timing_verdict(t)] for t in timings],
            numbers=_TIMING_HEADS[1:],
        )
        for title, timings in _tables(result)
    ]


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
    return f"{f'{variant.name} {variant.version}'.rstrip()}: {', '.join(parts)}"


def benchmark_page(result: Benchmark, *, about: About) -> str:
    """The page of a benchmark."""
    machine = result.machine
    load = "not known"
    if machine.load_before is not None:
        load = f"{machine.load_before:g} before, {machine.load_after:g} after"
    pairs: Pairs = [
        ("Model", code(result.source)),
        ("Machine", f"{one_line(machine.cpu)}, {machine.cores} cores, {machine.memory_gib:g} GiB"),
        ("Load average", load),
        ("Sessions", _pairs_text(result.session)),
        ("Numerics up to", result.numerics),
        ("Versions", _pairs_text(result.versions)),
        ("Seed", str(result.seed)),
        ("Time", f"{result.seconds:.0f} s"),
        *dataclasses.replace(about, versions=()).pairs(),
    ]
    verdicts = [(line, _headline_kind(line, result)) for line in headlines(result)]
    head = summary(verdicts, about, facts(pairs, "facts wide"), *page_notes(result.notes))
    return document("Benchmark", result.source, [head, benchmark_section(result)])


def _headline_kind(line: str, result: Benchmark) -> str:
    if not result.passed:
        return "bad"
    return "warn" if "slower" in line else "good" if "faster" in line else ""


def benchmark_section(result: Benchmark) -> Section:
    """Every table, what is not ranked, and how it was measured."""
    scale = Scale.of(result.timings)
    intro = (
        "Each variant's time over raw's time in the same round: the median and its 95 % interval."
        " Left of 1 is faster. The grey band is noise: as far as a second session of the very same"
        " raw file strays."
    )
    body: list[Content] = [tag("p", intro)]
    titles = [head[:1].upper() + head[1:] for head in _TIMING_HEADS]
    heads = (*titles[:2], axis(scale), *titles[2:], "Verdict")
    for title, timings in _tables(result):
        rows = [_timing_row(result, timing, scale) for timing in timings]
        body += [tag("h3", title), plain_table(title, heads, rows, numbers=titles[1:])]
    if unranked := _unranked(result):
        items = (tag("li", code(name), why) for name, why in unranked)
        body += [tag("h3", "Not ranked"), tag("ul", *items, class_="names")]
    files = map(_file_row, result.variants)
    inputs = [f"{case.label}: {', '.join(case.inputs)}" for case in result.cases]
    body += [
        tag("h3", "What was measured"),
        plain_table("What was measured", ("File", *_FILE_NUMBERS), files, numbers=_FILE_NUMBERS),
        tag("details", tag("summary", "Inputs"), names(inputs, 600)),
    ]
    return Section("benchmark", "Benchmark", join(body), len(result.timings))


def _timing_row(result: Benchmark, timing: Timing, scale: Scale) -> list[Content]:
    variant, ratio, *numbers = _timing_texts(result, timing, "\u2013")
    verdict: str = _timing_verdict(timing)
    if kind := _BADGES.get(timing.verdict):
        verdict = badge(verdict, kind)
    return [
        tag("code", variant, class_="whole"),
        ratio,
        row_plot(timing, scale),
        *numbers,
        tag("span", verdict, class_="whole"),
    ]


def _file_row(variant: Variant) -> list[Content]:
    numbers = (variant.nodes, variant.fused, variant.refused)
    return [
        code(f"{variant.name} {variant.version}".strip()),
        *("" if n is None else f"{n:,}" for n in numbers),
        "" if variant.kind == "raw" else f"{variant.seconds:.2f}",
    ]
