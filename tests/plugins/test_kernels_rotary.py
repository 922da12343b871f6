"""The norm with a rotary embedding behind it: every layout of the angles, against intervals."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rmsnorm_export.op import reference
from rmsnorm_export.op.spec import NormSpec
from tests.plugins.kernel_cases import LAYOUTS, STASHES, TYPES, VARIANTS, rotary_job
from tests.plugins.test_kernels_hot import ORDERS
from tests.tools.shim import BF16, F16, F32, Job, Shim, check, turned

_WHOLE = {"partial_size", "group_size"}
"""Attributes of norms that have no rotary embedding."""


def _turns(part: int, interleaved: bool) -> dict[str, Any]:
    return {"rotary_dim": part, "rotary_interleaved": interleaved}


def test_the_intervals_are_those_of_the_reference() -> None:
    """Of a norm that is known, the turn is that of ``reference_exact``, bit for bit."""
    for dtype, interleaved, half in itertools.product((F16, F32), (False, True), (False, True)):
        job = rotary_job(48, dtype, half=half, table=F32, attributes=_turns(32, interleaved))
        assert job.tables is not None
        norm = NormSpec(epsilon=job.spec.epsilon)
        y = np.asarray(reference.reference_exact(norm, job.x, job.scale)).astype(np.float64)
        cos, sin = job.tables
        x = job.x.reshape(*job.leading, -1)
        expected = reference.reference_exact(job.spec, x, job.scale, cos=cos, sin=sin)
        for end in turned(job, y, y):
            assert end.astype(dtype).tobytes() == np.asarray(expected).tobytes()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("interleaved", [False, True])
def test_instance(shim: Shim, dtype: np.dtype[Any], order: str, interleaved: bool) -> None:
    """The kernels of whole vectors: tables of either type and width, part of a row or all of it."""
    for n, part, half, table, low_latency in (
        (64, 0, False, dtype, False),
        (128, 0, True, dtype, False),
        (128, 64, False, F32, True),
        (256, 0, False, F32, False),
        (96, 32, True, F32, False),
    ):
        axes = LAYOUTS[n // 32 % len(LAYOUTS)]
        attributes = ORDERS[order] | _turns(part, interleaved)
        options = {"attributes": attributes, "low_latency": low_latency}
        job = rotary_job(n, dtype, axes=axes, half=half, table=table, **options)
        outcome = shim.run(job)
        check(job, outcome)
        assert outcome.threads == 128


@pytest.mark.parametrize("axes", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_broadcast(
    shim: Shim, dtype: np.dtype[Any], axes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    """Each row takes its own row of the tables, by vectors and by single elements."""
    for n, low_latency in ((64, False), (64, True), (6, False)):
        job = rotary_job(n, dtype, axes=axes, low_latency=low_latency)
        outcome = shim.run(job)
        check(job, outcome)
        backwards = shim.run(dataclasses.replace(job, backwards=True))
        assert backwards.y.tobytes() == outcome.y.tobytes()


def _variants(dtype: np.dtype[Any]) -> Iterator[Job]:
    """Attributes that no instance knows, with a bias; whole vectors and single elements."""
    sizes = ((64, 0, False), (64, 32, True), (18, 6, False), (30, 0, True))
    for variant, (n, *turns) in itertools.product(VARIANTS.values(), sizes):
        if not _WHOLE & variant.keys():
            yield rotary_job(n, dtype, bias=True, attributes=variant | _turns(*turns))


def _half_stashes(dtype: np.dtype[Any]) -> Iterator[Job]:
    for variant, (n, half) in itertools.product(STASHES.values(), ((64, True), (10, False))):
        if dtype != F32 and not _WHOLE & variant.keys():
            yield rotary_job(n, dtype, stash=True, half=half, attributes=variant)


def _rows_that_are_no_two_vectors_a_thread(dtype: np.dtype[Any]) -> Iterator[Job]:
    for n, interleaved in itertools.product((2, 62, 520, 2048, 40000), (False, True)):
        axes = LAYOUTS[2] if n < 500 else ((2, 1), (1, 1))
        if dtype != BF16:
            attributes = _turns(0, interleaved)
            yield rotary_job(n, dtype, axes=axes, half=True, table=F32, attributes=attributes)


def _misaligned_or_without_scale(dtype: np.dtype[Any]) -> Iterator[Job]:
    for changes in ({"misaligned": 1}, {"misaligned": 3}, {"scale": None}):
        yield dataclasses.replace(rotary_job(128, dtype), **changes)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    "jobs",
    [_variants, _half_stashes, _rows_that_are_no_two_vectors_a_thread,
     _misaligned_or_without_scale],
)  # fmt: skip
def test_against_the_reference(shim: Shim, dtype: np.dtype[Any], jobs: Any) -> None:
    for job in jobs(dtype):
        check(job, shim.run(job))


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_what_is_not_turned_passes_and_what_is_not_finite_stays(
    shim: Shim, dtype: np.dtype[Any]
) -> None:
    """Elements behind rotary_dim keep the sign of a zero and know no NaN of others' angles."""
    job = rotary_job(128, dtype, attributes=_turns(64, False))
    job.x[:, 70] = -0.0
    job.x[1, 0] = np.inf
    assert job.tables is not None
    job.tables[0][0, 0, 3] = np.nan
    outcome = shim.run(job)
    check(job, outcome)
    assert np.signbit(outcome.y[0, 70].astype(np.float32))
    assert np.isnan(outcome.y[0, 3].astype(np.float32))


def test_many_rows(shim: Shim) -> None:
    """More items than teams at once; a row is the same alone."""
    job = rotary_job(64, BF16, axes=((300, 31), (300, 1)))
    together = shim.run(job)
    assert together.blocks * together.threads // 4 < 300 * 8
    check(job, together)
    assert job.tables is not None
    cos, sin = (table[-1:] for table in job.tables)
    last = dataclasses.replace(job, x=job.x[-31:], leading=(1, 31), tables=(cos, sin))
    alone = shim.run(dataclasses.replace(last, low_latency=True))
    assert alone.y.tobytes() == together.y[-31:].tobytes()
