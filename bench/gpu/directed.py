"""Problems chosen for what random ones seldom have; a group is one process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from rmsnorm_export.op.spec import NormSpec
from toolbox.driver import BF16, F16, F32, FP8, INT8, Job

CLUSTERS = {16384: 4, 32768: 8, 65536: 16, 262144: 16}
"""Elements of bf16, and the blocks that share such a row where there is room for them."""


def _job(
    n: int, kind: str = "RMSNorm", *, dtype: np.dtype[Any] = BF16, rows: int = 3, **fields: Any
) -> Job:
    """A problem on a few rows."""
    rng = np.random.default_rng(n)
    x, other = (rng.standard_normal((rows, n)).astype(dtype) for _ in range(2))
    fields |= {"scale": (rng.standard_normal(n) * 0.3 + 1).astype(dtype)}
    if kind == "SkipRMSNorm":
        fields["other"] = other
    if kind == "RotaryRMSNorm":
        angles = rng.uniform(0, 2 * np.pi, (rows, n // 2))
        tables = np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)
        fields |= {"tables": tables, "leading": (rows,)}
    return Job(spec=NormSpec(kind=kind, epsilon=1e-6), x=x, **fields)


def _clusters() -> Iterator[Job]:
    """Every kernel for ordinary rows."""
    return (_job(n) for n in (64, 4096, *CLUSTERS))


def _codes() -> Iterator[Job]:
    """Of which the greatest magnitude is negative, and comes first."""
    sizes, kinds = (64, 4096), ("RMSNorm", "SkipRMSNorm")
    few = itertools.product(sizes, kinds, (F32, F16, BF16), (FP8, INT8))
    for n, kind, dtype, codes in (*few, (65536, "SkipRMSNorm", BF16, FP8)):
        job = _job(n, kind, quantize="per_row", codes=codes, dtype=dtype)
        job.x[:, 0] = -8
        yield job


def _contexts() -> Iterator[Job]:
    """In two contexts of the device in turn: the second knows nothing of what the first allowed."""
    for n, context in itertools.product((4096, 131072), (0, 1, 0, 1)):
        yield _job(n, context=context)


def _rotated() -> Iterator[Job]:
    """In the last a block takes several rows of a token at once."""
    for n, rows in ((64, 37), (1000, 3), (64, 34_000)):
        yield _job(n, "RotaryRMSNorm", rows=rows)


GROUPS = {"clusters": _clusters, "codes": _codes, "two contexts": _contexts, "rotary": _rotated}


def problems(group: str, most: int) -> list[tuple[str, Job]]:
    """Return those of a group with so many elements at most, with the name of each."""
    jobs = (job for job in GROUPS[group]() if job.x.size <= most)
    return [(f"problem {number} of {group}", job) for number, job in enumerate(jobs)]
