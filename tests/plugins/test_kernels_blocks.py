"""MXFP8 codes: scales of blocks of 32 elements, by the hot kernels and the generic one."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
import pytest

from rmsnorm_export.op.blocks import reference_blocks
from tests.plugins.kernel_cases import KINDS, TYPES, VARIANTS, job_for
from tests.plugins.test_kernels_hot import ORDERS
from tests.tools.shim import BF16, F16, F32, INT8, RefusalError, Shim, check, exact

Blocks = Literal["mxfp8", "mxfp8_floor"]
HOW: tuple[Blocks, ...] = ("mxfp8", "mxfp8_floor")
SIZES = (32, 64, 96, 160, 256, 992, 2048 + 32, 8192 + 96)
"""Blocks of one thread's vectors and of several threads', whole warps and parts, four and eight
vectors a thread."""


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", ["RMSNorm", "Skip", "Gated"])
def test_instance(shim: Shim, how: Blocks, dtype: np.dtype[Any], order: str, kind: str) -> None:
    for n in SIZES:
        for low_latency in (False, True):
            attributes = KINDS[kind] | ORDERS[order]
            job = job_for(n, dtype, rows=5, seed=n, attributes=attributes, quantize=how,
                          low_latency=low_latency)  # fmt: skip
            check(job, shim.run(job))


@pytest.mark.parametrize("n", [16384 + 32, 40000, 131072 + 96, 262144])
@pytest.mark.parametrize("sm", [80, 90])
@pytest.mark.parametrize("kind", ["RMSNorm", "Skip"])
def test_slices(shim: Shim, n: int, sm: int, kind: str) -> None:
    """Slices of a cluster are whole blocks."""
    for dtype, how in ((BF16, HOW[0]), (F16, HOW[1])):
        job = job_for(n, dtype, rows=2, seed=n, sm=sm, attributes=KINDS[kind], quantize=how)
        for most in (16, 8, 1):
            placed = dataclasses.replace(job, most_cluster=most)
            check(placed, shim.run(placed))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_other_norms(shim: Shim, variant: str, dtype: np.dtype[Any]) -> None:
    for kind in KINDS:
        attributes = KINDS[kind] | VARIANTS[variant]
        for stash in (False, *([True] if dtype != F32 and "gemma" not in variant else [])):
            job = job_for(384, dtype, stash=stash, attributes=attributes, bias=True,
                          quantize="mxfp8", misaligned=1)  # fmt: skip
            check(job, shim.run(job))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_block_of_its_own(shim: Shim, how: Blocks, dtype: np.dtype[Any]) -> None:
    """What is in one block does not reach its neighbours: zeros, NaN, infinity, the ends of a
    scale. By a norm that divides by 1, so that y is known."""
    n = 256
    x = np.zeros((4, n), dtype)
    x[:, 0] = 1  # of the only block that makes the mean square
    x[1, 32:64] = np.linspace(-448, 448, 32)
    x[2, 64:96] = np.linspace(-449, 400, 32)
    x[3, 96:128] = 2.0**-14
    scale = np.ones(n, dtype)
    scale[40], scale[130], scale[200] = 0, np.inf, np.nan
    job = job_for(n, dtype, attributes={"partial_size": -1, "epsilon": 0.0}, quantize=how)
    spec = dataclasses.replace(job.spec, partial_size=1)
    x[:, 130] = 1
    job = dataclasses.replace(job, spec=spec, x=x, scale=scale)
    outcome = shim.run(job)
    y = exact(job)
    assert isinstance(y, np.ndarray)
    codes, scales = reference_blocks(y, how)
    assert outcome.row_scale is not None
    assert np.array_equal(outcome.row_scale, scales)
    found, wanted = (values.astype(np.float32) for values in (outcome.y, codes))
    assert np.array_equal(found, wanted, equal_nan=True)


def test_what_is_refused(shim: Shim) -> None:
    fields: dict[str, Any]
    for fields, word in (
        ({"n": 48}, "whole blocks"),
        ({"group_size": 16}, "whole blocks"),
        ({"inner": 2}, "whole blocks"),
        ({"y": 4}, "FP8 E4M3"),
        ({"quantize": 5}, "quantize must be"),
    ):
        with pytest.raises(RefusalError, match=word):
            shim.run(job_for(64, BF16, attributes={}, quantize="mxfp8"), **fields)
    with pytest.raises(RefusalError, match="FP8 E4M3"):
        shim.run(job_for(64, BF16, attributes={}, quantize="mxfp8", codes=INT8))
