"""Whether a part of a graph computes an RMSNorm: told by what it makes of rows, in float64."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir

from rmsnorm_export.op.dtypes import Array

_LOW, _HIGH = 1e-3, 30.0
"""Magnitudes of rows from which the epsilon is fitted: squares and what is made of them differ from
a constant of 1 there, and float16 holds them."""
_TOLERANCE = 1e-5
"""Of y / x: what constants that were rounded to float32 explain, as exponents of large numbers."""
_ROUGH: Mapping[ir.DataType | None, float] = {ir.DataType.FLOAT16: 5e-3, ir.DataType.BFLOAT16: 4e-2}
"""Those that were rounded to a half type."""
_HIGHEST, _HIGHEST_HALF = 1e6, 1e4
"""Magnitude of the largest rows."""
_LIMITED = "the largest rows are limited"
_ROUNDED = "it is one but for constants of few digits"
_LEAST = 1e-15
"""Epsilon that shows in the smallest rows."""
_MOST_GROUPS = 16
EpsilonPlace = Literal["inside", "behind", "floor"]
Part = Callable[[Array], Sequence[Array]]
"""Computes y from x, and then the parts of rows that the squares may be taken of."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Behaviour:
    """``y = x * gain * (M + epsilon) ** -0.5``, with M the mean square of ``rows``.

    Attributes:
        n: elements of the rows that were seen.
        epsilon: fitted; 0 where it is too small to be seen.
        place: of the epsilon: under the root, behind it, or the least that the root may be.
        axes: first and last of the normalised ones, negative.
        groups: M is that of one of so many parts of equal length; 0: of another part.
        length: the gain is 1 / sqrt(n): rows of length one.
        gain: in the shape of x.
        keeps_zeros: among other numbers.
        but: why it is one by and large only; "": it is one.
    """

    n: int
    epsilon: float
    place: EpsilonPlace
    axes: tuple[int, int]
    groups: int
    length: bool
    gain: Array
    keeps_zeros: bool
    but: str


@dataclasses.dataclass(frozen=True, slots=True)
class _Rows:
    n: int
    axes: tuple[int, int]
    part: int = -1
    groups: int = 1

    def mean_square(self, outputs: Sequence[Array], x: Array) -> Array:
        values = x if self.part < 0 else outputs[self.part]
        first, last = self.axes
        if self.groups > 1:
            cut = values.reshape(*values.shape[:-1], self.groups, -1)
            mean = np.square(cut).mean(axis=-1, keepdims=True)
            return np.broadcast_to(mean, cut.shape).reshape(values.shape)
        over = tuple(range(first, last + 1))
        return np.asarray(np.square(values).mean(axis=over, keepdims=True))


def norm_of(compute: Part, shape: Sequence[int], dtype: ir.DataType | None) -> Behaviour | None:
    """Return the norm that ``compute`` is of rows of this shape, if it is one.

    Args:
        compute: a part of a graph.
        shape: of x.
        dtype: of x in the file.
    """
    rng = np.random.default_rng(0)
    base = _random(rng, shape)
    others = (scale * _random(rng, shape) for scale in (1.0, 0.1))
    highest = _HIGHEST_HALF if dtype in (None, ir.DataType.FLOAT16) else _HIGHEST
    edges = (1e-2 * _with_zeros(rng, shape), highest * base[..., ::-1])
    samples: list[tuple[Array, Sequence[Array]]] = []
    gains: list[Array] = []
    for x in (_HIGH * base, -_LOW * base, *others, *edges):
        outputs = compute(np.ascontiguousarray(x))
        if outputs[0].shape != x.shape or np.isnan(outputs[0][x != 0]).any():
            return None
        samples.append((x, outputs))
        gains.append(_inverse(x, outputs[0]))
        # Most parts are told from a norm by one look or two: y of the largest rows is the smaller
        # multiple of x.
        scaled = np.isfinite(gains[0])
        sizes = [np.abs(gain[scaled]) for gain in gains[:2]]
        grows = len(gains) != 2 or (sizes[0] > (1 + _TOLERANCE) * sizes[1]).all()
        if not (grows and _alike(gains[0], gains[-1])):
            return None
    if scaled.mean() < 0.5:
        return None
    trials = [("", len(samples), _TOLERANCE), (_LIMITED, len(samples) - 1, _TOLERANCE)]
    if dtype in _ROUGH:
        trials.append((_ROUNDED, len(samples), _ROUGH[dtype]))
    kinds = [*_rows(shape, [part.shape for part in samples[0][1][1:]])]
    for (but, count, tolerance), rows in itertools.product(trials, kinds):
        means = [
            np.broadcast_to(rows.mean_square(outputs[1:], x), x.shape)
            for x, outputs in samples[:count]
        ]
        fitted = _fitted([np.abs(g) for g in gains[:count]], means, tolerance)
        if fitted is not None:
            place, epsilon, gain = fitted
            length = bool(np.allclose(gain[scaled] ** 2 * rows.n, 1, rtol=tolerance))
            groups = rows.groups if rows.part < 0 else 0
            gain = np.copysign(gain, gains[0])
            zeros = all((outputs[0][x == 0] == 0).all() for x, outputs in samples)
            return Behaviour(rows.n, epsilon, place, rows.axes, groups, length, gain, zeros, but)
    return None


def is_centred(compute: Part, shape: Sequence[int], axes: tuple[int, int]) -> bool:
    """Return whether rows over ``axes`` of what ``compute`` makes of tensors have the mean 0."""
    rng = np.random.default_rng(0)
    rows = compute(3.0 + _random(rng, shape))[0]
    over = tuple(range(axes[0], axes[1] + 1))
    means, roots = rows.mean(axis=over), np.sqrt(np.square(rows).mean(axis=over))
    return bool((np.abs(means) <= _TOLERANCE * roots).all() and roots.any())


def _random(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    return np.asarray(np.exp(rng.normal(0, 0.5, shape)) * rng.choice([-1.0, 1.0], shape))


def _with_zeros(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    x = _random(rng, shape)
    if shape[-1] > 1:
        x[..., : max(1, shape[-1] // 3)] = 0
    return x


def _inverse(x: Array, y: Array) -> Array:
    """Return x / y: infinite where the gain is 0, and where y is not 0 with x; else NaN there.

    A mean that is 0 leaves of its rounding what is as good as 0 beside the largest elements.
    """
    with np.errstate(all="ignore"):
        moved = np.abs(y) > _TOLERANCE * np.nanmax(np.abs(y))
        return np.where(x == 0, np.where(moved, math.inf, math.nan), x / y)


def _alike(one: Array, other: Array) -> bool:
    """Return whether quotients are of the same signs, and infinite at the same places."""
    same = (np.isinf(one) == np.isinf(other)) & (np.signbit(one) == np.signbit(other))
    return bool(same[~np.isnan(other)].all())


def _rows(shape: Sequence[int], parts: Sequence[Sequence[int]]) -> Iterator[_Rows]:
    """Give what the mean square may be taken over, the last axes first; never the whole tensor."""
    rank = len(shape)
    runs = itertools.combinations_with_replacement(range(-1, -rank - 1, -1), 2)
    for last, first in runs:
        n = math.prod(shape[rank + first : rank + last + 1])
        if n > 1 and (rank == 1 or last - first + 1 < rank):
            yield _Rows(n, (first, last))
    for index, part in enumerate(parts):
        for axis in range(-rank, 0):
            same = len(part) == rank and all(
                part[i] == shape[i] for i in range(rank) if i != rank + axis
            )
            if same and 1 < part[axis] < shape[axis]:
                yield _Rows(part[axis], (axis, axis), part=index)
    groups = [g for g in range(2, shape[-1] // 2 + 1) if shape[-1] % g == 0]
    for count in groups[:_MOST_GROUPS]:
        yield _Rows(shape[-1] // count, (-1, -1), groups=count)


def _fitted(
    gains: Sequence[Array], means: Sequence[Array], tolerance: float
) -> tuple[EpsilonPlace, float, Array] | None:
    """Return where the epsilon stands, the epsilon and the gain, if x / y is explained by these.

    Args:
        gains: absolute values of x / y, of every sample; those of the first two are of the largest
            and the smallest multiple of the same rows.
        means: their mean squares.
        tolerance: of x / y.
    """
    high, low = gains[:2]
    scaled, roots = np.isfinite(high), [np.sqrt(mean) for mean in means]
    with np.errstate(all="ignore"):
        slope = (high**2 - low**2) / (means[0] - means[1])
        inside = np.median((low**2 / slope - means[1])[scaled])
        line = (high - low) / (roots[0] - roots[1])
        behind = np.median((low / line - roots[1])[scaled])
        floor = np.min((low / high * roots[0])[scaled], initial=math.inf)
        trials: tuple[tuple[EpsilonPlace, float, Array, Callable[[float, int], Array]], ...] = (
            ("inside", inside, np.sqrt(slope), lambda e, i: np.sqrt(means[i] + e)),
            ("behind", behind, line, lambda e, i: roots[i] + e),
            ("floor", floor, high / roots[0], lambda e, i: np.maximum(roots[i], e)),
        )
        for place, epsilon, gain, root in trials:
            epsilon = float(epsilon) if epsilon > _LEAST else 0.0
            off = (np.abs(gain * root(epsilon, i) / g - 1) for i, g in enumerate(gains))
            seen = (one[np.isfinite(g)] for one, g in zip(off, gains, strict=True))
            if all((one <= tolerance).all() for one in seen):
                return place, epsilon, 1 / gain
    return None
