"""The demo's rows as a table, and what in them must not happen."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import rmsnorm_export as rx
from bench.demo.models import ARCHITECTURES, type_of
from bench.lib.results import PAGES
from rmsnorm_export.benchmark.result import Timing
from rmsnorm_export.show.text import Table, render

LOGIT_BOUND = {"float32": 1e-4, "float16": 1e-2}
"""Largest logit difference, relative to the largest logit. One ulp per norm is 6e-8 (f32) or 5e-4
(f16); some twenty norms and the matrices between them amplify that. A constant in the place of one
random gain moved the logits by 0.008 to 0.6 in f32, and by 0.03 or more in f16."""

STRAIGHT = "rx.export"
"""Stands in the column of targets for the portable file made straight from the module."""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One architecture on one target: a line of the table."""

    name: str
    target: str
    norm_calls: int
    report: rx.Report
    source_difference: float
    torch_difference: float
    speed: Timing

    def problems(self) -> list[str]:
        """What must not happen."""
        report, bound = self.report, LOGIT_BOUND[type_of(self.name)]
        fused, sites = len(report.fused), len(report.fused) + len(report.kept)
        missing, off = self.norm_calls - sites, "the logits are {:.1e} off {}'s".format
        every = missing == 0 or self.target not in ("portable", STRAIGHT)
        named = self.target != STRAIGHT or all(site.module for site in report.fused)
        failed = any(refusal.reason == "proof-failed" for refusal in report.refused)
        checks = (
            (every, f"{sites} of {self.norm_calls} norms are one node"),
            (missing <= len(report.refused), f"{missing} norms are missing, not all with a reason"),
            (self.proved == fused, f"{self.proved} of {fused} sites are proved"),
            (named, "a site does not know its module"),
            (not failed, "a proof failed"),
            # NaN is not within a bound.
            (self.source_difference <= bound, off(self.source_difference, "the export")),
            (self.torch_difference <= bound, off(self.torch_difference, "PyTorch")),
        )
        return [f"{self.name}, {self.target}: {text}" for holds, text in checks if not holds]

    @property
    def proved(self) -> int:
        """Sites with a proof that holds."""
        return sum(site.proof is not None and site.proof.passed for site in self.report.fused)

    def classes(self) -> str:
        """How many sites have which class of numerics."""
        counts = Counter(site.numerics for site in self.report.fused)
        return ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))

    def cells(self) -> list[str]:
        """The line of the table."""
        report, time = self.report, self.speed
        return [
            self.name,
            self.target,
            *map(str, (self.norm_calls, len(report.fused), len(report.refused), self.proved)),
            self.classes(),
            f"{report.nodes_before} -> {report.nodes_after}",
            f"{self.source_difference:.0e}",
            f"{self.torch_difference:.0e}",
            f"{time.ratio:.2f} ({time.low:.2f}-{time.high:.2f})"
            + ("" if time.verdict in ("faster", "slower") else " ="),
        ]


_TARGET_HEADINGS = (
    "model", "target", "norms", "fused", "refused", "proved", "numerics", "nodes",
    "logits: export", "torch", "time",
)  # fmt: skip
_NUMBERS = {*_TARGET_HEADINGS[2:6], *_TARGET_HEADINGS[7:10]}


def show(rows: Sequence[Row]) -> None:
    """Print the table, what its columns say, and what the norms of each model are."""
    names = dict.fromkeys(row.name for row in rows)
    table = Table("", _TARGET_HEADINGS, [row.cells() for row in rows], _NUMBERS)
    print(render([table]), PAGES.get_template("demo.md.j2").render(), sep="\n")
    print(*(f"{name}: {ARCHITECTURES[name].why}" for name in names), "", sep="\n")
