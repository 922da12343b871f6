"""The record as a compact table, as Markdown and as JSON."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rmsnorm_export.show.text import table as aligned
from tests.tools.lib.results import about, bullets
from tests.tools.lib.tables import markdown_table
from tests.tools.parity.claims import Claim
from tests.tools.parity.half_proof import Proof
from tests.tools.parity.measure import (
    BUCKETS,
    COLUMNS,
    EAGER,
    OPTIMIZED,
    OURS,
    PAIRS,
    SIDES,
    TARGETS,
    Cell,
    number,
    total,
)

HEADINGS = (
    *("norm", "type", "cells:", "ours:", "portable:", "onnx:", "ort:", "portable, ORT optimizer:"),
    *("error: eager:", "ours:", "portable:", "mean: eager:", "ours:", "portable:"),
    *("bitwise ours:", "portable:"),
)

LEGEND = (
    "All numbers are in units in the last place (ulp) of the type. The first five are the largest "
    "distance from PyTorch eager: of our operator in PyTorch, and of ONNX Runtime's CPU on the "
    "file of each target (graph optimization off; once more with it on). `error`: the largest "
    "error against float64 (of float64: against extended precision), `mean`: the mean error, "
    "weighted by elements. `bitwise`: share of elements equal to eager's. The model level counts "
    "in ulp of the largest logit. `-`: no kernel on the CPU, or not asked. `inf`: finite on one "
    "side only."
)


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """Cells of one subject and type together."""

    subject: str
    dtype: str
    cells: tuple[Cell, ...]

    def texts(self) -> list[str]:
        judged = [c for c in self.cells if c.judged is not None or c.level == "model"]
        judged = judged or list(self.cells)
        texts = [self.subject, self.dtype, str(len(self.cells))]
        for side in (OURS, *TARGETS, OPTIMIZED):
            pairs = [c.pairs[EAGER, side] for c in judged if (EAGER, side) in c.pairs]
            texts.append(_text(max((p.max for p in pairs), default=None)))
        sides = (EAGER, OURS, "portable")
        for side in sides:
            errors = [c.errors[side].max for c in judged if side in c.errors]
            texts.append(_text(max(errors, default=None)))
        for side in sides:
            found = [(c.errors[side].mean, c.elements) for c in judged if side in c.errors]
            mean = sum(m * k for m, k in found) / sum(k for _, k in found) if found else None
            texts.append(_text(mean, 3))
        for side in (OURS, "portable"):
            both = [
                (c.pairs[EAGER, side].differ, c.elements)
                for c in judged
                if (EAGER, side) in c.pairs
            ]
            if not both:
                texts.append("-")
                continue
            share = 1 - sum(d * k for d, k in both) / sum(k for _, k in both)
            exact = all(d == 0 for d, _ in both)
            texts.append("all" if exact else f"{min(share * 100, 99.999):.4g} %")
        return texts


def _text(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:,.{digits}g}" if value < 1000 else f"{value:,.0f}"


def table(cells: Sequence[Cell], level: str) -> list[Line]:
    """One line per subject and type."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if cell.level == level:
            groups.setdefault((cell.subject, cell.dtype), []).append(cell)
    return [Line(*key, tuple(found)) for key, found in groups.items()]


def _head(report: dict[str, Any]) -> list[str]:
    quick = ", --quick" if report["options"]["quick"] else ""
    return about(report, f", one thread, {report['seconds']} s{quick}")


def verdicts(claims: Sequence[Claim]) -> list[str]:
    """One line per claim."""
    return [
        f"{claim.name}: {claim.verdict}, {claim.checked:,} checked"
        for claim in claims
        if claim.checked
    ]


def lines(
    report: dict[str, Any], cells: Sequence[Cell], proofs: Sequence[Proof], claims: Sequence[Claim]
) -> list[str]:
    """For the terminal: fixed widths."""
    found = _head(report)
    for level in ("module", "class", "model"):
        rows = [line.texts() for line in table(cells, level)]
        if rows:
            rows.insert(0, [heading.removesuffix(":") for heading in HEADINGS])
            found += ["", f"{level} level, ulp from PyTorch eager"]
            found += aligned(rows, right=range(2, len(HEADINGS)), indent="")
    if proofs:
        found += ["", _proof_line(proofs)]
    return [*found, "", *(f"claim {text}" for text in verdicts(claims))]


def _proof_line(proofs: Sequence[Proof]) -> str:
    classes = sum(p.members for p in proofs)
    exact = sum(p.members - len(p.failed) for p in proofs if p.holds)
    orders = sum(p.orders for p in proofs)
    ordinary = sum(p.ordinary for p in proofs if p.holds) / max(1, sum(p.holds for p in proofs))
    return (
        f"rounding order: {exact} of {classes} class and half type cases bitwise, {orders} other "
        f"orders told apart, {ordinary:.3%} of elements equal on ordinary rows"
    )


def markdown(
    report: dict[str, Any], cells: Sequence[Cell], proofs: Sequence[Proof], claims: Sequence[Claim]
) -> str:
    """The record as a page."""
    page = ["# Parity with PyTorch", "", *bullets(_head(report)), ""]
    page += ["Made by `tests/tools/parity/run`. " + LEGEND, ""]
    if any(cell.level == "module" for cell in cells):
        page += ["![How far from PyTorch eager, in ulp, per variant and type](parity.png)", ""]
    page += ["## Claims", ""]
    for claim in claims:
        page.append(
            f"- **{claim.name}: {claim.verdict}**, {claim.checked:,} checked. {claim.text}."
        )
        page += [f"  - fails: {text}" for text in claim.failed]
        for reason, where in [*claim.excepted.items(), *claim.noted.items()]:
            some = "; ".join(where[:6]) + (f"; and {len(where) - 6} more" if len(where) > 6 else "")
            page.append(f"  - {len(where)} x {reason}: {some}")
    page += ["", "## What was not run", ""]
    page += [f"- {text}" for text in missing(cells)] or ["- nothing"]
    if proofs:
        page += ["", "## Rounding order in half precision", "", _proof_line(proofs) + ".", ""]
        headings = ("class", "type", "classes:", "quotient", "other orders:", "told apart:")
        rows = [
            [
                *(p.key, p.dtype, str(p.members), p.declared or "none", str(p.orders)),
                *(str(p.orders - len(p.confused)), f"{p.ordinary:.4%}"),
            ]
            for p in proofs
        ]
        page += markdown_table((*headings, "ordinary rows:"), rows)
    for level, title in (
        ("module", "Modules"), ("class", "Classes of transformers"), ("model", "Models")
    ):  # fmt: skip
        rows = [line.texts() for line in table(cells, level)]
        if rows:
            page += ["", f"## {title}", "", *markdown_table(HEADINGS, rows)]
    return "\n".join(page).rstrip() + "\n"


def missing(cells: Sequence[Cell]) -> list[str]:
    """What has no numbers, and why: never silently."""
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for cell in cells:
        for side, why in cell.absent.items():
            counts[cell.level, cell.dtype, side, why] += 1
    return [
        f"{count} x {level} level, {dtype}, {side}: {why}"
        for (level, dtype, side, why), count in sorted(counts.items())
    ]


def as_json(
    report: dict[str, Any], cells: Sequence[Cell], proofs: Sequence[Proof], claims: Sequence[Claim]
) -> dict[str, Any]:
    """Everything, in ulp.

    A cell is a list in the order of ``columns``. Its ``pairs`` are ``[max, mean, share that
    differs]`` in the order of ``pairs``, its ``errors`` against float64 ``[max, mean]`` in the
    order of ``sides``; null: no numbers.
    """
    histograms: dict[str, dict[str, list[int]]] = {}
    for level in ("module", "class"):
        for line in table(cells, level):
            sides = {b for cell in line.cells for a, b in cell.pairs if a == EAGER}
            histograms[f"{line.subject}, {line.dtype}"] = {
                side: total(
                    [c.pairs[EAGER, side].histogram for c in line.cells if (EAGER, side) in c.pairs]
                )
                for side in sorted(sides)
            }
    return {
        **report,
        "claims": [dataclasses.asdict(claim) for claim in claims],
        "proofs": [
            {**dataclasses.asdict(proof), "ordinary": number(proof.ordinary)} for proof in proofs
        ],
        "missing": missing(cells),
        "sides": SIDES,
        "pairs": [f"{a} - {b}" for a, b in PAIRS],
        "buckets": BUCKETS,
        "histograms": histograms,
        "columns": COLUMNS,
        "cells": [cell.row() for cell in cells],
    }
