"""The kernels against the rounding-exact reference: every variant, type, size and alignment."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.plugins.kernel_cases import KINDS, LONG, SIZES, STASHES, TYPES, VARIANTS, job_for
from tests.tools.shim import BF16, F16, F32, FP8, INT8, Job, Shim, check

EVERY = ("none", "static", "per_row")


def _variants(dtype: np.dtype[Any], kind: dict[str, Any]) -> Iterator[Job]:
    for variant in VARIANTS.values():
        for n, bias in ((7, True), (64, False), (199, False), (1000, True), (1024, False)):
            yield job_for(n, dtype, bias=bias, seed=n, attributes=kind | variant)


def _half_stashes(dtype: np.dtype[Any], kind: dict[str, Any]) -> Iterator[Job]:
    for variant in STASHES.values() if dtype != F32 else ():
        for n, bias in ((7, True), (64, False), (199, True), (1000, False)):
            yield job_for(n, dtype, stash=True, bias=bias, seed=n, attributes=kind | variant)


def _sizes(dtype: np.dtype[Any], kind: dict[str, Any]) -> Iterator[Job]:
    for n, how, low_latency in itertools.product(SIZES, EVERY, (False, True)):
        if kind["kind"] != "GatedRMSNorm":
            yield job_for(
                n, dtype, rows=1 if low_latency else 5, seed=n, attributes=kind, quantize=how,
                codes=INT8 if n % 2 else FP8, quant_scale=0.013, low_latency=low_latency,
            )  # fmt: skip


def _codes(dtype: np.dtype[Any], kind: dict[str, Any]) -> Iterator[Job]:
    sizes = ((111, "plain"), (256, "gemma"), (1000, "groups"), (1000, "rounded rstd"))
    for (n, variant), codes, how in itertools.product(sizes, (FP8, INT8), EVERY[1:]):
        yield job_for(
            n, dtype, seed=n, bias=n == 256, attributes=kind | VARIANTS[variant], quantize=how,
            codes=codes, quant_scale=0.013,
        )  # fmt: skip


def _parameters_of_f32(dtype: np.dtype[Any], kind: dict[str, Any]) -> Iterator[Job]:
    """Beside half x: rounded to T in the product, unless that is in f32."""
    for variant in ("plain", "gemma", "groups", "rounded rstd"):
        for n in (199, 512, 4096 + 8):
            attributes = kind | VARIANTS[variant]
            yield job_for(n, dtype, seed=n, bias=True, parameters=F32, attributes=attributes)


def _no_scale(dtype: np.dtype[Any], kind: dict[str, Any]) -> Iterator[Job]:
    for n, variant in itertools.product((7, 256), ("plain", "rounded rstd", "partial")):
        job = job_for(n, dtype, seed=n, bias=n == 7, attributes=kind | VARIANTS[variant])
        yield dataclasses.replace(job, scale=None)


def _misaligned(dtype: np.dtype[Any], kind: dict[str, Any]) -> Iterator[Job]:
    for off, how in itertools.product((1, 3, 8 + 1), EVERY):
        yield job_for(512, dtype, attributes=kind, quantize=how, codes=INT8, misaligned=off)


def _rows_that_lie_apart(dtype: np.dtype[Any], kind: dict[str, Any]) -> Iterator[Job]:
    """Channels in front of positions."""
    shapes = ((64, 3, "plain"), (7, 6, "gemma"), (600, 2, "epsilon clamp"))
    for (n, inner, variant), how in itertools.product(shapes, EVERY):
        yield job_for(
            n, dtype, rows=6, seed=n, bias=n == 7, attributes=kind | VARIANTS[variant],
            quantize=how, quant_scale=0.013, inner=inner,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "jobs",
    [_variants, _half_stashes, _sizes, _codes, _parameters_of_f32, _no_scale, _misaligned,
     _rows_that_lie_apart],
)  # fmt: skip
def test_against_the_reference(shim: Shim, dtype: np.dtype[Any], kind: str, jobs: Any) -> None:
    for job in jobs(dtype, KINDS[kind]):
        check(job, shim.run(job))


@pytest.mark.parametrize("sm", [80, 89, 90, 120])
@pytest.mark.parametrize("n", LONG)
@pytest.mark.parametrize("quantize", ["none", "per_row"])
def test_long_row(shim: Shim, sm: int, n: int, quantize: Any) -> None:
    """A cluster with distributed shared memory from sm_90 on, else a block and a second read."""
    dtype = TYPES[(n + sm) % 3]
    for kind in ("RMSNorm", "Skip", "Gate first") if quantize == "none" else ("Gated",):
        job = job_for(
            n, dtype, rows=2, seed=n, attributes=KINDS[kind], quantize=quantize, codes=INT8, sm=sm
        )
        outcome = shim.run(job)
        check(job, outcome)
        size = n * dtype.itemsize
        clusters = sm == 90 and size % 16 == 0 and size > 32 * 1024
        assert (outcome.cluster > 1) == clusters


@pytest.mark.parametrize("n", [131072 + 1, 131072 + 8, 1 << 20])
def test_longest_rows(shim: Shim, n: int) -> None:
    job = job_for(n, BF16, rows=1, seed=n, attributes={})
    check(job, shim.run(job))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("n", [7, 64, 1000, 8192])
@pytest.mark.parametrize("quantize", ["none", "per_row"])
def test_rows_do_not_depend_on_one_another(
    shim: Shim, dtype: np.dtype[Any], n: int, quantize: Any
) -> None:
    """Bit for bit the same row alone, and anywhere among others."""
    for kind in ("RMSNorm", "Skip", "Gate first"):
        rows = 70 if n < 1000 else 6
        job = job_for(n, dtype, rows=rows, attributes=KINDS[kind], quantize=quantize)
        together = shim.run(job)
        for row in (0, 1, rows // 2, rows - 1):
            alone = shim.run(_rows(job, slice(row, row + 1)))
            assert alone.y.tobytes() == together.y[row].tobytes()
            if together.row_scale is not None and alone.row_scale is not None:
                assert alone.row_scale[0] == together.row_scale[row]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("n", [64, 1000, 8192, 40000])
def test_order_of_threads_does_not_matter(shim: Shim, dtype: np.dtype[Any], n: int) -> None:
    """With the last thread first, a read that should wait at a barrier sees what is not there."""
    for quantize in ("none", "per_row"):
        job = job_for(n, dtype, rows=3, attributes=KINDS["Skip"], quantize=quantize)
        forwards = shim.run(job)
        backwards = shim.run(dataclasses.replace(job, backwards=True))
        assert forwards.y.tobytes() == backwards.y.tobytes()
        check(job, backwards)


def test_no_rows(shim: Shim) -> None:
    job = _rows(job_for(64, F16, attributes={}), slice(0, 0))
    assert shim.run(job).blocks == 0


def test_more_rows_than_blocks(shim: Shim) -> None:
    """Short rows share a grid of what can run at once: a thread takes more than one row."""
    job = job_for(8, BF16, rows=9001, attributes={})
    outcome = shim.run(job)
    assert outcome.blocks * outcome.threads < len(job.x)
    check(job, outcome)


def _rows(job: Job, rows: slice) -> Job:
    other = None if job.other is None else job.other[rows]
    return dataclasses.replace(job, x=job.x[rows], other=other)
