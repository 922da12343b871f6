"""What a command did for each graph of a folder, one after the other."""

from __future__ import annotations

from rmsnorm_export.graph.bundle import Components
from rmsnorm_export.printable import printable
from rmsnorm_export.show import section_of, show_lines
from rmsnorm_export.show.page import Facts, Page
from rmsnorm_export.show.text import Line, kind_of_line, text_of


def components_lines(result: Components, *, verbose: int = 0) -> list[Line]:
    """Return the lines of every component under its name."""
    lines: list[Line] = []
    for name, one in result.results.items():
        shown = show_lines(one, verbose=verbose)
        title = [] if verbose < 0 else [(printable(name), "bold")]
        lines += ["", *title, *shown] if lines and verbose >= 0 else [*title, *shown]
    return lines


def components_page(result: Components) -> Page:
    """Return the page of a folder: a verdict and a section for each component."""
    firsts = {name: show_lines(one, verbose=-1)[0] for name, one in result.results.items()}
    verdicts = [(f"{name}: {text_of(line)}", kind_of_line(line)) for name, line in firsts.items()]
    sections = [section_of(one, name) for name, one in result.results.items()]
    facts = Facts([("Folder", str(result.path))])
    return Page("Graphs of a folder", result.path.name, verdicts, [facts], sections)
