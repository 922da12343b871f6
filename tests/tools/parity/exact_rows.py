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
import itertools

import numpy as np

from rmsnorm_export.op.dtypes import Array, numpy_dtype
from rmsnorm_export.op.spec import DOUBLE, FLOAT, NormSpec
from tests.tools.parity import orders
from tests.tools.parity.orders import QUOTIENTS

_POWERS = (0, -4, -8, -12, -16)
_EXACT = 2**24
_POOL = 2**12
_POOLS = 16
_RECIPROCAL_POOL = 2**18
_WITNESSES = 4


def operands(
    spec: NormSpec,
    dtype: int,
    row: tuple[int, ...],
    count: int,
    *,
    seed: int,
    second: str = "",
    front: Array | None = None,
) -> dict[str, Array]:
    """``x``, and ``gate`` or ``residual``, as ``[count, *row]``.

    Args:
        spec: the norm; it decides on the gates.
        dtype: element type of x.
        row: shape of the normalised axes.
        second: which other operand there is.
        front: a gain in front of the norm, of powers of two from 1/2 to 2.
    """
    rng = np.random.default_rng(seed)
    shape, n = (count, *row), int(np.prod(row))
    first = spec.gate_first and bool(second)
    largest = min(15 if first else 255, int((_EXACT / n) ** 0.5) // (15 if first else 1))
    if second == "residual":
        largest //= 2
    if front is not None:
        largest //= 4
    x = rng.integers(1, largest + 1, shape) * rng.choice([-1, 1], shape)
    # Half types stay half types where the squares are half numbers too: no power above 0.
    powers = np.resize(_POWERS, count).reshape(-1, *[1] * len(row))
    found = {"x": x * np.exp2(powers)}
    if second == "gate":
        found["gate"] = 4.0 * rng.integers(5, 16, shape) if first else rng.uniform(18, 60, shape)
        if not first:
            found["gate"] = np.where(rng.random(shape) < 0.25, 0.0, found["gate"])
    if second == "residual":
        other = rng.integers(1, largest + 1, shape) * rng.choice([-1, 1], shape)
        found["residual"] = other * np.exp2(powers)
    return {
        name: values.astype(np.float32).astype(numpy_dtype(dtype)) for name, values in found.items()
    }


def with_witnesses(
    spec: NormSpec,
    made: dict[str, Array],
    weights: dict[str, Array],
    dtype: int,
    row: tuple[int, ...],
    second: str,
    front: Array | None = None,
) -> dict[str, Array]:
    """``made`` and rows on which the row computed in float32 and in float64 gives other numbers."""
    specs = [dataclasses.replace(spec, stash_type=stash) for stash in (FLOAT, DOUBLE)]
    wanted = set(itertools.product(QUOTIENTS, QUOTIENTS))
    size = _RECIPROCAL_POOL if spec.round_rstd else _POOL
    axes = tuple(range(1, 1 + len(row)))
    for seed in range(_POOLS):
        pool = operands(spec, dtype, row, size, seed=100 + seed, second=second, front=front)
        if spec.round_rstd:  # one number a row decides: look there first
            keep = _inverse_differs(specs, pool["x"])
            pool = {name: values[keep] for name, values in pool.items()}
        given = {**pool, **weights}
        if front is not None:
            given["x"] = (pool["x"] * front).astype(pool["x"].dtype)
        narrow, wide = (
            {q: orders.evaluate(s, given, q)[0].astype(float) for q in QUOTIENTS} for s in specs
        )
        rows: set[int] = set()
        for pair in sorted(wanted):
            differ = np.flatnonzero((narrow[pair[0]] != wide[pair[1]]).any(axis=axes))
            if len(differ):
                wanted.discard(pair)
                rows.update(differ[:_WITNESSES].tolist())
        chosen = sorted(rows)
        made = {name: np.concatenate([made[name], pool[name][chosen]]) for name in made}
        if not wanted:
            break
    return made


def _inverse_differs(specs: list[NormSpec], x: Array) -> Array:
    """Rows whose rounded ``1 / rms`` differs between two specs."""
    wide = x.astype(np.float64).reshape(len(x), -1)
    mean = np.square(wide).sum(-1) / wide.shape[1]
    found = []
    for spec in specs:
        narrow = np.float32 if spec.stash_type == FLOAT else np.float64
        epsilon = narrow(np.float32(spec.epsilon)) if narrow is np.float32 else spec.epsilon
        inverse = 1 / np.sqrt(mean.astype(narrow) + epsilon)
        found.append(inverse.astype(x.dtype).astype(np.float64))
    return np.asarray(found[0] != found[1])


def sums_are_exact(x: Array) -> bool:
    """Whether every sum of squares of a row is exact in float32 in any order of addition."""
    flat = x.astype(np.float64).reshape(len(x), -1)
    squares = np.square(flat)
    unit = np.square(_unit(flat))
    return bool((squares.sum(-1) / unit < _EXACT).all())


def _unit(flat: Array) -> Array:
    """The largest power of two that divides every element of a row."""
    units = np.exp2(np.arange(-40, 8))
    whole = np.stack([(np.fmod(flat, unit) == 0).all(-1) for unit in units])
    return units[whole.shape[0] - 1 - np.argmax(whole[::-1], axis=0)]
