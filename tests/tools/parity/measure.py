"""One cell of the record: every two sides compared, every side against float64."""

from __future__ import annotations

import dataclasses

import numpy as np

from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.metrics import ulp_distance, ulp_unit
from tests.tools.parity.truth import error_of

EAGER, OURS, OPTIMIZED = "eager", "ours", "portable+"
TARGETS = ("portable", "onnx", "ort")
RUNTIMES = (*TARGETS, OPTIMIZED)
"""ONNX Runtime: the file of each target as it is, and ``portable`` after ORT's own optimizer."""


@dataclasses.dataclass(frozen=True, slots=True)
class Error:
    """Of one side against float64, in ulp of its type."""

    max: float


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What the claims allow in one cell; ``limits`` derives it.

    Attributes:
        distance: target -> largest distance from ours that its declared class allows, in ulp.
        error: side -> largest error against float64 allowed, in ulp.
        drift: sums over the rows of (error of ours - error of eager), and of its square: no side
            is systematically worse when the first is a few roots of the second.
    """

    distance: dict[str, float]
    error: dict[str, float]
    drift: tuple[float, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """One row of the matrix.

    Attributes:
        subject: variant.
        dtype: of rows, weights and result.
        n: elements in a row.
        scale: of the input.
        distances: target -> largest distance of ONNX Runtime from ours, in ulp.
        errors: side -> its error.
        numerics: target -> the class that the report declares; ``-``: left as it was.
        absent: side -> why it has no numbers.
        judged: what it is held to; None where float64 is no yardstick, see ``limits``.
        beside: the distances without the rows in which PyTorch alone overflows, where there are.
    """

    subject: str
    dtype: str
    n: int
    scale: str
    distances: dict[str, float]
    errors: dict[str, Error]
    numerics: dict[str, str]
    absent: dict[str, str]
    judged: Limits | None
    beside: dict[str, float]

    def __str__(self) -> str:
        return f"{self.subject} {self.dtype} n={self.n} {self.scale}"


def distance(a: Array, b: Array, magnitude: Array | None = None) -> float:
    """Largest distance in ulp; infinite where NaN or infinity is on one side only.

    Args:
        magnitude: numbers whose ulp is the unit, where a sum with a bias may cancel.
    """
    steps = ulp_distance(a, b)
    if magnitude is not None and steps.any():
        with np.errstate(all="ignore"):
            apart = np.abs(a.astype(np.float64) - b.astype(np.float64))
            apart = apart / ulp_unit(a.dtype, magnitude.astype(np.float64))
        steps = np.where(np.isfinite(steps) & (steps != 0), apart, steps)
    return float(steps.max(initial=0.0))


def error(values: Array, truth: Array, magnitude: Array | None = None) -> Error:
    """Of ``values`` against ``truth``; arguments as ``truth.error_of``."""
    return Error(float(error_of(values, truth, magnitude).max(initial=0.0)))


def overflow(sides: dict[str, Array], truth: Array, outputs: int, rows: int) -> dict[str, float]:
    """Distances without the rows in which a half type cannot hold an intermediate.

    PyTorch's answer is then infinite (after a sum the whole row is lost), that of ONNX Runtime's
    CPU, which keeps such an intermediate in float32, is not. The other rows are
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
    return {t: distance(ours[~lost], sides[t][~lost]) for t in RUNTIMES if t in sides}


def drift(eager: Array, ours: Array, truth: Array, rows: int) -> tuple[float, float]:
    """Sums over the rows of the difference of the two errors, and of its square.

    The elements of a row share a root mean square, so rows are what is independent.
    """
    apart = error_of(ours, truth) - error_of(eager, truth)
    by_row = np.where(np.isfinite(apart), apart, 0.0).reshape(rows, -1).sum(-1)
    return float(by_row.sum()), float(np.square(by_row).sum())
