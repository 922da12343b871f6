"""The kernels against the rounding-exact reference: every variant, type, size and alignment."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.plugins.kernel_cases import KINDS, LONG, SIZES, STASHES, TYPES, VARIANTS, job_for
from tests.tools.shim import BF16, F16, F32, FP8, INT8, Job, Shim, check

HALF_TYPES = (F16, BF16)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_variant(shim: Shim, dtype: np.dtype[Any], kind: str, variant: str) -> None:
    attributes = KINDS[kind] | VARIANTS[variant]
    for n, bias in ((7, True), (64, False), (199, False), (1000, True), (1024, False)):
        job = job_for(n, dtype, bias=bias, seed=n, attributes=attributes)
        check(job, shim.run(job))


@pytest.mark.parametrize("dtype", HALF_TYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", STASHES)
def test_half_stash_type(shim: Shim, dtype: np.dtype[Any], kind: str, variant: str) -> None:
    attributes = KINDS[kind] | STASHES[variant]
    for n, bias in ((7, True), (64, False), (199, True), (1000, False)):
        job = job_for(n, dtype, stash=True, bias=bias, seed=n, attributes=attributes)
        check(job, shim.run(job))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("quantize", ["none", "static", "per_row"])
@pytest.mark.parametrize("low_latency", [False, True])
def test_size(shim: Shim, dtype: np.dtype[Any], n: int, quantize: Any, low_latency: bool) -> None:
    codes = INT8 if n % 2 else FP8
    for kind in ("RMSNorm", "Skip"):
        job = job_for(
            n,
            dtype,
            rows=1 if low_latency else 5,
            seed=n,
            attributes=KINDS[kind],
            quantize=quantize,
            codes=codes,
            quant_scale=0.013,
            low_latency=low_latency,
        )
        check(job, shim.run(job))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codes", [FP8, INT8], ids=str)
@pytest.mark.parametrize("quantize", ["static", "per_row"])
def test_quantised(
    shim: Shim, dtype: np.dtype[Any], kind: str, codes: np.dtype[Any], quantize: Any
) -> None:
    for n, attributes in (
        (111, VARIANTS["plain"]),
        (256, VARIANTS["gemma"]),
        (1000, VARIANTS["groups"]),
        (1000, VARIANTS["rounded rstd"]),
    ):
        job = job_for(
            n,
            dtype,
            seed=n,
            bias=n == 256,
            attributes=KINDS[kind] | attributes,
            quantize=quantize,
            codes=codes,
            quant_scale=0.013,
        )
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


@pytest.mark.parametrize("dtype", HALF_TYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_of_f32(shim: Shim, dtype: np.dtype[Any], kind: str) -> None:
    """f32 scale and bias beside half x: rounded to T in the product, unless that is in f32."""
    for n in (199, 512, 4096 + 8):
        for variant in ("plain", "gemma", "groups", "rounded rstd"):
            attributes = KINDS[kind] | VARIANTS[variant]
            job = job_for(n, dtype, seed=n, bias=True, parameters=F32, attributes=attributes)
            check(job, shim.run(job))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_no_scale(shim: Shim, dtype: np.dtype[Any], kind: str) -> None:
    for n in (7, 256):
        for variant in ("plain", "rounded rstd", "partial"):
            job = job_for(n, dtype, seed=n, bias=n == 7, attributes=KINDS[kind] | VARIANTS[variant])
            job = dataclasses.replace(job, scale=None)
            check(job, shim.run(job))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("misaligned", [1, 3, 8 + 1])
@pytest.mark.parametrize("quantize", ["none", "static", "per_row"])
def test_misaligned(shim: Shim, dtype: np.dtype[Any], misaligned: int, quantize: Any) -> None:
    for kind in KINDS.values():
        job = job_for(
            512, dtype, attributes=kind, quantize=quantize, codes=INT8, misaligned=misaligned
        )
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


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("quantize", ["none", "static", "per_row"])
def test_rows_that_lie_apart(shim: Shim, dtype: np.dtype[Any], kind: str, quantize: Any) -> None:
    """Channels in front of positions."""
    for n, inner, variant in ((64, 3, "plain"), (7, 6, "gemma"), (600, 2, "epsilon clamp")):
        job = job_for(
            n,
            dtype,
            rows=6,
            seed=n,
            bias=n == 7,
            attributes=KINDS[kind] | VARIANTS[variant],
            quantize=quantize,
            quant_scale=0.013,
            inner=inner,
        )
        check(job, shim.run(job))


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
