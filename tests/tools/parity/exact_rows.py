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
                {q: orders.evaluate(s, operands, q)[0].astype(float) for q in QUOTIENTS}
                for s in specs
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
