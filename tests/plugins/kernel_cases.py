"""What the kernel tests are run on: every variant of the operator, and the sizes of a row."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from rmsnorm_export.op.dtypes import element_type
from rmsnorm_export.op.spec import NormSpec
from tests.tools import variants
from toolbox.driver import BF16, F16, F32, Job

TYPES = (F32, F16, BF16)

SIZES = (1, 3, 7, 64, 111, 199, 256, 1000, 2048, 4096 + 8, 8192)
"""A vector is 4 or 8 elements: some of these are whole vectors, some are not, few fill a warp."""

VARIANTS: dict[str, dict[str, Any]] = variants.VARIANTS["kernels"]
"""Attributes; -1 stands for a size that depends on the row."""

ORDERS = ("plain", "torch", "gemma")
"""The usual norms, which multiply by 1 / rms: variants with kernels of their own."""

_BOTH = ("plain", "epsilon outside", "epsilon clamp", "rounded rstd", "partial", "groups")
STASHES: dict[str, dict[str, Any]] = {
    **{name: VARIANTS[name] for name in _BOTH},
    "association 1": {"round_rstd": True, "association": 1, "scale_offset": 1.0},
    "association 2": {"association": 2},
    "association 2, rounded rstd": {"association": 2, "round_rstd": True},
}
"""Variants of a half stash type."""

KINDS: dict[str, dict[str, Any]] = {
    "RMSNorm": {"kind": "RMSNorm"},
    "Skip": {"kind": "SkipRMSNorm"},
    "Gated": {"kind": "GatedRMSNorm"},
    "Gated by sigmoid": {"kind": "GatedRMSNorm", "activation": "sigmoid"},
    "Gate first": {"kind": "GatedRMSNorm", "gate_first": True},
}

Layout = tuple[tuple[int, ...], tuple[int, ...]]
LAYOUTS: tuple[Layout, ...] = (
    ((12,), ()),
    ((12,), (12,)),
    ((2, 3, 5), (3, 1)),
    ((2, 3, 5), (2, 3, 1)),
    ((2, 3, 5), (2, 1, 5)),
    ((2, 9, 5), (5,)),
    ((2, 5, 1, 3), (5, 1, 1)),
    ((2, 2, 3, 2, 2), (1, 1, 3, 1, 1)),
    ((30, 9), (30, 1)),
    ((2, 9, 15), (2, 1, 15)),
)
"""The axes of x and those of the tables before the last: heads before or behind the tokens, one row
of angles for each row and for all; so many rows that a team takes several at once, and fewer."""


def job_for(
    n: int,
    dtype: np.dtype[Any],
    attributes: dict[str, Any] | None = None,
    *,
    rows: int = 3,
    stash: bool = False,
    parameters: np.dtype[Any] | None = None,
    bias: bool = False,
    **fields: Any,
) -> Job:
    """A job on random rows of different magnitudes, with ``parameters`` the type of the weights."""
    attributes = dict(attributes or {})
    if attributes.get("partial_size") == -1:
        attributes["partial_size"] = max(1, n // 3)
    if attributes.get("group_size") == -1:
        attributes["group_size"] = next((n // k for k in (4, 3, 7) if n % k == 0), n)
    if stash:
        attributes["stash_type"] = element_type(dtype)
    spec = NormSpec(**attributes)
    rng = np.random.default_rng(n)
    x = rng.standard_normal((rows, n)) * 2.0 ** rng.integers(-3, 4, (rows, 1))
    other, scale, offset = (rng.standard_normal(shape) for shape in ((rows, n), n, n))
    second = spec.kind in ("SkipRMSNorm", "GatedRMSNorm")
    operands = {
        "x": x.astype(dtype),
        "other": (2 * other).astype(dtype) if second else None,
        "scale": (1 + 0.3 * scale).astype(parameters or dtype),
        "bias": (0.2 * offset).astype(parameters or dtype) if bias else None,
    }
    return Job(spec=spec, **(operands | fields))


def rotary_job(
    n: int,
    dtype: np.dtype[Any],
    attributes: dict[str, Any] | None = None,
    *,
    axes: Layout = LAYOUTS[2],
    half: bool = False,
    table: np.dtype[Any] | None = None,
    **options: Any,
) -> Job:
    """A job whose angles are numbers, not a circle's: a wrong entry shows."""
    leading, of_table = axes
    attributes = {"kind": "RotaryRMSNorm", **(attributes or {})}
    job = job_for(n, dtype, attributes, rows=int(np.prod(leading)), leading=leading, **options)
    width = (job.spec.rotary_dim or n) // (2 if half else 1)
    rng = np.random.default_rng(1)
    cos, sin = (rng.uniform(-1, 1, (*of_table, width)).astype(table or dtype) for _ in range(2))
    return dataclasses.replace(job, tables=(cos, sin))
