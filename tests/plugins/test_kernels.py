"""The kernels against the rounding-exact reference: every variant, type, size and alignment."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import pytest

from tests.plugins.kernel_cases import KINDS, ORDERS, SIZES, STASHES, TYPES, VARIANTS, job_for
from tests.sample import crossed
from toolbox.driver import BF16, F16, F32, FP8, INT8, Array, Driver, How, Job, exact, ordinal

EVERY = get_args(How)


def _variants(dtype: np.dtype[Any], kind: dict[str, Any]) -> Iterator[Job]:
    sizes = ((7, True), (64, False), (199, False), (1000, True), (1024, False))
    for variant, (n, bias) in itertools.product(VARIANTS.values(), sizes):
        yield job_for(n, dtype, kind | variant, bias=bias)


def _half_stashes(dtype: np.dtype[Any], kind: dict[str, Any]) -> Iterator[Job]:
    sizes = ((7, True), (64, False), (199, True), (1000, False)) if dtype != F32 else ()
    for variant, (n, bias) in itertools.product(STASHES.values(), sizes):
        yield job_for(n, dtype, kind | variant, stash=True, bias=bias)


def _sizes(dtype: np.dtype[Any], kind: dict[str, Any]) -> Iterator[Job]:
    sizes = SIZES if kind["kind"] != "GatedRMSNorm" else ()
    for n, how, rows in itertools.product(sizes, EVERY, (1, 5)):
        options = {"rows": rows, "codes": INT8 if n % 2 else FP8, "quant_scale": 0.013}
        yield job_for(n, dtype, kind, quantize=how, **options)


def _usual(dtype: np.dtype[Any], kind: dict[str, Any]) -> Iterator[Job]:
    """Whole vectors, two and four of them a thread; most leave threads idle."""
    sizes = (8, 24, 256, 1000, 2048 + 8, 8192 + 16)
    orders = ORDERS if kind.keys() == {"kind"} else ()
    for n, order, how, codes in itertools.product(sizes, orders, EVERY, (FP8, INT8)):
        if how != "none" or codes == FP8:
            options = {"rows": 5, "quantize": how, "codes": codes, "quant_scale": 0.013}
            yield job_for(n, dtype, kind | VARIANTS[order], **options)


def _codes(dtype: np.dtype[Any], kind: dict[str, Any]) -> Iterator[Job]:
    sizes = ((111, "plain"), (256, "gemma"), (1000, "groups"), (1000, "rounded rstd"))
    for (n, variant), codes, how in itertools.product(sizes, (FP8, INT8), EVERY[1:]):
        options = {"bias": n == 256, "quantize": how, "codes": codes, "quant_scale": 0.013}
        yield job_for(n, dtype, kind | VARIANTS[variant], **options)


def _parameters_of_f32(dtype: np.dtype[Any], kind: dict[str, Any]) -> Iterator[Job]:
    """Beside half x: rounded to T in the product, unless that is in f32."""
    variants = ("plain", "gemma", "groups", "rounded rstd")
    for variant, n in itertools.product(variants, (199, 512, 4096 + 8)):
        yield job_for(n, dtype, kind | VARIANTS[variant], bias=True, parameters=F32)


def _no_scale(dtype: np.dtype[Any], kind: dict[str, Any]) -> Iterator[Job]:
    for n, variant in itertools.product((7, 256), ("plain", "rounded rstd", "partial")):
        yield job_for(n, dtype, kind | VARIANTS[variant], bias=n == 7, scale=None)


def _misaligned(dtype: np.dtype[Any], kind: dict[str, Any]) -> Iterator[Job]:
    for off, how in itertools.product((1, 3, 8 + 1), EVERY):
        yield job_for(512, dtype, kind, quantize=how, codes=INT8, misaligned=off)


def _rows_that_lie_apart(dtype: np.dtype[Any], kind: dict[str, Any]) -> Iterator[Job]:
    """Channels in front of positions."""
    shapes = ((64, 3, "plain"), (7, 6, "gemma"), (600, 2, "epsilon clamp"))
    for (n, inner, variant), how in itertools.product(shapes, EVERY):
        options = {"rows": 6, "bias": n == 7, "quant_scale": 0.013, "inner": inner}
        yield job_for(n, dtype, kind | VARIANTS[variant], quantize=how, **options)


_JOBS = (_variants, _half_stashes, _sizes, _usual, _codes, _parameters_of_f32, _no_scale)


@crossed(2, jobs=[*_JOBS, _misaligned, _rows_that_lie_apart], kind=[*KINDS], dtype=TYPES)
def test_against_the_reference(driver: Driver, dtype: np.dtype[Any], kind: str, jobs: Any) -> None:
    for job in jobs(dtype, KINDS[kind]):
        driver.checked(job)


_LONG = {16384 + 8: (80, 90), 262144: (80, 90)}
_LONG |= dict.fromkeys((32768 + 16, 40000, 65536 + 4), (80, 89, 90, 120))
"""Beyond the registers, in sixteen blocks of a cluster at most; one is no whole half vectors."""


@crossed(
    4,
    place=[(n, sm) for n, every in _LONG.items() for sm in every],
    kind=["RMSNorm", "Skip", "Gated", "Gate first"],
)
def test_long_rows(driver: Driver, place: tuple[int, int], kind: str) -> None:
    """A cluster with distributed shared memory from sm_90 on, else a block and a second read."""
    n, sm = place
    for dtype, quantize in ((BF16, "none"), (F16, "per_row"), (F32, "none")):
        options = {"rows": 5 if n < 20000 else 2, "quantize": quantize, "sm": sm}
        job = job_for(n, dtype, KINDS[kind], codes=INT8 if kind == "Gated" else FP8, **options)
        outcome, size = driver.checked(job), n * dtype.itemsize
        whole = 32 * 1024 if kind == "Gate first" else 16 * 1024
        assert (outcome.cluster > 1) == (sm == 90 and size % 16 == 0 and size > whole)
        if outcome.cluster > 1:
            for most in (8, 1):  # where more have no room
                placed = driver.checked(dataclasses.replace(job, most_cluster=most))
                assert placed.cluster == min(most, outcome.cluster)
            # Code for sm_80 that the driver has translated knows no clusters.
            assert driver.run(dataclasses.replace(job, compiled_for=80)).cluster == 1


@pytest.mark.parametrize("n", [131072 + 1, 131072 + 8, 1 << 20])
def test_longest_rows(driver: Driver, n: int) -> None:
    driver.checked(job_for(n, BF16, rows=1))


@crossed(3, n=[7, 64, 256, 1000, 2048, 4096, 8192, 40000, 65536], dtype=TYPES)
def test_rows_do_not_depend_on_one_another(driver: Driver, dtype: np.dtype[Any], n: int) -> None:
    """Bit for bit the same row alone, by as many threads, and anywhere among others.

    In another order of the warps a read that should wait at a barrier sees what is not there.
    """
    rows = 70 if n < 1000 else 40 if n < 8192 else 6
    ways: tuple[How, ...] = ("none", "per_row") if n < 20000 else ("per_row",)
    for kind, how in itertools.product(("RMSNorm", "Skip", "Gate first"), ways):
        job = job_for(n, dtype, KINDS[kind], rows=rows, quantize=how)
        together = driver.checked(job)
        otherwise = driver.run(dataclasses.replace(job, schedule=2))
        assert otherwise.y.tobytes() == together.y.tobytes()
        for row in {0, 1, rows // 2, rows - 1}:
            one = slice(row, row + 1)
            other = None if job.other is None else job.other[one]
            alone = driver.run(dataclasses.replace(job, x=job.x[one], other=other))
            assert alone.threads == together.threads
            assert alone.y.tobytes() == together.y[row].tobytes()
            if together.row_scale is not None and alone.row_scale is not None:
                assert alone.row_scale[0] == together.row_scale[row]


def test_more_rows_than_blocks(driver: Driver) -> None:
    """Short rows share a grid of what can run at once: a thread takes more than one row."""
    job = job_for(8, BF16, rows=9001)
    outcome = driver.checked(job)
    assert outcome.blocks * outcome.threads < len(job.x)
    assert driver.run(dataclasses.replace(job, x=job.x[:0])).blocks == 0


def _exact_squares(rows: int, n: int, dtype: np.dtype[Any]) -> Array:
    """Values whose squares add up without rounding in any order: few bits, near each other."""
    rng = np.random.default_rng(n)
    values = rng.integers(1, 16, (rows, n)) * rng.choice([-1, 1], (rows, n))
    return (values * 2.0 ** rng.integers(-3, 4, (rows, 1))).astype(dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n", [64, 1024, 16384])
def test_how_far_the_product_errs(driver: Driver, dtype: np.dtype[Any], order: str, n: int) -> None:
    """f32: 3 ulp at most. A half type: the value of the division rounded, unless that is within 2
    ulp of f32 of the middle between two values of the type."""
    scale = np.ones(n) if order == "plain" else np.random.default_rng(n).uniform(0.5, 2, n)
    operands = {"x": _exact_squares(24, n, dtype), "scale": scale.astype(dtype)}
    job = job_for(n, dtype, VARIANTS[order], **operands)
    y, expected = driver.run(job).y, exact(job)
    off = np.abs(ordinal(y.astype(np.float64), dtype) - ordinal(expected, dtype))
    assert off.max() <= (3 if dtype == F32 else 1)
    if dtype == F32:
        return
    rows, columns = np.nonzero(off)
    x = job.x.astype(np.float64)
    rms = np.sqrt((x**2).mean(axis=1, keepdims=True) + job.spec.epsilon)
    value = (x / rms * (job.spec.scale_offset + operands["scale"].astype(np.float64)))[
        rows, columns
    ]
    pair = np.stack([y[rows, columns], expected[rows, columns]]).astype(np.float64)
    ulp = np.spacing(np.abs(value).astype(np.float32)).astype(np.float64)
    assert (np.abs(value - pair.mean(axis=0)) <= 2 * ulp).all()
    assert off.sum() < off.size / 1000
