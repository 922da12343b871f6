"""What every measurement records: when, on what machine, with which versions; and its files.

Nothing large is loaded, see ``process``: hence the package's own facts on the machine, which come
with NumPy, are not used.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def memory(name: str, path: str = "/proc/self/status") -> int:
    """Bytes: ``VmRSS`` is the memory of this process, ``VmHWM`` its peak.

    ``MemAvailable`` of /proc/meminfo is what the machine can still give out.

    Raises:
        OSError: the system does not say.
    """
    words = _field(path, name).split()
    if not words:
        raise OSError(f"no {name} in {path}")
    return int(words[0]) << 10


def _field(path: str, name: str) -> str:
    """The value behind the first ``name:`` in a file of the system; "" where there is none."""
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def versions(*names: str) -> dict[str, str]:
    """Installed version of each distribution; absent ones are left out."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


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
            "versions": versions(*packages),
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
    for path, text in ((output, content), (tables, page)):
        temporary = path.with_suffix(path.suffix + ".new")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    return f"written: {output} and {tables}"
