"""How small an error of epsilon, of the gain or of the row length the bounds still catch."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import pytest

from proof.sites import ORDERS, SPEC, site_of
from rmsnorm_export.op.dtypes import numpy_dtype
from rmsnorm_export.op.reference import reference_exact, reference_float64
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, NormSpec
from rmsnorm_export.proof.bounds import Bounds, Row, sum_of
from rmsnorm_export.proof.feeds import Batch, batches, random_weights
from rmsnorm_export.proof.judge import Judge, Rows


@functools.cache
def runs(order: str, n: int) -> list[tuple[Batch, np.ndarray, Rows]]:
    """Inputs, the scale, and what the formula makes of them, in float64."""
    _, dtype, spec = ORDERS[order]
    scale = random_weights(spec, n, 0)[0].astype(numpy_dtype(dtype))
    rows = []
    for batch in batches(spec, dtype, (5, 4), (n,), 0):
        expected = np.asarray(reference_float64(spec, batch.x, scale))
        mean = np.square(batch.x.astype(np.float64)).mean(axis=-1).reshape(-1)
        rows.append((batch, scale, Rows(batch.cases, {"y": expected}, mean, None, "")))
    return rows


def caught(order: str, n: int, what: str, error: float) -> bool:
    """Whether a node that is off by ``error`` (relative), and else right, is no exact one."""
    match = site_of(order, n)
    spec = match.spec
    judge = Judge(match, spec, n, "exact")
    wrong = dataclasses.replace(spec, epsilon=float(np.float32(spec.epsilon * (1 + error))))
    for batch, scale, rows in runs(order, n):
        if what == "epsilon":
            before, after = (reference_exact(s, batch.x, scale) for s in (spec, wrong))
        else:  # rounded to the type of X such a gain would be the right one
            exact = rows.expected["y"]
            before, after = (y.astype(batch.x.dtype) for y in (exact, exact * (1 + error)))
        judge.distance(rows, "y", np.asarray(before), np.asarray(after), "numpy")
    return not judge.proof().passed


@pytest.mark.parametrize(
    ("order", "n", "epsilon", "gain"),
    [
        ("float", 96, 20, 21), ("float", 4096, 20, 21),
        ("float16 LLaMA", 96, 12, 15), ("float16 LLaMA", 4096, 13, 16),
        ("float16 Gemma", 96, 18, 19), ("float16 Gemma", 4096, 20, 20),
        ("bfloat16 LLaMA", 96, 10, 13), ("bfloat16 LLaMA", 4096, 10, 12),
    ],
)  # fmt: skip
def test_the_smallest_error_that_is_caught(order: str, n: int, epsilon: int, gain: int) -> None:
    """2 ** -k of epsilon, and of the gain; a count of n + 1 for n is an error of 1 / (2n)."""
    for what, power in (("epsilon", epsilon), ("gain", gain)):
        assert all(caught(order, n, what, 2.0**-k) for k in (1, power - 1, power)), what
        assert not caught(order, n, what, 2.0 ** -(power + 1)), what
    if 2 * n <= 2**gain:
        assert caught(order, n, "length", math.sqrt((n + 1) / n) - 1)


@pytest.mark.parametrize("n", [1, 256, 4096, 1 << 20])
def test_the_length_of_a_row_does_not_widen_its_bound(n: int) -> None:
    """Eleven ulp: twice mean 1, epsilon 1/2, root 1, inverse 1, product 1 and scale 1."""
    bounds = Bounds(SPEC, FLOAT, n, scaled=True, biased=False)
    assert bounds.distance("exact", Row("exact"), elided=False, error_before=0.0) == 11.0


@pytest.mark.parametrize(
    ("dtype", "stash"), [(FLOAT, 1), (FLOAT16, 1), (BFLOAT16, 1), (DOUBLE, 11)]
)
@pytest.mark.parametrize("n", [3, 96, 4104, 1 << 16])
@pytest.mark.parametrize("kind", ["RMSNorm", "SkipRMSNorm"])
def test_sums_are_exact_in_the_rows_that_say_so(dtype: int, stash: int, n: int, kind) -> None:
    spec = NormSpec(epsilon=SPEC.epsilon, stash_type=stash, kind=kind)
    seen = set()
    for batch in batches(spec, dtype, (14,), (n,), 3):
        total = batch.x + batch.residual if kind == "SkipRMSNorm" else batch.x
        for row, case in zip(total.astype(numpy_dtype(stash)), batch.cases, strict=True):
            if sum_of(case, spec) == "exact":
                seen.add(case)
                squares = row * row
                forward, backward = np.cumsum(squares)[-1], np.cumsum(squares[::-1])[-1]
                assert forward == backward == math.fsum(squares.tolist()), case
    assert {"random", "tiny", "epsilon", "huge", "negative"} <= seen
