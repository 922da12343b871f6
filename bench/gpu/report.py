"""The results of a check as they grow: lines by section, written after each step, and one page."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from bench.gpu.correct import Correctness
from bench.gpu.speed import table
from bench.lib.results import Start, about, bullets, write_results

PACKAGES = ("torch", "triton", "liger-kernel", "quack-kernels", "flashinfer-python")
_SECTIONS = ("seen", "checked", "wrong", "not run")


@dataclasses.dataclass
class Report:
    """What was done on a device.

    Attributes:
        path: of the JSON file; the page is beside it.
        facts: lines under ``seen``, ``checked``, ``wrong`` and ``not run``; ``rows`` of the speed;
            ``device``, ``seed``, ``copy_bytes_per_second``; the ``steps`` that are done.
    """

    path: Path
    facts: dict[str, Any]
    start: Start = dataclasses.field(default_factory=Start)

    @classmethod
    def begun(cls, path: Path, *, device: str, seed: int, resume: bool = False) -> Report:
        """Return an empty one, or, to ``resume``, that of the file where it is of this device."""
        empty: dict[str, Any] = {name: [] for name in (*_SECTIONS, "rows", "steps")}
        facts = {"device": device, "seed": seed, "copy_bytes_per_second": 0.0, **empty}
        if resume and path.is_file():
            before = json.loads(path.read_text(encoding="utf-8"))
            if before.get("device") == device:
                facts = before
        return cls(path, facts)

    def add(self, name: str, outcome: Correctness) -> None:
        self.facts["checked"].append(f"{name}: {outcome.line()}")
        self.facts["wrong"] += [f"{name}: {text}" for text in outcome.wrong]

    def done(self, step: str) -> str:
        """Write what there is; return a line for the reader."""
        self.facts["steps"].append(step)
        self.facts |= self.start.facts(*PACKAGES)
        return write_results(self.facts, self.page(), self.path)

    def page(self) -> str:
        """Return the report as Markdown."""
        facts = self.facts
        lines = ["# The kernels on a GPU", "", *bullets([facts["device"], *about(facts)])]
        for title in _SECTIONS:
            if facts[title]:
                lines += ["", f"## {title.capitalize()}", "", *bullets(facts[title])]
        if facts["rows"]:
            rate = facts["copy_bytes_per_second"]
            lines += ["", "## Speed", "", *table(facts["rows"], rate)]
        return "\n".join(lines) + "\n"

    def outcome(self) -> str:
        """Return the lines that end a run."""
        wrong = [f"WRONG: {text}" for text in self.facts["wrong"]]
        return "\n".join([*self.facts["checked"], *wrong])
