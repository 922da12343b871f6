"""The kernels of the usual norms, which multiply by 1 / rms: all of them, and how far that errs."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
import pytest

from tests.plugins.kernel_cases import KINDS, TYPES, job_for
from tests.tools.shim import (
    BF16,
    F16,
    F32,
    FP8,
    INT8,
    Array,
    Job,
    Shim,
    allowed,
    check,
    codes_of,
    exact,
    ordinal,
)

ORDERS: dict[str, dict[str, Any]] = {
    "LLaMA": {},
    "torch": {"scale_before_cast": True},
    "Gemma": {"scale_before_cast": True, "scale_offset": 1.0},
}
SIZES = (8, 24, 256, 1000, 2048 + 8, 8192 + 16)
"""Whole vectors of every type, in four and in eight vectors a thread; most leave threads idle."""

CLUSTERED = (16384 + 8, 40000, 262144)
"""In a block on sm_80, in clusters on sm_90, of sixteen blocks for the last."""


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", ["RMSNorm", "Skip", "Gated"])
@pytest.mark.parametrize("quantize", ["none", "static", "per_row"])
def test_instance(
    shim: Shim,
    dtype: np.dtype[Any],
    order: str,
    kind: str,
    quantize: Literal["none", "static", "per_row"],
) -> None:
    for i, n in enumerate(SIZES):
        for low_latency in (False, True):
            job = job_for(
                n,
                dtype,
                rows=5,
                seed=n,
                attributes=KINDS[kind] | ORDERS[order],
                quantize=quantize,
                codes=(FP8, INT8)[(i + low_latency) % 2],
                quant_scale=0.013,
                low_latency=low_latency,
            )
            check(job, shim.run(job))


@pytest.mark.parametrize("n", CLUSTERED)
@pytest.mark.parametrize("sm", [80, 90])
@pytest.mark.parametrize("kind", ["RMSNorm", "Skip", "Gated"])
def test_slices(shim: Shim, n: int, sm: int, kind: str) -> None:
    """The same row whole, in slices of a cluster, and where the cluster has no room."""
    for dtype, quantize in ((BF16, "none"), (F16, "per_row"), (F32, "none")):
        rows = 5 if n < 20000 else 2
        attributes = KINDS[kind]
        job = job_for(n, dtype, rows=rows, seed=n, sm=sm, attributes=attributes, quantize=quantize)
        outcome = shim.run(job)
        check(job, outcome)
        assert (outcome.cluster > 1) == (sm == 90 and n * dtype.itemsize > 16384)
        if outcome.cluster == 1:
            continue
        for most in (8, 1):
            less = dataclasses.replace(job, most_cluster=most)
            placed = shim.run(less)
            assert placed.cluster == min(most, outcome.cluster)
            check(less, placed)
        # Code for sm_80 that the driver has translated knows no clusters.
        assert shim.run(dataclasses.replace(job, compiled_for=80)).cluster == 1


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("n", [256, 2048, 4096, 65536])
def test_a_row_does_not_depend_on_the_others(shim: Shim, dtype: np.dtype[Any], n: int) -> None:
    """A block goes from row to row, with its scale: the last row is that of a launch of its own."""
    for kind, quantize in (("RMSNorm", "none"), ("RMSNorm", "per_row"), ("Skip", "per_row")):
        rows = 40 if n < 65536 else 6
        job = job_for(n, dtype, rows=rows, attributes=KINDS[kind], quantize=quantize)
        together = shim.run(job)
        other = None if job.other is None else job.other[-1:]
        alone = shim.run(dataclasses.replace(job, x=job.x[-1:], other=other))
        assert alone.y.tobytes() == together.y[-1].tobytes()
        backwards = shim.run(dataclasses.replace(job, backwards=True))
        assert backwards.y.tobytes() == together.y.tobytes()


def _exact_squares(rows: int, n: int, dtype: np.dtype[Any], seed: int) -> Array:
    """Values whose squares add up without rounding in any order: few bits, near each other."""
    rng = np.random.default_rng(seed)
    values = rng.integers(1, 16, (rows, n)) * rng.choice([-1, 1], (rows, n))
    return (values * 2.0 ** rng.integers(-3, 4, (rows, 1))).astype(dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n", [64, 1024, 16384])
def test_how_far_the_product_errs(shim: Shim, dtype: np.dtype[Any], order: str, n: int) -> None:
    """f32: 3 ulp at most. A half type: the value of the division rounded, unless that is within 2
    ulp of f32 of the middle between two values of the type."""
    scale = np.ones(n) if order == "LLaMA" else np.random.default_rng(n).uniform(0.5, 2, n)
    job = Job(
        spec=job_for(n, dtype, attributes=ORDERS[order]).spec,
        x=_exact_squares(24, n, dtype, n),
        scale=scale.astype(dtype),
    )
    found = shim.run(job).y
    expected = exact(job)
    assert isinstance(expected, np.ndarray)
    off = np.abs(ordinal(found.astype(np.float64), dtype) - ordinal(expected, dtype))
    if dtype == F32:
        assert off.max() <= 3
        return
    assert off.max() <= 1
    rows, columns = np.nonzero(off)
    x = job.x.astype(np.float64)
    rms = np.sqrt((x**2).mean(axis=1, keepdims=True) + job.spec.epsilon)
    value = (x / rms * (job.spec.scale_offset + job.scale.astype(np.float64)))[rows, columns]
    pair = np.stack([found[rows, columns], expected[rows, columns]]).astype(np.float64)
    ulp = np.spacing(np.abs(value).astype(np.float32)).astype(np.float64)
    assert (np.abs(value - pair.mean(axis=0)) <= 2 * ulp).all()
    assert off.sum() < off.size / 1000


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("epsilon", [1e-40, 1e-45, 2e38])
def test_divisors_at_the_ends(shim: Shim, dtype: np.dtype[Any], epsilon: float) -> None:
    """rms is epsilon for a row of zeros, and f32 has no reciprocal of it, or one of few bits."""
    for n in (7, 64, 1000):
        job = job_for(n, dtype, attributes={"epsilon_outside": True, "epsilon": epsilon})
        job.x[1] = 0
        outcome = shim.run(job)
        check(job, outcome)
        assert not np.isnan(outcome.y[1].astype(np.float32)).any()


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("codes", [FP8, INT8], ids=str)
@pytest.mark.parametrize("scale", [1e-36, 3e-38, 1e-39, 5e-41, 1e36])
@pytest.mark.parametrize("n", [64, 1001])
def test_scales_of_codes_at_the_ends(
    shim: Shim, dtype: np.dtype[Any], codes: np.dtype[Any], scale: float, n: int
) -> None:
    """Weights so small, or so large, that the scale of a row has no reciprocal in f32."""
    for quantize in ("static", "per_row"):
        job = job_for(n, dtype, attributes={}, quantize=quantize, codes=codes, quant_scale=scale)
        weights = np.random.default_rng(1).uniform(-100, 100, n) * np.float64(np.float32(scale))
        job = dataclasses.replace(job, scale=weights.astype(dtype))
        job.x[1] = 0
        outcome = shim.run(job)
        check(job, outcome)
        least, most = (codes_of(end, np.float32([1]), codes) for end in allowed(job))
        assert least.shape == most.shape
        assert not outcome.y[1].astype(np.float32).any()


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("scale", [-1e-39, 5e-41, 2e-38, 1e38, -3e38])
def test_values_that_are_all_or_nothing_to_their_scale(
    shim: Shim, dtype: np.dtype[Any], scale: float
) -> None:
    """A static scale that f32 has no reciprocal of, and ordinary values: the last code, or 0."""
    job = job_for(64, dtype, attributes={}, quantize="static", quant_scale=scale)
    job.x[1] = 0
    job.x[:, 5] = -0.0
    job.x[2, 7] = np.nan
    outcome = shim.run(job)
    check(job, outcome)
    zeros = outcome.y[0].astype(np.float32)[[5]]
    assert not zeros.any()
    assert set(np.abs(outcome.y[0].astype(np.float32))) <= {0, 448}


def test_the_host_asks_the_device_once(shim: Shim) -> None:
    """Of the second launch of a kind the runtime is asked nothing; of another cluster it is."""
    for n in (64, 4096, 65536):
        job = job_for(n, BF16, rows=1, attributes={}, low_latency=True, most_cluster=8)
        shim.run(job)
        assert shim.run(job).queries == 0
    first = shim.run(dataclasses.replace(job, most_cluster=4))
    assert first.queries > 0
    assert first.cluster == 4
