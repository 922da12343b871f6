"""What the matrix has to establish, and every cell in which it does not.

- *Class*: ONNX Runtime lies within the numerics class that the report declares for the site. Rows
  in which a rounded intermediate overflows the half type in PyTorch are omitted: ONNX Runtime's
  CPU keeps it in float32.
- *Accuracy*: our operator is never less accurate against float64 than PyTorch eager and one tie;
  nor is the portable file in ONNX Runtime, but for what its sum and its Sigmoid explain.
- *Mean*: over all rows of a variant and type the mean error of ours is not above that of eager.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from tests.tools.parity.limits import OURS, Limits

_SYSTEMATIC = 4.0
"""Standard deviations: among some hundred sums one is beyond 4 by chance once in 300 runs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """One variant, type, row length and scale of input.

    Attributes:
        subject: variant.
        dtype: of rows, weights and result.
        n: elements in a row.
        scale: of the input.
        distances: target -> largest distance of ONNX Runtime from ours, in ulp.
        errors: side -> largest error against float64, in ulp of its type.
        absent: side -> why it has no numbers.
        judged: what it is held to; None where float64 is no yardstick, see ``limits``.
        drift: sums over the rows of (error of ours - error of eager), and of its square: no side
            is systematically worse when the first is a few roots of the second.
    """

    subject: str
    dtype: str
    n: int
    scale: str
    distances: dict[str, float]
    errors: dict[str, float]
    absent: dict[str, str]
    judged: Limits | None
    drift: tuple[float, float]

    def __str__(self) -> str:
        return f"{self.subject} {self.dtype} n={self.n} {self.scale}"


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One claim in one place: what was measured and what is allowed there."""

    claim: str
    where: str
    measured: float
    allowed: float

    @property
    def holds(self) -> bool:
        """Return whether it does; NaN fails, too."""
        return self.measured <= self.allowed


def judge(cells: Sequence[Cell]) -> list[Check]:
    """Check every claim on what was measured; cells without a yardstick are omitted."""
    checks: list[Check] = []
    sums: dict[str, list[tuple[float, float]]] = {}
    for cell in cells:
        if (limits := cell.judged) is None:
            continue
        for target in limits.distance.keys() & cell.distances.keys():
            distance, allowed = cell.distances[target], limits.distance[target]
            checks.append(Check("b class", f"{cell} {target}, ulp from ours", distance, allowed))
        where = f"{cell}, ulp from float64"
        checks.append(Check("c accuracy", where, cell.errors[OURS], limits.ours))
        if "portable" in cell.errors:
            checks.append(Check("c runtime", where, cell.errors["portable"], limits.runtime))
        sums.setdefault(f"{cell.subject} {cell.dtype}", []).append(cell.drift)
    for key, drifts in sums.items():
        apart, square = map(sum, zip(*drifts, strict=True))
        deviations = apart / math.sqrt(square) if square else 0.0
        checks.append(Check("c mean", f"{key}, standard deviations", deviations, _SYSTEMATIC))
    return checks
