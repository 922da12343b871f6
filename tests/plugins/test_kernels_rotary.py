"""The norm with a rotary embedding behind it: every layout of the angles, against intervals."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from rmsnorm_export.op import reference
from rmsnorm_export.op.spec import NormSpec
from tests.plugins.kernel_cases import STASHES, TYPES, VARIANTS, spec_for
from tests.plugins.test_kernels_hot import ORDERS
from tests.tools.shim import BF16, F16, F32, Job, RefusalError, Shim, arrays, check, turned

LAYOUTS = (
    ((12,), ()),
    ((12,), (12,)),
    ((2, 3, 5), (3, 1)),
    ((2, 3, 5), (2, 3, 1)),
    ((2, 3, 5), (2, 1, 5)),
    ((2, 9, 5), (5,)),
    ((2, 5, 1, 3), (5, 1, 1)),
    ((2, 2, 3, 2, 2), (1, 1, 3, 1, 1)),
)
"""The axes of x and those of the tables before the last: heads before or behind the tokens, more
and fewer of them than a team takes at once, one row of angles for each row and for all."""

_CUT = ("partial", "groups", "groups, gemma")
"""Variants that have no rotary embedding."""


def rotary(
    n: int,
    dtype: np.dtype[Any],
    *,
    axes: tuple[tuple[int, ...], tuple[int, ...]] = LAYOUTS[2],
    part: int = 0,
    interleaved: bool = False,
    half_table: bool = False,
    table: np.dtype[Any] | None = None,
    bias: bool = False,
    stash: bool = False,
    seed: int = 1,
    attributes: dict[str, Any] | None = None,
    **fields: Any,
) -> Job:
    """A job whose angles are numbers, not a circle's: a wrong entry shows."""
    leading, of_table = axes
    x, _, scale, offset = arrays(seed, int(np.prod(leading)), n, dtype)
    spec = spec_for(n, dtype, stash, **(attributes or {}))
    turns = {"rotary_dim": part, "rotary_interleaved": interleaved}
    width = (part or n) // (2 if half_table else 1)
    rng = np.random.default_rng(seed)
    tables = tuple(rng.uniform(-1, 1, (*of_table, width)).astype(table or dtype) for _ in range(2))
    return Job(
        spec=dataclasses.replace(spec, kind="RotaryRMSNorm", **turns),
        x=x,
        scale=scale,
        bias=offset if bias else None,
        tables=(tables[0], tables[1]),
        leading=leading,
        **fields,
    )


def test_the_intervals_are_those_of_the_reference() -> None:
    """Of a norm that is known, the turn is that of ``reference_exact``, bit for bit."""
    for dtype, interleaved, half in itertools.product((F16, F32), (False, True), (False, True)):
        job = rotary(48, dtype, part=32, interleaved=interleaved, half_table=half, table=F32)
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
        job = rotary(
            n,
            dtype,
            axes=LAYOUTS[n // 32 % len(LAYOUTS)],
            part=part,
            interleaved=interleaved,
            half_table=half,
            table=table,
            attributes=ORDERS[order],
            low_latency=low_latency,
        )
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
        job = rotary(n, dtype, axes=axes, low_latency=low_latency)
        outcome = shim.run(job)
        check(job, outcome)
        backwards = shim.run(dataclasses.replace(job, backwards=True))
        assert backwards.y.tobytes() == outcome.y.tobytes()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("variant", [v for v in VARIANTS if v not in _CUT])
def test_variant(shim: Shim, dtype: np.dtype[Any], variant: str) -> None:
    """Attributes that no instance knows, with a bias; whole vectors and single elements."""
    for n, part, interleaved in ((64, 0, False), (64, 32, True), (18, 6, False), (30, 0, True)):
        job = rotary(
            n, dtype, part=part, interleaved=interleaved, bias=True, attributes=VARIANTS[variant]
        )
        check(job, shim.run(job))


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("stash", [s for s in STASHES if s not in _CUT])
def test_half_stash_type(shim: Shim, dtype: np.dtype[Any], stash: str) -> None:
    for n, half in ((64, True), (10, False)):
        job = rotary(n, dtype, stash=True, half_table=half, attributes=STASHES[stash])
        check(job, shim.run(job))


@pytest.mark.parametrize("n", [2, 62, 520, 2048, 40000])
def test_rows_that_are_no_two_vectors_a_thread(shim: Shim, n: int) -> None:
    for dtype, interleaved in itertools.product((F32, F16), (False, True)):
        axes = LAYOUTS[2] if n < 500 else ((2, 1), (1, 1))
        job = rotary(n, dtype, axes=axes, interleaved=interleaved, half_table=True, table=F32)
        check(job, shim.run(job))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_misaligned_or_without_scale(shim: Shim, dtype: np.dtype[Any]) -> None:
    job = rotary(128, dtype)
    for changed in (
        dataclasses.replace(job, misaligned=1),
        dataclasses.replace(job, misaligned=3),
        dataclasses.replace(job, scale=None),
    ):
        check(changed, shim.run(changed))


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_what_is_not_turned_passes_and_what_is_not_finite_stays(
    shim: Shim, dtype: np.dtype[Any]
) -> None:
    """Elements behind rotary_dim keep the sign of a zero and know no NaN of others' angles."""
    job = rotary(128, dtype, part=64)
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
    job = rotary(64, BF16, axes=((300, 31), (300, 1)))
    together = shim.run(job)
    assert together.blocks * together.threads // 4 < 300 * 8
    check(job, together)
    assert job.tables is not None
    cos, sin = (table[-1:] for table in job.tables)
    last = dataclasses.replace(job, x=job.x[-31:], leading=(1, 31), tables=(cos, sin))
    alone = shim.run(dataclasses.replace(last, low_latency=True))
    assert alone.y.tobytes() == together.y[-31:].tobytes()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rotary_dim": 7}, "rotary_dim must be even"),
        ({"rotary_dim": 66}, "at most the elements of a row"),
        ({"rotary_dim": -2}, "rotary_dim must be even"),
        ({"n": 63}, "must be even"),
        ({"group_size": 8}, "have no rotary embedding"),
        ({"partial_size": 8}, "have no rotary embedding"),
        ({"inner": 2}, "have no rotary embedding"),
        ({"quantize": 1, "y": 3}, "cannot be quantised"),
        ({"table": 2}, "cos and sin must be of the type of x, or f32"),
        ({"table_width": 16}, "rotary_dim entries in a row, or half as many"),
        ({"table_width": 0}, "rotary_dim entries in a row, or half as many"),
    ],
    ids=str,
)
def test_refused(shim: Shim, changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(RefusalError, match=sentence):
        shim.run(rotary(64, F16), **changes)


@pytest.mark.parametrize(
    ("axes", "sentence"),
    [
        (((2, 3), (2,)), "must broadcast"),
        (((2, 3), (2, 2, 3)), "must broadcast"),
        (((2, 3, 2, 3), (1, 3, 1, 3)), "at most two runs"),
    ],
    ids=str,
)
def test_tables_that_do_not_broadcast(
    shim: Shim, axes: tuple[tuple[int, ...], tuple[int, ...]], sentence: str
) -> None:
    with pytest.raises(RefusalError, match=sentence):
        shim.run(rotary(64, F16, axes=axes))
