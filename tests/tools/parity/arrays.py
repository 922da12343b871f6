"""Rows of every scale: ordinary, tiny, denormal, large, mixed, zeros, with NaN, with infinities."""

from __future__ import annotations

import numpy as np
import torch

from rmsnorm_export.op.dtypes import Array, numpy_dtype, round_to
from rmsnorm_export.op.spec import BFLOAT16

SCALES = ("unit", "tiny", "denormal", "large", "mixed", "zeros", "nan", "inf")
SPECIAL = frozenset({"zeros", "nan", "inf"})

_ELEMENTS = 2**14  # of each scale: enough for the largest error to be typical of it
_LEAST_ROWS, _MOST_ROWS = 8, 1024
_SPECIAL_ROWS = 4


def rows_of(n: int, elements: int = _ELEMENTS) -> dict[str, int]:
    """How many rows of ``n`` elements each scale has."""
    many = max(_LEAST_ROWS, min(_MOST_ROWS, elements // n))
    return {scale: _SPECIAL_ROWS if scale in SPECIAL else many for scale in SCALES}


def rows(dtype: int, n: int, *, seed: int, elements: int = _ELEMENTS) -> dict[str, Array]:
    """Rows of each scale as ``[rows, n]`` of an ONNX element type.

    ``tiny``: 1e-4. ``denormal``: below the smallest normal number. ``large``: 1e4, at most 6e4
    (float16 ends at 65,504). ``mixed``: magnitudes from 1e-3 to 1e3 in one row. ``nan``, ``inf``:
    one such element in each row.
    """
    rng = np.random.default_rng([seed, n])
    counts = rows_of(n, elements)
    made = {scale: rng.normal(size=(count, n)) for scale, count in counts.items()}
    info = _smallest(dtype)
    made["tiny"] *= 1e-4
    shape = made["denormal"].shape
    steps = rng.integers(1, info[1], shape) * rng.choice([-1, 1], shape)
    made["denormal"] = steps * info[0]
    made["large"] = np.clip(made["large"] * 1e4, -6e4, 6e4)
    made["mixed"] *= 10.0 ** rng.uniform(-3, 3, made["mixed"].shape)
    made["zeros"][:] = 0.0
    for name, value in (("nan", np.nan), ("inf", np.inf)):
        row = made[name]
        column = rng.integers(0, n, len(row))
        row[np.arange(len(row)), column] = value * rng.choice([-1, 1], len(row))
    return {s: round_to(v, dtype).astype(numpy_dtype(dtype)) for s, v in made.items()}


def _smallest(dtype: int) -> tuple[float, int]:
    """The smallest denormal of a type, and how many of it make a normal number."""
    if dtype == BFLOAT16:
        return 2.0**-133, 2**7
    info = np.finfo(numpy_dtype(dtype))
    return float(info.smallest_subnormal), 2**info.nmant


def weight(dtype: int, shape: tuple[int, ...], *, seed: int, offset: bool = False) -> Array:
    """A gain: sizes in [0.25, 1.75], a fifth of them negative; around 0 where 1 is added."""
    rng = np.random.default_rng([seed, 1, *shape])
    values = rng.uniform(0.25, 1.75, shape) * np.where(rng.random(shape) < 0.2, -1.0, 1.0)
    if offset:
        values = rng.normal(size=shape) * 0.3
    return round_to(values, dtype).astype(numpy_dtype(dtype))


def tensor(array: Array) -> torch.Tensor:
    """The same bits as a PyTorch tensor."""
    array = np.ascontiguousarray(array)
    if array.dtype == numpy_dtype(BFLOAT16):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def array(value: torch.Tensor) -> Array:
    """The same bits as a NumPy array."""
    value = value.detach().contiguous()
    if value.dtype == torch.bfloat16:
        return value.view(torch.int16).numpy().view(numpy_dtype(BFLOAT16))
    return value.numpy()
