"""Rows of every scale: ordinary, tiny, denormal, large, mixed, zeros, with NaN, with infinities."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from rmsnorm_export.compare.pytorch import to_array
from rmsnorm_export.op.dtypes import Array, numpy_dtype, round_to

SCALES = ("unit", "tiny", "denormal", "large", "mixed", "zeros", "nan", "inf")
_MOST_ROWS, _LEAST_ROWS, _SPECIAL_ROWS = 1024, 8, 4


def rows(dtype: int, n: int, *, seed: int, elements: int) -> dict[str, Array]:
    """Rows of each scale as ``[rows, n]`` of an ONNX element type.

    ``tiny``: 1e-4. ``denormal``: below the smallest normal number. ``large``: 1e4, at most 6e4
    (float16 ends at 65,504). ``mixed``: magnitudes from 1e-3 to 1e3 in one row. ``nan``, ``inf``:
    one such element in each row.
    """
    rng = np.random.default_rng([seed, n])
    many = max(_LEAST_ROWS, min(_MOST_ROWS, elements // n))
    counts = {scale: many if scale in SCALES[:5] else _SPECIAL_ROWS for scale in SCALES}
    blocks = {scale: rng.normal(size=(count, n)) for scale, count in counts.items()}
    info = ml_dtypes.finfo(numpy_dtype(dtype))
    blocks["tiny"] *= 1e-4
    shape = blocks["denormal"].shape
    steps = rng.integers(1, 2**info.nmant, shape) * rng.choice([-1, 1], shape)
    blocks["denormal"] = steps * float(info.smallest_subnormal)
    blocks["large"] = np.clip(blocks["large"] * 1e4, -6e4, 6e4)
    blocks["mixed"] *= 10.0 ** rng.uniform(-3, 3, blocks["mixed"].shape)
    blocks["zeros"][:] = 0.0
    for name, value in (("nan", np.nan), ("inf", np.inf)):
        column = rng.integers(0, n, _SPECIAL_ROWS)
        signs = rng.choice([-1, 1], _SPECIAL_ROWS)
        blocks[name][np.arange(_SPECIAL_ROWS), column] = value * signs
    return {s: round_to(v, dtype).astype(numpy_dtype(dtype)) for s, v in blocks.items()}


def weight(dtype: int, shape: tuple[int, ...], *, seed: int, offset: bool = False) -> Array:
    """A gain: sizes in [0.25, 1.75], a fifth of them negative; around 0 where 1 is added."""
    rng = np.random.default_rng([seed, 1, *shape])
    values = rng.uniform(0.25, 1.75, shape) * np.where(rng.random(shape) < 0.2, -1.0, 1.0)
    if offset:
        values = rng.normal(size=shape) * 0.3
    return round_to(values, dtype).astype(numpy_dtype(dtype))


def results(result: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[Array, ...]:
    """Return the outputs of a module or operator, one or several."""
    return tuple(map(to_array, result if isinstance(result, tuple) else (result,)))
