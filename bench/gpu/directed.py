"""Problems chosen so that every kernel and cluster runs; a group is one process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from rmsnorm_export.op.spec import NormSpec
from toolbox.driver import BF16, F16, F32, FP8, INT8, Job

CLUSTERS = {16384: 4, 32768: 8, 65536: 16, 262144: 16}
"""Elements of bf16, and the blocks that share such a row where there is room for them."""


def _job(n: int, kind: str = "RMSNorm", **fields: Any) -> Job:
    """A problem on a few rows; fields of ``NormSpec`` are its attributes."""
    spec = {k: fields.pop(k) for k in tuple(fields) if k in NormSpec.__dataclass_fields__}
    dtype, rows = fields.pop("dtype", BF16), fields.pop("rows", 3)
    rng = np.random.default_rng(n)
    x, other = (rng.standard_normal((rows, n)).astype(dtype) for _ in range(2))
    inputs = {"x": x, "scale": (rng.standard_normal(n) * 0.3 + 1).astype(dtype)}
    if kind in ("SkipRMSNorm", "GatedRMSNorm"):
        inputs["other"] = other
    if kind == "RotaryRMSNorm":
        angles = rng.uniform(0, 2 * np.pi, (rows, n // 2))
        inputs |= {"tables": (np.cos(angles).astype(dtype), np.sin(angles).astype(dtype))}
        inputs["leading"] = (rows,)
    return Job(spec=NormSpec(kind=kind, epsilon=1e-6, **spec), **(inputs | fields))


def _clusters() -> Iterator[Job]:
    for n in (64, 4096, *CLUSTERS):
        yield _job(n)


def _kinds() -> Iterator[Job]:
    for n, kind, dtype in itertools.product(
        (256, 4096, 65536), ("SkipRMSNorm", "GatedRMSNorm"), (BF16, F16)
    ):
        yield _job(n, kind, dtype=dtype)


def _codes() -> Iterator[Job]:
    for n, quantize, codes in itertools.product((4096, 65536), ("static", "per_row"), (FP8, INT8)):
        yield _job(n, quantize=quantize, codes=codes, quant_scale=0.03)
        yield _job(n, "SkipRMSNorm", quantize=quantize, codes=codes, dtype=F32, quant_scale=0.03)
    for n, kind, dtype in itertools.product(
        (64, 4096), ("RMSNorm", "SkipRMSNorm"), (F32, F16, BF16)
    ):
        job = _job(n, kind, quantize="per_row", dtype=dtype)
        job.x[:, 0] = -8  # the greatest magnitude is negative, and comes first
        yield job


def _others() -> Iterator[Job]:
    """Norms that row_long.cuh computes: by vectors, and an element at a time."""
    for n in (512, 4096, 65536, 262144):
        yield _job(n, epsilon_outside=True)
    for n, fields in ((111, {}), (65537, {}), (4096, {"group_size": 512}), (600, {"inner": 3})):
        yield _job(n, dtype=F16, **fields)


def _rotary() -> Iterator[Job]:
    for n, interleaved in itertools.product((64, 128), (False, True)):
        options = {"rotary_interleaved": interleaved, "rows": 37}
        yield _job(n, "RotaryRMSNorm", dtype=F32 if n == 64 else BF16, **options)
    yield _job(1000, "RotaryRMSNorm", dtype=F16)
    yield _job(64, "RotaryRMSNorm", rows=34_000)  # several of a token at once


def _contexts() -> Iterator[Job]:
    """In two contexts of the device in turn: the second knows nothing of what the first allowed."""
    for n, context in itertools.product((4096, 131072), (0, 1, 0, 1)):
        yield _job(n, context=context)


GROUPS = {
    "clusters": _clusters,
    "skip and gate": _kinds,
    "codes": _codes,
    "other norms": _others,
    "rotary": _rotary,
    "two contexts": _contexts,
}


def problems(group: str, most: int) -> list[tuple[str, Job]]:
    """Return those of a group with so many elements at most, with the name of each."""
    jobs = (job for job in GROUPS[group]() if job.x.size <= most)
    return [(f"problem {number} of {group}", job) for number, job in enumerate(jobs)]
