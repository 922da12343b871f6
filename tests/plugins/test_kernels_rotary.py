"""The norm with a rotary embedding behind it: every layout of the angles, against intervals."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.plugins.kernel_cases import LAYOUTS, ORDERS, STASHES, TYPES, VARIANTS, rotary_job
from toolbox.driver import BF16, F16, F32, Driver, Job

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
