"""What every measurement records: when, on what machine, with which versions; and its files.

Nothing large is loaded, see ``process``.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rmsnorm_export.system.files import write_whole
from rmsnorm_export.system.machine import cores, cpu_name, memory_gib
from rmsnorm_export.system.packages import versions_of


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "cpu": cpu_name(),
        "cores": cores(),
        "memory_gib": memory_gib(),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def date() -> str:
    """Now, to the minute."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """When a measurement began, which is its date, and how busy the machine was then."""

    date: str = dataclasses.field(default_factory=date)
    load: float = dataclasses.field(default_factory=lambda: os.getloadavg()[0])

    def facts(self, *packages: str) -> dict[str, Any]:
        """The head of a report, at its end."""
        return {
            "schema_version": 1,
            "date": self.date,
            "machine": machine(),
            "load_average": {"before": self.load, "after": os.getloadavg()[0]},
            "versions": versions_of(packages),
        }


def about(report: dict[str, Any], more: str = "") -> list[str]:
    """`Start.facts` in three lines; ``more`` follows those on the machine."""
    host = report["machine"]
    return [
        f"{report['date']}, {host['cpu']}, {host['cores']} cores, {host['memory_gib']} GiB, "
        f"Python {host['python']}{more}",
        *about_software(report),
    ]


def about_software(report: dict[str, Any]) -> list[str]:
    """The versions, and the load of the machine."""
    load = report["load_average"]
    return [
        ", ".join(f"{name} {text}" for name, text in report["versions"].items()),
        f"load average of the machine: {load['before']:.2f} before, {load['after']:.2f} after",
    ]


def bullets(lines: Sequence[str]) -> list[str]:
    """Of a Markdown page."""
    return [f"- {line}" for line in lines]


def write_results(report: dict[str, Any], page: str, output: Path, *, compact: bool = False) -> str:
    """Write the report as JSON to ``output`` and its page beside it, each whole or not at all.

    Returns:
        What was written, for the reader.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    separators = (",", ":") if compact else None
    content = json.dumps(report, indent=None if compact else 1, separators=separators) + "\n"
    tables = output.with_suffix(".md")
    write_whole(output, content)
    write_whole(tables, page)
    return f"written: {output} and {tables}"
