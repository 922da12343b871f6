"""What the record has to establish, and every cell in which it does not.

a. *Half precision*: ``half_proof``.
b. *Class*: ONNX Runtime lies within the numerics class that the report declares for the site.
c. *Accuracy*: our operator is never less accurate against float64 than PyTorch eager.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Sequence

from tests.tools.parity.measure import OURS, Cell

_SYSTEMATIC = 4.0
"""Standard deviations: among some hundred sums one is beyond 4 by chance once in 300 runs."""


@dataclasses.dataclass(slots=True)
class Claim:
    """One claim.

    Attributes:
        name: ``a``, ``b``, ``c`` and a word.
        text: what is claimed.
        checked: in how many cells.
        failed: cells in which it does not hold, and nothing derived or measured explains why.
        excepted: cells in which it does not hold as it stands: reason -> cells.
        noted: what else a reader should know: remark -> cells.
    """

    name: str
    text: str
    checked: int = 0
    failed: list[str] = dataclasses.field(default_factory=list)
    excepted: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    noted: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    @property
    def exceptions(self) -> int:
        return sum(map(len, self.excepted.values()))

    @property
    def verdict(self) -> str:
        """In a few words."""
        if not self.checked:
            return "was not run"
        if self.failed:
            return "FAILS"
        return f"holds but for {self.exceptions:,}" if self.excepted else "holds"

    def note(self, remark: str, where: str) -> None:
        self.noted.setdefault(remark, []).append(where)

    def accept(self, reason: str, where: str) -> None:
        self.excepted.setdefault(reason, []).append(where)


def judge(cells: Sequence[Cell]) -> list[Claim]:
    """Every claim on what was measured."""
    return [
        _classes(cells),
        _accuracy(cells),
        _runtime_accuracy(cells),
        _drift(cells),
    ]


def _classes(norms: Sequence[Cell]) -> Claim:
    claim = Claim(
        "b class",
        "ONNX Runtime lies within the numerics class that the report declares for the site",
    )
    for cell in norms:
        if cell.judged is None:
            remark = "rows beyond the range of the stash type, or no operator of this order"
            claim.note(f"{remark}: recorded only", str(cell))
            continue
        for target, allowed in cell.judged.distance.items():
            if (OURS, target) not in cell.pairs:
                continue
            claim.checked += 1
            found = cell.pairs[OURS, target].max
            if cell.notes.get("overflow"):
                found = cell.notes["beside"][target]
                claim.accept(
                    "a rounded intermediate overflows the half type in PyTorch; ONNX Runtime's CPU "
                    "keeps it in float32 and gives finite numbers (the other rows hold)",
                    f"{cell} {target}, {cell.notes['overflow']} rows",
                )
            if not found <= allowed:
                claim.failed.append(
                    f"{cell} {target} ({cell.numerics[target]}): {found:.4g} ulp from ours, "
                    f"{allowed:.4g} allowed"
                )
    return claim


def _accuracy(norms: Sequence[Cell]) -> Claim:
    claim = Claim(
        "c accuracy",
        "in PyTorch the largest error of ours against float64 is at most that of eager and one tie",
    )
    for cell in norms:
        if cell.judged is None:
            if OURS in cell.errors and cell.errors[OURS].max > cell.errors["eager"].max:
                claim.accept(
                    "eager is better on denormal rows beyond the range of the stash type "
                    "(PyTorch's norm of one element is its absolute value: no square vanishes; or "
                    "a denormal product falls the other way)",
                    str(cell),
                )
            continue
        claim.checked += 1
        found, eager = cell.errors[OURS].max, cell.errors["eager"].max
        if not found <= cell.judged.error[OURS]:
            claim.failed.append(
                f"{cell}: {found:.4g} ulp, eager {eager:.4g}, allowed {cell.judged.error[OURS]:.4g}"
            )
    return claim


def _runtime_accuracy(norms: Sequence[Cell]) -> Claim:
    claim = Claim(
        "c runtime",
        "the largest error of the portable file in ONNX Runtime is at most that of eager "
        "and one tie",
    )
    side = "portable"
    for cell in norms:
        if cell.judged is None or side not in cell.judged.error or side not in cell.errors:
            continue
        claim.checked += 1
        found, eager = cell.errors[side].max, cell.errors["eager"].max
        if not found <= cell.judged.error[side]:
            claim.failed.append(
                f"{cell}: {found:.4g} ulp, eager {eager:.4g}, allowed {cell.judged.error[side]:.4g}"
            )
        elif found > cell.judged.plain[side]:
            why = "a sum in another order than PyTorch's (ReduceMean) explains it"
            if "gate" in cell.subject.lower():
                why = "ONNX Runtime's Sigmoid kernel explains it, measured on the same gates"
            claim.accept(f"eager is better; {why}", f"{cell}: {found:.4g} ulp, eager {eager:.4g}")
    return claim


def _drift(norms: Sequence[Cell]) -> Claim:
    claim = Claim(
        "c mean",
        "over all rows of a variant and type the mean error of ours is not above that of eager by "
        f"more than {_SYSTEMATIC:g} standard deviations",
    )
    sums: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for cell in norms:
        if cell.judged is not None:
            both = sums[cell.level, cell.subject, cell.dtype]
            both[0] += cell.judged.drift[0]
            both[1] += cell.judged.drift[1]
    for key, (total, square) in sums.items():
        claim.checked += 1
        z = total / math.sqrt(square) if square else 0.0
        if z > _SYSTEMATIC:
            claim.failed.append(f"{' '.join(key[1:])}: {z:.1f} standard deviations")
    return claim
