"""Rows on which PyTorch's float32 arithmetic leaves no freedom but the quotient.

- Elements are integers times a power of two, one for each row. Their squares, and the sums of
  these, are integers below 2**24 of one unit: exact in float32, in any order of addition.
- Gates are 0 or above 17.5, where ``1 + exp(-z)`` is 1 in float32: sigmoid and silu are exact
  however they are computed. Where the gate comes first, it is a small integer as well.
- Rows have mean squares from far above to far below epsilon, so that a dropped epsilon shows.
- To tell float32 from float64 arithmetic, which differ in one of 2**13 (float16) or 2**16 elements
  after rounding, rows are added on which they do.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rmsnorm_export.op.dtypes import Array, element_type, numpy_dtype, round_to
from rmsnorm_export.op.spec import DOUBLE, FLOAT, HALF_TYPES, NormSpec

_POWERS = (0, -4, -8, -12, -16)
_EXACT = 2**24
_POOL = 2**12
_POOLS = 16
_RECIPROCAL_POOL = 2**18
_WITNESSES = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """What rows are for.

    Attributes:
        spec: the norm; it decides on the gates.
        dtype: element type of x.
        row: shape of the normalised axes.
        gated: whether there is a gate.
        front: a gain in front of the norm, of powers of two from 1/2 to 2.
    """

    spec: NormSpec
    dtype: int
    row: tuple[int, ...]
    gated: bool = False
    front: Array | None = None

    def operands(self, count: int, *, seed: int) -> dict[str, Array]:
        """Return ``x``, and ``gate``, as ``[count, *row]``."""
        rng = np.random.default_rng(seed)
        shape, n = (count, *self.row), int(np.prod(self.row))
        first = self.spec.gate_first and self.gated
        largest = min(15 if first else 255, int((_EXACT / n) ** 0.5) // (15 if first else 1))
        if self.front is not None:
            largest //= 4
        x = rng.integers(1, largest + 1, shape) * rng.choice([-1, 1], shape)
        # Half types stay half types where the squares are half numbers too: no power above 0.
        powers = np.resize(_POWERS, count).reshape(-1, *[1] * len(self.row))
        rows = {"x": x * np.exp2(powers)}
        if first:
            rows["gate"] = 4.0 * rng.integers(5, 16, shape)
        elif self.gated:
            gate = rng.uniform(18, 60, shape)
            rows["gate"] = np.where(rng.random(shape) < 0.25, 0.0, gate)
        return {k: v.astype(np.float32).astype(numpy_dtype(self.dtype)) for k, v in rows.items()}

    def with_witnesses(self, rows: dict[str, Array], weights: dict[str, Array]) -> dict[str, Array]:
        """Return more rows, on which the row in float32 and in float64 gives other numbers."""
        spec = self.spec
        specs = [dataclasses.replace(spec, stash_type=stash) for stash in (FLOAT, DOUBLE)]
        unseen = set(itertools.product(QUOTIENTS, QUOTIENTS))
        size = _RECIPROCAL_POOL if spec.round_rstd else _POOL
        axes = tuple(range(1, 1 + len(self.row)))
        for seed in range(_POOLS):
            pool = self.operands(size, seed=100 + seed)
            if spec.round_rstd:  # one number a row decides: look there first
                apart = _inverse_differs(spec.epsilon, pool["x"])
                pool = {name: values[apart] for name, values in pool.items()}
            operands = {**pool, **weights}
            if self.front is not None:
                operands["x"] = (pool["x"] * self.front).astype(pool["x"].dtype)
            narrow, wide = (
                {q: evaluate(s, operands, q)[0].astype(float) for q in QUOTIENTS} for s in specs
            )
            chosen: set[int] = set()
            for pair in sorted(unseen):
                differ = np.flatnonzero((narrow[pair[0]] != wide[pair[1]]).any(axis=axes))
                if len(differ):
                    unseen.discard(pair)
                    chosen.update(differ[:_WITNESSES].tolist())
            rows = {name: np.concatenate([rows[name], pool[name][sorted(chosen)]]) for name in rows}
            if not unseen:
                break
        return rows


def _inverse_differs(epsilon: float, x: Array) -> Array:
    """Rows whose rounded ``1 / rms`` differs between float32 and float64."""
    mean = np.square(x.astype(np.float64).reshape(len(x), -1)).mean(-1)
    narrow = 1 / np.sqrt(mean.astype(np.float32) + np.float32(epsilon))
    wide = 1 / np.sqrt(mean + epsilon)
    return np.asarray(narrow.astype(x.dtype) != wide.astype(x.dtype))


def sums_are_exact(x: Array) -> bool:
    """Return whether a row's sum of squares is exact in float32 in any order of addition."""
    flat = x.astype(np.float64).reshape(len(x), -1)
    units = np.exp2(np.arange(-40, 8))  # the largest that divides every element of a row
    whole = np.stack([(np.fmod(flat, unit) == 0).all(-1) for unit in units])
    unit = units[len(units) - 1 - np.argmax(whole[::-1], axis=0)]
    return bool((np.square(flat).sum(-1) / np.square(unit) < _EXACT).all())


# Every rounding step of a spec, with the one freedom that the spec leaves made explicit.

QUOTIENTS: tuple[Quotient, ...] = ("x / rms", "x * (1 / rms)")
"""Those that the spec calls the same, where the row is float32 or float64."""


def evaluate(
    spec: NormSpec, operands: Mapping[str, Array], quotient: Quotient
) -> tuple[Array, ...]:
    """Return ``(y,)``, or ``(y, sum)``, in the type of x, every step rounded once."""
    t, s = element_type(operands["x"].dtype), spec.stash_type
    p = s if spec.scale_before_cast else t
    steps = Steps(*(functools.partial(round_to, element_type=dtype) for dtype in (s, t, p)))
    stored = dataclasses.replace(
        spec, epsilon=_attribute(spec.epsilon, s), scale_offset=_attribute(spec.scale_offset, p)
    )
    wide = {name: value.astype(np.float64) for name, value in operands.items()}
    with np.errstate(all="ignore"):
        results = compute(stored, wide, steps, quotient)
    return tuple(value.astype(numpy_dtype(t)) for value in results)


def _attribute(value: float, used_in: int) -> float:
    return value if used_in == DOUBLE else float(np.float32(value))


def explanation(
    spec: NormSpec, evaluated: Callable[[Quotient], Sequence[Array]], results: Sequence[Array]
) -> Quotient | Literal[""]:
    """The first quotient with which ``evaluated`` gives ``results``, bit for bit; "" for none.

    Beyond those of ``spec`` PyTorch has one more in a half type: its rsqrt.
    """
    more: tuple[Quotient, ...] = ("x * rsqrt",) if spec.stash_type in HALF_TYPES else ()
    quotients = (*quotients_of(spec), *more)
    return next((q for q in quotients if all_equal(evaluated(q), results)), "")


def quotients_of(spec: NormSpec) -> tuple[Quotient, ...]:
    """The ways to divide that ``spec`` allows; in a half type it leaves no choice."""
    return QUOTIENTS[:1] if spec.stash_type in HALF_TYPES else QUOTIENTS


def all_equal(a: Sequence[Array], b: Sequence[Array]) -> bool:
    """Every element of every pair; NaN equals NaN, and zeros of any sign are equal."""
    return all(
        np.array_equal(one.astype(np.float64), other.astype(np.float64), equal_nan=True)
        for one, other in zip(a, b, strict=True)
    )


# The steps of the norm, with a rounding after each.

Quotient = Literal["x / rms", "x * (1 / rms)", "x * rsqrt"]
"""The last: root and inverse are one rounding, as PyTorch's rsqrt of a half type has it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Steps:
    """Roundings to the type of the row, of the result, and of the product with the gain."""

    s: Callable[[Any], Any]
    t: Callable[[Any], Any]
    p: Callable[[Any], Any]


def compute(
    spec: NormSpec, wide: Mapping[str, Array], steps: Steps, quotient: Quotient
) -> list[Array]:
    """Return ``[y]``, or ``[y, sum]``; epsilon and offset are those of ``spec`` as they are.

    Args:
        spec: the norm.
        wide: ``x`` and what it takes of ``weight``, ``bias``, ``gate``, ``residual``, in the type
            in which all is computed.
        steps: what is rounded.
        quotient: how the row is divided.
    """
    s, t, p = steps.s, steps.t, steps.p
    row = numerator = total = t(wide["x"] + wide["residual"]) if "residual" in wide else wide["x"]
    act = None
    if "gate" in wide:
        z = s(wide["gate"])
        act = s(1 / (1 + np.exp(-z)))
        act = s(z * act) if spec.activation == "silu" else act
        if spec.gate_first:
            row = s(row * act)
            numerator = t(row)
    gain = None
    if "weight" in wide:
        gain = p(wide["weight"])
        if spec.scale_offset:
            gain = p(p(gain.dtype.type(spec.scale_offset)) + gain)
    y = p(_row(spec, row, numerator, gain, steps, quotient))
    if gain is not None and not spec.association:
        y = p(y * gain.reshape(y.shape[spec.axis :]))
    if "bias" in wide:
        y = p(y + p(wide["bias"]).reshape(y.shape[spec.axis :]))
    if act is not None and not spec.gate_first:
        y = s(s(y) * act)
    return [t(y), total] if "residual" in wide else [t(y)]


def _row(
    spec: NormSpec,
    row: Array,
    numerator: Array,
    gain: Array | None,
    steps: Steps,
    quotient: Quotient,
) -> Array:
    """The normalised row; with an association the gain is in it."""
    s, t = steps.s, steps.t
    n = math.prod(row.shape[spec.axis :])
    groups = row.reshape(*row.shape[: spec.axis], -1, spec.group_size or n)
    top = numerator.reshape(groups.shape)
    part = groups[..., : spec.partial_size or None]
    mean = s(s(np.square(part)).sum(-1, keepdims=True) / part.shape[-1])
    epsilon = s(row.dtype.type(spec.epsilon))
    if spec.epsilon_outside:
        rms, once = s(s(np.sqrt(mean)) + epsilon), np.sqrt(mean) + epsilon
    elif spec.epsilon_clamp:
        rms, once = (np.maximum(root, epsilon) for root in (s(np.sqrt(mean)), np.sqrt(mean)))
    else:
        once = np.sqrt(s(mean + epsilon))
        rms = s(once)
    inverse = s(1 / (once if quotient == "x * rsqrt" else rms))
    if spec.association == 2 and gain is not None:
        top = groups = t(groups * gain.reshape(1, -1))
    if spec.round_rstd:
        inverse = t(inverse)
        if spec.association == 1 and gain is not None:
            inverse = t(inverse * gain.reshape(1, -1))
        return np.asarray(t(top * inverse).reshape(row.shape))
    v = groups / rms if quotient == "x / rms" else groups * inverse
    return np.asarray(s(v).reshape(row.shape))
