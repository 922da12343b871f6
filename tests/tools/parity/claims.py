"""What the matrix has to establish, and every cell in which it does not.

- *Class*: ONNX Runtime lies within the numerics class that the report declares for the site. Rows
  in which a rounded intermediate overflows the half type in PyTorch are left out: ONNX Runtime's
  CPU keeps it in float32.
- *Accuracy*: our operator is never less accurate against float64 than PyTorch eager and one tie;
  nor is the portable file in ONNX Runtime, but for what its sum and its Sigmoid explain.
- *Mean*: over all rows of a variant and type the mean error of ours is not above that of eager.
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
    """Every claim on what was measured; cells without a yardstick are left out."""
    names = ("b class", "c accuracy", "c runtime", "c mean")
    classes, accuracy, runtime, mean = claims = [Claim(name) for name in names]
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for cell in cells:
        limits = cell.judged
        if limits is None:
            continue
        for target, allowed in limits.distance.items():
            if target in cell.distances:
                distances = cell.beside or cell.distances
                where = f"{cell} {target} ({cell.numerics[target]}), ulp from ours"
                classes.hold(where, distances[target], allowed)
        accuracy.hold(f"{cell}, ulp from float64", cell.errors[OURS].max, limits.error[OURS])
        if "portable" in limits.error:
            where = f"{cell}, ulp of the portable file from float64"
            runtime.hold(where, cell.errors["portable"].max, limits.error["portable"])
        total = sums[cell.subject, cell.dtype]
        total[0] += limits.drift[0]
        total[1] += limits.drift[1]
    for key, (apart, square) in sums.items():
        deviations = apart / math.sqrt(square) if square else 0.0
        mean.hold(f"{' '.join(key)}, standard deviations", deviations, _SYSTEMATIC)
    return claims
