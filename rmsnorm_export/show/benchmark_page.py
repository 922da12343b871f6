"""A benchmark as a page, or as a section of one: tables whose rows hold their interval as a plot.

The numbers stand beside every mark, so that nothing is told by colour or by place alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from rmsnorm_export.benchmark.result import AGAIN, Benchmark, Timing, headlines
from rmsnorm_export.printable import one_line
from rmsnorm_export.show.benchmark_text import rounds_text, said
from rmsnorm_export.show.forest import Scale, axis, row_plot
from rmsnorm_export.show.page import About, Section, page
from rmsnorm_export.show.page.markup import (
    Content,
    Markup,
    code,
    facts,
    join,
    scroller,
    tag,
)

_NUMBERS = ("95 % interval", "Median ms", "Quartiles ms", "Peak MiB")


def benchmark_page(result: Benchmark, about: About | None = None) -> str:
    """The whole document."""
    about = about or About()
    return page("Benchmark", result.source, [_summary(result, about), benchmark_section(result)])


def benchmark_section(result: Benchmark) -> Section:
    """Every table, what is not ranked, and how it was measured."""
    body: list[Content] = [
        tag(
            "p",
            "Each variant's time over raw's time in the same round: the median and its 95 % "
            "interval. Left of 1 is faster. The grey band is noise: as far as a second session of "
            "the very same raw file strays.",
        )
    ]
    for provider in result.providers:
        for case in result.cases:
            timings = result.timed(provider, case.label)
            if timings:
                body.append(_table(result, provider, timings))
    body += [_unranked(result), _files(result), _inputs(result)]
    return Section("benchmark", "Benchmark", join(body), len(result.timings))


def _summary(result: Benchmark, about: About) -> Section:
    machine = result.machine
    load = "not known"
    if machine.load_before is not None:
        load = f"{machine.load_before:g} before, {machine.load_after:g} after"
    pairs: list[tuple[str, Content]] = [
        ("Model", code(result.source)),
        ("Machine", f"{one_line(machine.cpu)}, {machine.cores} cores, {machine.memory_gib:g} GiB"),
        ("Load average", load),
        ("Sessions", ", ".join(f"{key} {value}" for key, value in result.session.items())),
        ("Numerics up to", result.numerics),
        ("Versions", ", ".join(f"{n} {v}" for n, v in result.versions.items())),
        ("Seed", str(result.seed)),
        ("Time", f"{result.seconds:.0f} s"),
        ("Date", about.date or None),
        *((name, one_line(text)) for name, text in about.facts),
    ]
    body = [
        *(_verdict(line, result) for line in headlines(result)),
        _problem(about),
        facts(pairs, "facts wide"),
        *(tag("p", f"Note: {one_line(note)}", class_="note") for note in result.notes),
    ]
    return Section("summary", "Summary", join(body))


def _verdict(line: str, result: Benchmark) -> Markup:
    return tag("p", tag("strong", one_line(line)), class_=f"verdict {_kind(line, result)}".strip())


def _kind(line: str, result: Benchmark) -> str:
    if not result.passed:
        return "bad"
    return "warn" if "slower" in line else "good" if "faster" in line else ""


def _problem(about: About) -> Markup | None:
    if about.problem is None:
        return None
    what, found, fix = (one_line(text) for text in about.problem)
    lines = facts([("Error", what), ("Found", found or None), ("Fix", fix or None)])
    return tag("div", lines, class_="problem", role="note")


def _table(result: Benchmark, provider: str, timings: Sequence[Timing]) -> Markup:
    base, scale = timings[0], Scale.of(result.timings)
    heads = [
        tag("th", "Variant", scope="col"),
        tag("th", "Time / raw", scope="col", class_="num"),
        tag("th", axis(scale), scope="col"),
        *(tag("th", name, scope="col", class_="num") for name in _NUMBERS),
        tag("th", "Verdict", scope="col"),
    ]
    title = f"{provider}, {one_line(base.case)}: raw {base.median_ms:.4g} ms, {rounds_text(base)}"
    table = tag(
        "table",
        tag("caption", title, class_="hidden"),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *(_row(result, timing, scale) for timing in timings)),
    )
    return join([tag("h3", title), scroller(title, table)])


def _row(result: Benchmark, timing: Timing, scale: Scale) -> Markup:
    peak = result.peak_mib(timing.variant, timing.provider)
    is_base = timing.verdict == "baseline"
    numbers = (
        "" if is_base else f"{timing.low:.3f} \u2013 {timing.high:.3f}",
        f"{timing.median_ms:.4g}",
        f"{timing.q1_ms:.4g} \u2013 {timing.q3_ms:.4g}",
        "" if peak is None or timing.variant == AGAIN else f"{peak:,.0f}",
    )
    verdict = said(timing)
    kinds = {"faster": "badge good", "slower": "badge bad"}
    kind = kinds.get(timing.verdict)
    return tag(
        "tr",
        tag("th", tag("code", timing.variant), scope="row", class_="whole"),
        tag("td", "1" if is_base else f"{timing.ratio:.3f}", class_="num"),
        tag("td", row_plot(timing, scale)),
        *(tag("td", text, class_="num") for text in numbers),
        tag("td", tag("span", verdict, class_=kind) if kind else verdict, class_="whole"),
    )


def _unranked(result: Benchmark) -> Markup | None:
    rows = [
        tag("li", code(name), f"{f' on {place}' if place else ''}: {one_line(why)}")
        for name, place, why in result.unranked()
    ]
    return join([tag("h3", "Not ranked"), tag("ul", *rows, class_="names")]) if rows else None


def _files(result: Benchmark) -> Markup:
    heads = [tag("th", "File", scope="col")]
    heads += [
        tag("th", name, scope="col", class_="num")
        for name in ("Nodes", "Norms as one node", "Refused", "Made in s")
    ]
    rows = []
    for variant in result.variants:
        numbers = (variant.nodes, variant.fused, variant.refused)
        name = f"{variant.name} {variant.version}".strip()
        rows.append(
            tag(
                "tr",
                tag("th", code(name), scope="row"),
                *(tag("td", "" if n is None else f"{n:,}", class_="num") for n in numbers),
                tag("td", "" if variant.kind == "raw" else f"{variant.seconds:.2f}", class_="num"),
            )
        )
    return tag(
        "table",
        tag("caption", "What was measured"),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *rows),
        class_="wrap",
    )


def _inputs(result: Benchmark) -> Markup:
    items = (
        tag("li", code(f"{case.label}: {', '.join(case.inputs)}", 600)) for case in result.cases
    )
    return tag("details", tag("summary", "Inputs"), tag("ul", *items, class_="names"))
