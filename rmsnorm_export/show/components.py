"""What a command did for each graph of a folder, one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rmsnorm_export.benchmark.result import Benchmark
from rmsnorm_export.graph.bundle import Components
from rmsnorm_export.printable import printable
from rmsnorm_export.show import show_lines
from rmsnorm_export.show.benchmark import benchmark_section
from rmsnorm_export.show.engine import engine_section
from rmsnorm_export.show.page.document import About, Section, document, summary
from rmsnorm_export.show.page.markup import code, facts
from rmsnorm_export.show.text import Line, Verdict
from rmsnorm_export.tensorrt.engine.result import EngineResult


def components_lines(result: Components, *, verbose: int = 0) -> list[Line]:
    """The lines of every component under its name."""
    lines: list[Line] = []
    for name, one in result.results.items():
        shown = show_lines(one, verbose=verbose)
        title = [] if verbose < 0 else [(printable(name), "bold")]
        lines += ["", *title, *shown] if lines and verbose >= 0 else [*title, *shown]
    return lines


def components_page(result: Components, *, about: About) -> str:
    """The page of benchmarks or engines: a section for each."""
    verdicts: list[Verdict] = []
    sections: list[Section] = []
    for name, one in result.results.items():
        if isinstance(one, Benchmark):
            part = benchmark_section(one)
        elif isinstance(one, EngineResult):
            part = engine_section(one.record)
        else:
            raise TypeError(f"{type(one).__name__} has no page to show")
        first: Sequence[Line] = show_lines(one, verbose=-1)
        text = first[0] if isinstance(first[0], str) else first[0][0]
        good = one.passed if isinstance(one, Benchmark) else True
        verdicts.append((f"{name}: {text}", "" if good else "bad"))
        title = f"{part.title} of {name}"
        sections.append(dataclasses.replace(part, id=f"{name}-{part.id}", title=title))
    pairs = [("Folder", code(str(result.path))), *about.pairs()]
    head = summary(verdicts, about, facts(pairs, "facts wide"))
    return document("Graphs of a folder", result.path.name, [head, *sections])
