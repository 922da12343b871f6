"""What every measurement records: when, on what machine, with which versions; and its files."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec.toml

from rmsnorm_export.system.files import write_whole
from rmsnorm_export.system.machine import cores, cpu_name, load_average, memory_gib
from rmsnorm_export.system.packages import versions_of
from rmsnorm_export.system.provenance import utc_now
from toolbox.command import say

_PAGES = msgspec.toml.decode(Path(__file__).parents[1].joinpath("pages.toml").read_bytes())


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """When a measurement began, which is its date, and how busy the machine was then."""

    date: str = dataclasses.field(default_factory=utc_now)
    load: float = dataclasses.field(default_factory=load_average)

    def facts(self, *packages: str) -> dict[str, Any]:
        """Return the head of a report, at its end; ``packages``: used besides ``TOOLS``."""
        machine = {"cpu": cpu_name(), "cores": cores(), "memory_gib": memory_gib()}
        machine |= {"system": platform.system(), "python": platform.python_version()}
        return {
            "schema_version": 1,
            "date": self.date,
            "machine": machine,
            "load_average": {"before": self.load, "after": load_average()},
            "versions": versions_of() | versions_of(packages),
        }


def about(report: dict[str, Any]) -> list[str]:
    """Return ``Start.facts`` in three lines."""
    host, load = report["machine"], report["load_average"]
    return [
        f"{report['date']}, {host['cpu']}, {host['cores']} cores, {host['memory_gib']} GiB, "
        f"Python {host['python']}",
        ", ".join(f"{name} {text}" for name, text in report["versions"].items()),
        f"load average of the machine: {load['before']:.2f} before, {load['after']:.2f} after",
    ]


def bullets(lines: Sequence[str]) -> list[str]:
    """Return the lines as a list of a Markdown page."""
    return [f"- {line}" for line in lines]


def meaning(page: str, **numbers: object) -> list[str]:
    """Return what a page says of its columns, with these numbers in it."""
    return [point.format(**numbers) for point in _PAGES[page]]


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table; a heading that ends with a colon stands over numbers."""
    marks = ["---:" if heading.endswith(":") else "---" for heading in headings]
    names = [heading.removesuffix(":") for heading in headings]
    lines = [f"| {' | '.join(row)} |" for row in (names, *rows)]
    return [lines[0], f"|{'|'.join(marks)}|", *lines[1:]]


def publish(
    report: dict[str, Any], title: str, head: Sequence[str], lines: Sequence[str], output: Path
) -> str:
    """Write a report as JSON to ``output`` and its page beside it, each whole or not at all.

    Returns:
        The page: below its title what ``about`` and ``head`` say, then the lines.
    """
    page = "\n".join([f"# {title}", "", *bullets([*about(report), *head]), "", *lines, ""])
    output.parent.mkdir(parents=True, exist_ok=True)
    write_whole(output, json.dumps(report, indent=1) + "\n")
    write_whole(output.with_suffix(".md"), page)
    say(f"written: {output} and {output.with_suffix('.md')}")
    return page
