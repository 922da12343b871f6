"""What every measurement records: when, on what machine, with which versions; and its files."""

from __future__ import annotations

import dataclasses
import json
import platform
import statistics
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rmsnorm_export.system.files import write_whole
from rmsnorm_export.system.machine import cores, cpu_name, load_average, memory_gib
from rmsnorm_export.system.packages import versions_of
from rmsnorm_export.system.provenance import utc_now
from toolbox.command import say

PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parents[1] / "pages"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
PAGES.filters["median"] = statistics.median
"""The templates of the pages."""


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


def publish(page: str, report: dict[str, Any], output: Path, **facts: object) -> str:
    """Write a report as JSON to ``output`` and its page beside it, each whole or not at all.

    Args:
        page: name of its template in bench/pages.
        report: what the page is of, and is given.
        output: the file.
        facts: what else the page is given.

    Returns:
        The page.
    """
    text = PAGES.get_template(f"{page}.md.j2").render(report, **facts)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_whole(output, json.dumps(report, indent=1) + "\n")
    write_whole(output.with_suffix(".md"), text)
    say(f"written: {output} and {output.with_suffix('.md')}")
    return text
