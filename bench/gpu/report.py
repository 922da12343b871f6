"""The results of a check as they grow: lines by section, rows of measurements, and one page."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.lib.results import Start, about, bullets, write_results

PACKAGES = ("triton", "liger-kernel", "quack-kernels")
_SECTIONS = ("seen", "checked", "wrong", "not run")
_SECONDS = 5
"""Between two writes while rows come."""

Tables = Callable[[list[dict[str, Any]]], list[str]]
"""Rows as lines of Markdown."""


@dataclasses.dataclass
class Report:
    """What was done on a device.

    Attributes:
        path: of the JSON file; the page is beside it.
        title: of the page.
        device: that it was done on.
        tables: of the page.
        facts: lines under ``seen``, ``checked``, ``wrong`` and ``not run``; ``rows`` that were
            measured; the ``steps`` that are done.
    """

    path: Path
    title: str
    device: str
    tables: Tables
    facts: dict[str, Any] = dataclasses.field(
        default_factory=lambda: {name: [] for name in (*_SECTIONS, "rows", "steps")}
    )
    start: Start = dataclasses.field(default_factory=Start)
    written: float = 0.0

    def tell(self, name: str, value: Any) -> None:
        """Add a line to a section, or a row."""
        self.facts[name].append(value)
        if time.monotonic() > self.written + _SECONDS:
            self.write()

    def write(self) -> str:
        """Write what there is; return a line for the reader."""
        self.facts |= self.start.facts(*PACKAGES) | {"device": self.device}
        self.written = time.monotonic()
        return write_results(self.facts, self.page(), self.path)

    def page(self) -> str:
        """Return the report as Markdown."""
        lines = [f"# {self.title}", "", *bullets([self.device, *about(self.facts)])]
        for title in _SECTIONS:
            if self.facts[title]:
                lines += ["", f"## {title.capitalize()}", "", *bullets(self.facts[title])]
        if self.facts["rows"]:
            lines += ["", *self.tables(self.facts["rows"])]
        return "\n".join(lines) + "\n"

    def outcome(self) -> str:
        """Return the lines that end a run."""
        wrong = [f"WRONG: {text}" for text in self.facts["wrong"]]
        return "\n".join([*self.facts["checked"], *wrong])
