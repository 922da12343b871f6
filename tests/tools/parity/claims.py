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


@dataclasses.dataclass(slots=True)
class Claim:
    """One claim: in how many cells it was checked, and those in which it does not hold."""

    name: str
    checked: int = 0
    failed: list[str] = dataclasses.field(default_factory=list)

    def hold(self, where: str, measured: float, allowed: float) -> None:
        """Count a cell; NaN fails, too."""
        self.checked += 1
        if not measured <= allowed:
            self.failed.append(f"{where}: {measured:.4g}, {allowed:.4g} allowed")


def judge(cells: Sequence[Cell]) -> list[Claim]:
    """Return every claim on what was measured; cells without a yardstick are omitted."""
    names = ("b class", "c accuracy", "c runtime", "c mean")
    classes, accuracy, runtime, mean = claims = [Claim(name) for name in names]
    sums: dict[str, list[tuple[float, float]]] = {}
    for cell in cells:
        if cell.judged is None:
            continue
        for target in cell.judged.distance.keys() & cell.distances.keys():
            where = f"{cell} {target}, ulp from ours"
            classes.hold(where, cell.distances[target], cell.judged.distance[target])
        accuracy.hold(f"{cell}, ulp from float64", cell.errors[OURS], cell.judged.ours)
        if "portable" in cell.errors:
            where = f"{cell}, ulp of the portable file from float64"
            runtime.hold(where, cell.errors["portable"], cell.judged.runtime)
        sums.setdefault(f"{cell.subject} {cell.dtype}", []).append(cell.drift)
    for key, drifts in sums.items():
        apart, square = map(sum, zip(*drifts, strict=True))
        deviations = apart / math.sqrt(square) if square else 0.0
        mean.hold(f"{key}, standard deviations", deviations, _SYSTEMATIC)
    return claims
