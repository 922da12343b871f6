"""Rows that a proof feeds to a norm: ordinary ones, and those at the edges of the types."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from rmsnorm_export.op.dtypes import Array, Float64Array, numpy_dtype
from rmsnorm_export.op.spec import DOUBLE, HALF_TYPES, NormSpec

CASES = (
    "random", "tiny", "denormal", "huge", "large", "overflow", "zeros", "mixed", "outlier",
    "constant", "negative",
)  # fmt: skip
EQUAL_SQUARES = frozenset({"constant", "zeros"})

# Free leading sizes: unequal and above 1, so that no wrong broadcast fits by chance.
_FREE = (2, 3)


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """Input rows of one run: ``x`` and which case each row (leading axes, flattened) belongs to."""

    x: Array
    residual: Array
    gate: Array
    cases: tuple[str, ...]


def case_names(dtype: int) -> tuple[str, ...]:
    """The cases for X of ``dtype``: no square of a finite float64 fits beyond float64."""
    return tuple(name for name in CASES if not (name == "overflow" and dtype == DOUBLE))


def batches(
    spec: NormSpec, dtype: int, lead: tuple[int, ...], row: tuple[int, ...], seed: int
) -> Iterator[Batch]:
    """Runs that together hold every case at least once.

    Args:
        spec: the norm.
        dtype: ONNX element type of X.
        lead: leading sizes of X; their product is the number of rows in a run.
        row: sizes of the normalised axes.
        seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)
    names = case_names(dtype)
    rows, n = math.prod(lead), math.prod(row)
    for start in range(0, len(names), rows):
        cases = tuple(names[(start + i) % len(names)] for i in range(rows))
        shape = (*lead, *row)
        store = numpy_dtype(dtype)
        x, residual = (
            np.stack([_case_row(name, rng, n, spec, dtype) for name in cases]).reshape(shape)
            for _ in range(2)
        )
        gate = np.clip(2.0 * rng.standard_normal(shape), -4.0, 4.0)
        yield Batch(x.astype(store), residual.astype(store), gate.astype(store), cases)


def random_weights(spec: NormSpec, n: int, seed: int) -> tuple[Float64Array, Float64Array]:
    """A random scale, its sign mixed, none so small that it vanishes; and a random bias."""
    rng = np.random.default_rng(seed + 1)
    scale = rng.uniform(0.25, 2.0, n) * rng.choice((-1.0, 1.0), n)
    return scale - spec.scale_offset, rng.standard_normal(n)


def leading_sizes(count: int, rows: int) -> tuple[int, ...]:
    """``count`` sizes of product >= ``rows`` (nothing for 0 axes)."""
    if count == 0:
        return ()
    sizes = [*(1,) * max(0, count - 1 - len(_FREE)), *_FREE[: count - 1]]
    return (*sizes, -(-rows // math.prod(sizes)))


def _case_row(
    name: str, rng: np.random.Generator, n: int, spec: NormSpec, dtype: int
) -> Float64Array:
    """One row of a case, before it is stored in the type of X."""
    normal = rng.standard_normal(n)
    # Sizes between half and all of an amplitude: sums of squares are known within a factor of 4.
    sized = rng.uniform(0.5, 1.0, n) * rng.choice((-1.0, 1.0), n)
    largest, stash_largest = _limits(dtype)[0], _limits(spec.stash_type)[0]
    # The sum of n squares stays a factor of 4 below the largest number; so does a residual sum.
    survives = math.sqrt(stash_largest / n) / 4
    if name == "random":
        return normal
    if name == "tiny":
        return np.asarray(1e-4 * normal)
    if name == "denormal":
        return np.asarray(_denormal_size(spec, dtype) * sized)
    if name == "huge":
        return np.asarray(min(survives, largest / 8) * sized)
    if name == "large":  # near the most that a source computed in a half type survives
        return np.asarray(math.sqrt(6e4 / n) / 4 * sized if dtype in HALF_TYPES else 1e3 * normal)
    if name == "overflow":  # the square leaves the stash type, where X can hold such numbers
        return np.asarray(min(1e5 * math.sqrt(stash_largest), largest / 8) * sized)
    if name == "zeros":
        return np.zeros(n)
    if name == "mixed":
        return np.asarray(normal * 10.0 ** rng.uniform(-3, 2, n))
    if name == "outlier":
        normal[int(rng.integers(n))] = 1e3
        return normal
    if name == "constant":
        return np.full(n, float(rng.uniform(0.5, 4.0)))
    return -np.abs(normal)


def _denormal_size(spec: NormSpec, dtype: int) -> float:
    """Where squares (or X itself) are subnormal; without epsilon, where they just are not.

    With no epsilon, or a subnormal one, the mean of subnormal squares has few bits left, and no two
    runtimes agree.
    """
    smallest = _limits(spec.stash_type)[1]
    if spec.epsilon < smallest:
        return max(1e-6, math.sqrt(smallest) * 64) if dtype in HALF_TYPES else 64 * smallest**0.5
    return 1e-6 if dtype in HALF_TYPES else smallest**0.5 / 64


@functools.cache
def _limits(dtype: int) -> tuple[float, float]:
    """The largest number of a type and its smallest normal one."""
    info: Any = ml_dtypes.finfo(numpy_dtype(dtype))  # type: ignore[no-untyped-call]
    return float(info.max), float(info.smallest_normal)
