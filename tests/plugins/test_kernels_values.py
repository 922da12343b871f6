"""The kernels on values at the edges: zeros, denormals, overflow, NaN and infinities."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.plugins.kernel_cases import (
    KINDS,
    LAYOUTS,
    ORDERS,
    STASHES,
    TYPES,
    VARIANTS,
    job_for,
    rotary_job,
)
from toolbox.driver import BF16, F16, F32, FP8, INT8, Array, Driver, How, Job, codes_of

HALVES = (F16, BF16)
SIZES = (7, 64, 1000, 9000)


def _edge(name: str, x: Array) -> None:
    """Put it into the second row."""
    n = np.arange(x.shape[1])
    least = np.finfo(np.float32).smallest_subnormal if x.dtype == F32 else 2.0**-24
    row = x[1].astype(np.float32)
    values = {
        "zeros": 0 * row,
        "negative zeros": -0.0 * np.abs(row),
        "denormals": np.where(n % 3 == 0, least * 5, -least),
        "large": 1e4 * np.sign(row),  # the square overflows f16, and the mean of squares does too
        "the largest of f16": 0 * row + 65504,
        "its square overflows f32": row if x.dtype == F16 else 0 * row + 1e30,
        "NaN": np.where(n == n.size // 2, np.nan, row),
        "infinity": np.where(n == 0, np.inf, row),
        "negative infinity at the end": np.where(n == n[-1], -np.inf, row),
    }
    x[1] = values[name].astype(x.dtype)


ZEROS = ("zeros", "negative zeros")
EDGES = (*ZEROS, "denormals", "large", "the largest of f16", "its square overflows f32")
EDGES += ("NaN", "infinity", "negative infinity at the end")


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("variant", ["plain", "gemma", "epsilon outside", "partial", "groups"])
def test_edge(driver: Driver, dtype: np.dtype[Any], edge: str, variant: str) -> None:
    """The row is in the middle of three: what it holds must not reach its neighbours either."""
    for n, kind in itertools.product(SIZES[:3], ("RMSNorm", "Gated", "Gate first")):
        job = job_for(n, dtype, KINDS[kind] | VARIANTS[variant], bias=True)
        _edge(edge, job.x)
        driver.checked(job)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("edge", EDGES)
def test_scale_of_an_edge_row(driver: Driver, dtype: np.dtype[Any], edge: str) -> None:
    for n, codes in itertools.product(SIZES, (FP8, INT8)):
        job = job_for(n, dtype, quantize="per_row", codes=codes)
        _edge(edge, job.x)
        codes_of_edge = driver.checked(job).y[1].astype(np.float32)
        assert edge not in ZEROS or not codes_of_edge.any()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_zeros_without_epsilon(driver: Driver, dtype: np.dtype[Any]) -> None:
    """0 / 0 is NaN; with a partial mean of 0 the rest of the row is infinite."""
    for n, variant in itertools.product((7, 64, 1000), ("plain", "partial", "epsilon outside")):
        job = job_for(n, dtype, VARIANTS[variant] | {"epsilon": 0.0})
        job.x[1, : n // 3] = 0
        job.x[2] = 0
        driver.checked(job)


def _every_gate(dtype: np.dtype[Any], activation: str) -> Iterator[Job]:
    """Gates to +-100: the tail of silu is there below -88, where exp(-z) overflows."""
    gates = np.linspace(-104, 104, 2048, dtype=np.float32).reshape(2, 1024).astype(dtype)
    yield job_for(1024, dtype, KINDS["Gated"] | {"activation": activation}, rows=2, other=gates)


def _denormal_products(dtype: np.dtype[Any], activation: str) -> Iterator[Job]:
    """T(x * act(gate)), a denormal of T, is multiplied by a rounded 1 / rms of 316.

    Were the product rounded to the neighbour, y would be off by more than one ulp, for small ones
    by hundreds.
    """
    for n in (8192, 1001):
        rng = np.random.default_rng(n)
        shape = (98304 // n, n)
        gates = rng.uniform(-9, 4, shape).astype(dtype)
        z = gates.astype(np.float64)
        factors = (z if activation == "silu" else 1.0) / (1 + np.exp(-z))
        denormals = rng.uniform(-1, 1, shape) * {F16: 2.0**-14, BF16: 2.0**-126}[dtype]
        attributes = KINDS["Gate first"] | {"activation": activation, "round_rstd": True}
        operands = {"x": (denormals / factors).astype(dtype), "other": gates, "scale": None}
        yield job_for(n, dtype, attributes | {"epsilon": 1e-5}, **operands)


def _denormal_sigmoids(dtype: np.dtype[Any], activation: str) -> Iterator[Job]:
    """In f32: their fast value has few bits left, however large the product with x."""
    gates = np.linspace(-104, -80, 4096).astype(dtype)[None]
    x = np.geomspace(1, {F16: 6e4, BF16: 3e38}[dtype], 4096).astype(dtype)[None]
    attributes = KINDS["Gate first"] | {"round_rstd": True, "activation": activation}
    for stash in (False, True):
        yield job_for(4096, dtype, attributes, stash=stash, x=x, other=gates, scale=None)


_OF_HALVES = (_every_gate, _denormal_products, _denormal_sigmoids)


@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
@pytest.mark.parametrize(
    ("dtype", "jobs"), [(F32, _every_gate), *itertools.product(HALVES, _OF_HALVES)]
)
def test_gates(driver: Driver, dtype: np.dtype[Any], jobs: Any, activation: str) -> None:
    for job in jobs(dtype, activation):
        driver.checked(job)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_half_value_is_divided_as_declared(driver: Driver, dtype: np.dtype[Any]) -> None:
    """All finite values of the type as a row of their own kind, by many divisors.

    The first element alone makes the mean, so that the divisor is known to the last bit: any
    difference from IEEE division that survives the rounding to T is seen.
    """
    patterns = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    finite = patterns[np.isfinite(patterns.astype(np.float32))]
    rng = np.random.default_rng(5)
    heads = (1 + rng.random(4)) * 2.0 ** rng.integers(-6, 7, 4)
    x = np.broadcast_to(finite[-(finite.size // 8 * 8) :], (4, finite.size // 8 * 8)).copy()
    x[:, 0] = heads.astype(dtype)
    # The mean of one square: every step is a single f32 operation.
    a, epsilon = x.astype(np.float32), float(heads[0] / 3)
    expected = (a / np.sqrt(a[:, :1] * a[:, :1] + np.float32(epsilon))).astype(dtype)
    for before in (False, True):
        attributes = {"partial_size": 1, "scale_before_cast": before, "epsilon": epsilon}
        y = driver.run(job_for(8, dtype, attributes, x=x, scale=None)).y
        np.testing.assert_array_equal(y.view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize("codes", [FP8, INT8], ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.1, 2.0**-7, 3e4, 1e-30])
def test_codes_of_every_value(driver: Driver, codes: np.dtype[Any], scale: float) -> None:
    """Codes round to even and saturate. A row of ones has a mean square of 1: y is the scale."""
    rng = np.random.default_rng(3)
    values = np.concatenate([rng.standard_normal(2000) * 40, np.arange(-130, 130, 0.5)])
    values = np.concatenate([values, [500, -500, 448, 464, 465, 1e30, -1e30, 0, 2.0**-9, 2.0**-10]])
    values = (np.resize(values, 2520) * scale).astype(np.float32)
    operands = {"x": np.ones((1, values.size), np.float32), "scale": values, "quant_scale": scale}
    job = job_for(8, F32, {"epsilon": 0.0}, quantize="static", codes=codes, **operands)
    expected = codes_of(values, np.array(np.float32(scale)), codes)
    np.testing.assert_array_equal(driver.run(job).y[0].view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("n", [64, 1001, 4096, 40000])
@pytest.mark.parametrize("quantize", ["none", "per_row"])
def test_a_sum_that_nobody_asks_for(driver: Driver, n: int, quantize: How) -> None:
    """It is not written, and y is the same: in every kernel, and where a row is read again."""
    for attributes in ({}, {"epsilon_outside": True}):
        job = job_for(n, F32, KINDS["Skip"] | attributes, quantize=quantize, sm=86)
        without = driver.run(dataclasses.replace(job, has_sum=False))
        assert without.sum is None
        assert without.y.tobytes() == driver.run(job).y.tobytes()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("epsilon", [1e-40, 1e-45, 2e38])
def test_divisors_at_the_ends(driver: Driver, dtype: np.dtype[Any], epsilon: float) -> None:
    """rms is epsilon for a row of zeros, and f32 has no reciprocal of it, or one of few bits."""
    for n in (7, 64, 1000):
        job = job_for(n, dtype, {"epsilon_outside": True, "epsilon": epsilon})
        job.x[1] = 0
        assert not np.isnan(driver.checked(job).y[1].astype(np.float32)).any()


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("scale", [1e-36, 3e-38, 1e-39, 5e-41, 1e36])
def test_scales_of_codes_at_the_ends(driver: Driver, dtype: np.dtype[Any], scale: float) -> None:
    """Weights so small, or so large, that the scale of a row has no reciprocal in f32."""
    cases = itertools.product((64, 1001), (FP8, INT8), ("static", "per_row"))
    for n, codes, quantize in cases:
        weights = np.random.default_rng(1).uniform(-100, 100, n) * np.float64(np.float32(scale))
        options = {"codes": codes, "quant_scale": scale, "scale": weights.astype(dtype)}
        job = job_for(n, dtype, quantize=quantize, **options)
        job.x[1] = 0
        assert not driver.checked(job).y[1].astype(np.float32).any()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("scale", [-1e-39, 5e-41, 2e-38, 1e38, -3e38])
def test_values_that_are_all_or_nothing_to_their_scale(
    driver: Driver, dtype: np.dtype[Any], scale: float
) -> None:
    """A static scale that f32 has no reciprocal of, and ordinary values: the last code, or 0."""
    job = job_for(64, dtype, quantize="static", quant_scale=scale)
    job.x[1] = 0
    job.x[:, 5] = -0.0
    job.x[2, 7] = np.nan
    y = np.abs(driver.checked(job).y[0].astype(np.float32))
    assert not y[5]
    assert set(y) <= {0, 448}


# The norm with a rotary embedding behind it: every layout of the angles, against intervals.

_WHOLE = {"partial_size", "group_size"}
"""Attributes of norms that have no rotary embedding."""


def _turns(part: int, interleaved: bool) -> dict[str, Any]:
    return {"rotary_dim": part, "rotary_interleaved": interleaved}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("interleaved", [False, True])
def test_instance(driver: Driver, dtype: np.dtype[Any], order: str, interleaved: bool) -> None:
    """The kernels of whole vectors: tables of either type and width, part of a row or all of it."""
    for n, part, half, table in (
        (64, 0, False, dtype),
        (128, 0, True, dtype),
        (128, 64, False, F32),
        (256, 0, False, F32),
        (96, 32, True, F32),
    ):
        attributes = VARIANTS[order] | _turns(part, interleaved)
        axes = LAYOUTS[n // 32 % len(LAYOUTS)]
        job = rotary_job(n, dtype, attributes, half=half, table=table, axes=axes)
        assert driver.checked(job).threads == 128


def _layouts(dtype: np.dtype[Any]) -> Iterator[Job]:
    """Each row takes its own row of the tables, by vectors and by single elements."""
    for axes, n in itertools.product(LAYOUTS, (64, 6)):
        yield rotary_job(n, dtype, axes=axes)


def _variants(dtype: np.dtype[Any]) -> Iterator[Job]:
    """Attributes that no instance knows, with a bias; whole vectors and single elements."""
    sizes = ((64, 0, False), (64, 32, True), (18, 6, False), (30, 0, True))
    for variant, (n, *turns) in itertools.product(VARIANTS.values(), sizes):
        if not _WHOLE & variant.keys():
            yield rotary_job(n, dtype, variant | _turns(*turns), bias=True)


def _half_stashes(dtype: np.dtype[Any]) -> Iterator[Job]:
    for variant, (n, half) in itertools.product(STASHES.values(), ((64, True), (10, False))):
        if dtype != F32 and not _WHOLE & variant.keys():
            yield rotary_job(n, dtype, variant, stash=True, half=half)


def _lengths(dtype: np.dtype[Any]) -> Iterator[Job]:
    """Rows that are no two vectors a thread."""
    for n, interleaved in itertools.product((2, 62, 520, 2048, 40000), (False, True)):
        axes = LAYOUTS[2] if n < 500 else ((2, 1), (1, 1))
        yield rotary_job(n, dtype, _turns(0, interleaved), axes=axes, half=True, table=F32)


def _misaligned_or_without_scale(dtype: np.dtype[Any]) -> Iterator[Job]:
    for changes in ({"misaligned": 1}, {"misaligned": 3}, {"scale": None}):
        yield rotary_job(128, dtype, **changes)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    "jobs", [_layouts, _variants, _half_stashes, _lengths, _misaligned_or_without_scale]
)
def test_against_the_reference(driver: Driver, dtype: np.dtype[Any], jobs: Any) -> None:
    for job in jobs(dtype):
        outcome = driver.checked(job)
        otherwise = driver.run(dataclasses.replace(job, schedule=2))
        assert otherwise.y.tobytes() == outcome.y.tobytes()


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_what_is_not_turned_passes_and_what_is_not_finite_stays(
    driver: Driver, dtype: np.dtype[Any]
) -> None:
    """Elements behind rotary_dim keep the sign of a zero and know no NaN of others' angles."""
    job = rotary_job(128, dtype, _turns(64, False))
    assert job.tables is not None
    job.x[:, 70] = -0.0
    job.x[1, 0] = np.inf
    job.tables[0][0, 0, 3] = np.nan
    y = driver.checked(job).y[0].astype(np.float32)
    assert np.signbit(y[70])
    assert np.isnan(y[3])


def test_many_rows(driver: Driver) -> None:
    """More items than teams at once; a row is the same alone."""
    job = rotary_job(64, BF16, axes=((300, 31), (300, 1)))
    together = driver.checked(job)
    assert together.blocks * together.threads // 4 < 300 * 8
    assert job.tables is not None
    cos, sin = (table[-1:] for table in job.tables)
    last = dataclasses.replace(job, x=job.x[-31:], leading=(1, 31), tables=(cos, sin))
    alone = driver.run(last)
    assert alone.y.tobytes() == together.y[-31:].tobytes()
