"""One cell of the record: every two sides compared, every side against float64."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np

from rmsnorm_export.op.dtypes import Array, Float64Array
from rmsnorm_export.runtime.metrics import ulp_distance, ulp_unit
from tests.tools.parity.truth import error_of

EAGER, OURS, OPTIMIZED = "eager", "ours", "portable+"
TARGETS = ("portable", "onnx", "ort")
RUNTIMES = (*TARGETS, OPTIMIZED)
"""ONNX Runtime: the file of each target as it is, and ``portable`` after ORT's own optimizer."""

SIDES = (EAGER, OURS, *RUNTIMES)
PAIRS = tuple((a, b) for a in (EAGER, OURS) for b in SIDES[1:] if a != b)

COLUMNS = (
    *("level", "subject", "dtype", "n", "scale", "elements"),
    *("numerics", "judged", "pairs", "errors", "notes"),
)
"""Of a cell in JSON; ``numerics``: the declared class for each target."""

BUCKETS = ("0", "1", "2", "3-4", "5-8", "9-16", "17+", "inf")


@dataclasses.dataclass(frozen=True, slots=True)
class Distance:
    """Between two sides, in ulp of their type.

    Attributes:
        max, mean: of all elements; infinite when NaN or infinity is on one side only. The mean is
            that of the finite distances.
        differ: share of the elements that are not equal.
        histogram: elements per bucket of ``BUCKETS``.
    """

    max: float
    mean: float
    differ: float
    histogram: tuple[int, ...]

    @property
    def bitwise(self) -> bool:
        return self.differ == 0


@dataclasses.dataclass(frozen=True, slots=True)
class Error:
    """Of one side against float64, in ulp of its type; the mean is that of the finite errors."""

    max: float
    mean: float


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What the claims allow in one cell; ``limits`` derives it.

    Attributes:
        distance: target -> largest distance from ours that its declared class allows, in ulp.
        error: side -> largest error against float64 allowed, in ulp.
        plain: the same for ONNX Runtime without what its own kernels explain.
        drift: sums over the rows of (error of ours - error of eager), and of its square: no side
            is systematically worse when the first is a few roots of the second.
    """

    distance: dict[str, float]
    error: dict[str, float]
    plain: dict[str, float]
    drift: tuple[float, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """One row of the matrix.

    Attributes:
        level: ``module`` or ``class``.
        subject: variant, class or architecture.
        dtype: of rows, weights and result.
        n: elements in a row.
        scale: of the input.
        elements: that were compared.
        pairs: ``(side, side)`` -> their distance.
        errors: side -> its error.
        numerics: target -> the class that the report declares; ``-``: left as it was.
        absent: side -> why it has no numbers.
        judged: what it is held to; None where float64 is no yardstick, see ``limits``.
        notes: what else is to be known.
    """

    level: str
    subject: str
    dtype: str
    n: int
    scale: str
    elements: int
    pairs: dict[tuple[str, str], Distance]
    errors: dict[str, Error]
    numerics: dict[str, str]
    absent: dict[str, str]
    judged: Limits | None = None
    notes: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        size = f"n={self.n}" if self.n else ""
        return " ".join(filter(None, (self.subject, self.dtype, size, self.scale)))

    def row(self) -> list[Any]:
        """For JSON, in the order of ``COLUMNS``."""
        return [
            self.level,
            self.subject,
            self.dtype,
            self.n,
            self.scale,
            self.elements,
            "/".join(self.numerics.get(target, "-") for target in TARGETS),
            self.judged is not None,
            [_numbers(self.pairs.get(pair), "max", "mean", "differ") for pair in PAIRS],
            [_numbers(self.errors.get(side), "max", "mean") for side in SIDES],
            self.notes,
        ]


def _numbers(value: Distance | Error | None, *names: str) -> list[float | str] | None:
    return None if value is None else [number(getattr(value, name)) for name in names]


def number(value: float) -> float | str:
    """For JSON: three digits, infinity as a word."""
    if math.isinf(value):
        return "inf"
    short = float(f"{value:.3g}")
    return int(short) if short.is_integer() else short


def distance(a: Array, b: Array, magnitude: Array | None = None) -> Distance:
    """Between ``a`` and ``b``.

    Args:
        magnitude: numbers whose ulp is the unit, where a sum with a bias may cancel.
    """
    steps = ulp_distance(a, b)
    if magnitude is not None and steps.any():
        with np.errstate(all="ignore"):
            apart = np.abs(a.astype(np.float64) - b.astype(np.float64))
            apart = apart / ulp_unit(a.dtype, magnitude.astype(np.float64))
        steps = np.where(np.isfinite(steps) & (steps != 0), apart, steps)
    finite = steps[np.isfinite(steps)]
    return Distance(
        max=float(steps.max(initial=0.0)),
        mean=float(finite.mean()) if finite.size else 0.0,
        differ=float(np.count_nonzero(steps)) / max(1, steps.size),
        histogram=histogram(steps),
    )


def histogram(steps: Float64Array) -> tuple[int, ...]:
    """Elements per bucket; a fraction of an ulp counts as the next whole one."""
    edges = [-1, 0, 1, 2, 4, 8, 16]
    finite = np.ceil(steps[np.isfinite(steps)])
    counts = [int(np.count_nonzero((finite > a) & (finite <= b))) for a, b in pairwise(edges)]
    return (*counts, int(np.count_nonzero(finite > edges[-1])), int(steps.size - finite.size))


def error(values: Array, truth: Array, magnitude: Array | None = None) -> Error:
    """Of ``values`` against ``truth``; arguments as ``truth.error_of``."""
    found = error_of(values, truth, magnitude)
    finite = found[np.isfinite(found)]
    return Error(float(found.max(initial=0.0)), float(finite.mean()) if finite.size else 0.0)


def measure(
    sides: dict[str, Array], truth: Array | None, magnitude: Array | None = None
) -> tuple[dict[tuple[str, str], Distance], dict[str, Error]]:
    """Every pair that is asked about, and every error.

    Args:
        sides: results by side; ``eager`` and ``ours`` are among them.
        truth: the formula in float64.
        magnitude: as for ``distance``.
    """
    pairs = {
        (a, b): distance(sides[a], sides[b], magnitude) for a, b in PAIRS if {a, b} <= sides.keys()
    }
    if truth is None:
        return pairs, {}
    return pairs, {side: error(value, truth, magnitude) for side, value in sides.items()}


def overflow(sides: dict[str, Array], truth: Array, outputs: int, rows: int) -> dict[str, Any]:
    """Rows in which a half type cannot hold a rounded intermediate, or the residual sum.

    PyTorch's answer is then infinite (after a sum the whole row is lost), that of ONNX Runtime's
    CPU, which keeps such an intermediate in float32, is not. These rows are counted, and the others
    compared by themselves.

    Args:
        sides, truth: all outputs, one after the other.
        outputs: how many.
        rows: of each.
    """
    ours = sides[OURS]
    finite = np.isfinite(truth)
    if outputs == 1:  # what no side can hold is no loss
        with np.errstate(over="ignore"):
            finite &= np.isfinite(truth.astype(ours.dtype))
    lost = ~np.isfinite(ours) & finite
    if ours.dtype.itemsize > 2 or not lost.any():
        return {}
    hit = lost.reshape(outputs, rows, -1).any(axis=(0, 2))
    lost = np.broadcast_to(hit[None, :, None], (outputs, rows, lost.size // outputs // rows))
    lost = lost.reshape(-1)
    beside = {t: distance(ours[~lost], sides[t][~lost]).max for t in RUNTIMES if t in sides}
    return {"overflow": int(hit.sum()), "beside": beside}


def drift(eager: Array, ours: Array, truth: Array, rows: int) -> tuple[float, float]:
    """Sums over the rows of the difference of the two errors, and of its square.

    The elements of a row share a root mean square, so rows are what is independent.
    """
    apart = error_of(ours, truth) - error_of(eager, truth)
    by_row = np.where(np.isfinite(apart), apart, 0.0).reshape(rows, -1).sum(-1)
    return float(by_row.sum()), float(np.square(by_row).sum())


def total(histograms: list[tuple[int, ...]]) -> list[int]:
    """The sum of histograms, bucket by bucket."""
    counts: Counter[int] = Counter()
    for one in histograms:
        counts.update(dict(enumerate(one)))
    return [counts[k] for k in range(len(BUCKETS))]
