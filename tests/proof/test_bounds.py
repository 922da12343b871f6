"""How small an error of epsilon, of the gain or of the row length the bounds still catch."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest

from proof.sites import ORDERS, SPEC, site_of
from rmsnorm_export.op.dtypes import numpy_dtype
from rmsnorm_export.op.reference import reference_exact, reference_float64
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, NormSpec
from rmsnorm_export.proof.bounds import Bounds, Row, sum_of
from rmsnorm_export.proof.composite import _apart, _differences
from rmsnorm_export.proof.feeds import Batch, Layout, batches, random_weights
from rmsnorm_export.proof.judge import Judge, Rows
from rmsnorm_export.recognize.match import Quantized


@functools.cache
def runs(order: str, n: int) -> list[tuple[Batch, np.ndarray, Rows]]:
    """Inputs, the scale, and what the formula makes of them, in float64."""
    _, dtype, spec = ORDERS[order]
    scale = random_weights(spec, n, 0)[0].astype(numpy_dtype(dtype))
    rows = []
    for batch in batches(spec, dtype, Layout((5, 4), (n,), ()), 0):
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
    for batch in batches(spec, dtype, Layout((14,), (n,), ()), 3):
        total = batch.x + batch.residual if kind == "SkipRMSNorm" else batch.x
        for row, case in zip(total.astype(numpy_dtype(stash)), batch.cases, strict=True):
            if sum_of(case, spec) == "exact":
                seen.add(case)
                squares = row * row
                forward, backward = np.cumsum(squares)[-1], np.cumsum(squares[::-1])[-1]
                assert forward == backward == math.fsum(squares.tolist()), case
    assert {"random", "tiny", "epsilon", "huge", "negative"} <= seen


HALF_STASH = {"stash_type": FLOAT16}
GATED = {"kind": "GatedRMSNorm"}


def bounds_of(changes: dict, dtype: int, *, scaled: bool = False, biased: bool = False) -> Bounds:
    """The bounds of rows of 64 elements."""
    return Bounds(NormSpec(**changes), dtype, 64, scaled=scaled, biased=biased)


@pytest.mark.parametrize(
    ("changes", "dtype", "operands", "row", "units"),
    [
        # Mean 1, epsilon 1/2, root 1, inverse 1, product 1; scale, offset and bias 1 each.
        ({}, FLOAT, "", Row("exact"), 4.5),
        ({}, FLOAT, "scaled", Row("exact"), 5.5),
        ({"scale_offset": 1.0}, FLOAT, "scaled", Row("exact"), 6.5),
        ({"scale_offset": 1.0}, FLOAT, "", Row("exact"), 4.5),
        ({}, FLOAT, "scaled biased", Row("exact"), 6.5),
        # A square 1/2; 64 terms: the root of them, twice that of half types, or half of them.
        ({}, FLOAT, "", Row("any"), 5 + 8),
        ({}, FLOAT16, "", Row("any"), 5 + 16),
        ({}, BFLOAT16, "", Row("any"), 5 + 16),
        ({}, FLOAT, "", Row("equal"), 5 + 32),
        ({"group_size": 16}, FLOAT, "", Row("any"), 5 + 4),
        ({"partial_size": 16}, FLOAT, "", Row("equal"), 5 + 8),
        ({"stash_type": DOUBLE}, DOUBLE, "", Row("exact"), 4.5),
        # Its square is rounded, and one of 1 has 2 ** 24 of the smallest numbers.
        (HALF_STASH, FLOAT16, "", Row("exact"), 5 + 2.0**-14),
        (GATED, FLOAT, "", Row("exact"), 4.5 + 64),
        # Squares of 4 times the smallest number are off by a quarter, and the row by the root.
        ({"epsilon": 0.0}, FLOAT, "", Row("exact", 2.0**-147), 4.5 + 2**24 * (2 / 3**0.5 - 1)),
        ({"epsilon": 0.0}, FLOAT, "", Row("exact", 2.0**-149), math.inf),
        ({"epsilon": 0.0}, FLOAT, "", Row("exact", 0.0), 4.5),
        ({}, FLOAT, "", Row("exact", 1.0, loss=2.0**-22), 4.5 + 4),
    ],
)  # fmt: skip
def test_the_roundings_in_the_stash_type(
    changes: dict, dtype: int, operands: str, row: Row, units: float
) -> None:
    """In u of S, which is 2 ** -13 or 2 ** -16 of that of a half T."""
    bounds = bounds_of(changes, dtype, scaled="scaled" in operands, biased="biased" in operands)
    ratio = {FLOAT16: 2.0**-13, BFLOAT16: 2.0**-16}.get(dtype, 1.0) if changes != HALF_STASH else 1
    assert bounds.stash_error(row) == pytest.approx(units * ratio, rel=1e-9)
    assert bounds.accuracy(row) == pytest.approx(0.5 + bounds.roundings() + units * ratio, rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "operands", "roundings"),
    [
        ({}, "", 0), ({}, "scaled", 1), ({}, "biased", 1), ({}, "scaled biased", 2),
        ({"scale_before_cast": True}, "scaled biased", 0), ({"round_rstd": True}, "", 1),
        ({"round_rstd": True}, "scaled", 2), ({"scale_offset": 1.0}, "scaled", 2),
        ({"round_rstd": True, "scale_rstd": True}, "scaled", 1), (GATED, "", 1),
        ({**GATED, "gate_first": True}, "", 0), (GATED, "scaled", 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("dtype", "eta"), [(FLOAT16, 2.0**-24), (BFLOAT16, 2.0**-133)])
def test_the_roundings_in_a_half_type(
    changes: dict, operands: str, roundings: int, dtype: int, eta: float
) -> None:
    """One ulp, or two for each rounding before the last; one more where one is moved, and one for
    each that a runtime leaves out; less where nothing is rounded on the way."""
    bounds = bounds_of(changes, dtype, scaled="scaled" in operands, biased="biased" in operands)
    assert bounds.roundings() == roundings
    for numerics, elided in itertools.product(("exact", "reordered"), (False, True)):
        more = (numerics == "reordered") + (roundings if elided else 0)
        steps = max(1, 2 * roundings) + more
        ulp = bounds.distance(numerics, Row("exact"), elided=elided, error_before=9.0)
        assert ulp == steps
        slack = steps * eta if roundings or numerics == "reordered" else 0
        assert bounds.underflow(numerics, elided=elided) == slack
    upcast = bounds.distance("upcast", Row("exact"), elided=False, error_before=9.0)
    assert upcast == 9.0 + bounds.accuracy(Row("exact"))
    skip = dataclasses.replace(bounds, spec=dataclasses.replace(bounds.spec, kind="SkipRMSNorm"))
    if changes.get("kind") is None:
        assert skip.accuracy(Row()) == bounds.accuracy(Row()) + 1.0


def test_what_is_lost_at_a_clamp() -> None:
    """sqrt(1/2) of a row that is as small as the clamp, nothing but a rounding of a larger one."""
    bounds = bounds_of({"epsilon": 0.5, "epsilon_clamp": True}, FLOAT)
    lost = bounds.loss(np.array([0.25, 0.0, 2.0**60]))
    assert lost - 2.0**-24 == pytest.approx([1 - math.sqrt(0.5), 0.0, 0.0], abs=1e-12)


def shifted(array: np.ndarray, steps: int) -> np.ndarray:
    """A copy in which the last element of the first row is so many numbers further from zero."""
    moved = array.copy().reshape(-1, array.shape[-1])
    for _ in range(abs(steps)):
        end = math.copysign(math.inf, moved[0, -1]) if steps > 0 else 0.0
        moved[0, -1] = np.nextafter(moved[0, -1], moved.dtype.type(end))
    return moved.reshape(array.shape)


def holds(order: str, numerics: str, label: str, before: int, after: int) -> bool:
    """Whether a proof takes results that are so many ulp off, on either side of the formula's."""
    match = site_of(order, 96)
    judge = Judge(match, match.spec, 96, numerics)
    batch, _, rows = runs(order, 96)[0]
    exact = rows.expected["y"].astype(batch.x.dtype)
    judge.distance(rows, "y", shifted(exact, before), shifted(exact, after), label)
    return judge.proof().passed


@pytest.mark.parametrize(
    ("order", "numerics", "label", "ulp", "explained"),
    [
        ("float", "exact", "numpy", 11, 6), ("float", "reordered", "onnxruntime", 11, 6),
        ("float16 LLaMA", "exact", "numpy", 2, 1), ("float16 LLaMA", "reordered", "numpy", 3, 1),
        ("float16 LLaMA", "exact", "onnxruntime", 3, 1),
        ("float16 LLaMA", "reordered", "onnxruntime", 4, 1),
        ("float16 Gemma", "exact", "numpy", 1, 0), ("float16 Gemma", "reordered", "numpy", 2, 0),
        ("bfloat16 LLaMA", "exact", "numpy", 2, 1),
        ("bfloat16 LLaMA", "reordered", "onnxruntime", 4, 1),
    ],
)  # fmt: skip
def test_a_proof_ends_at_its_bounds(
    order: str, numerics: str, label: str, ulp: int, explained: int
) -> None:
    """As far from the original as the class allows, and from float64 as the roundings explain."""
    near = min(explained, ulp // 2)
    assert holds(order, numerics, label, ulp - near, -near)
    assert not holds(order, numerics, label, ulp + 1 - near, -near)
    assert holds(order, numerics, label, 0, min(explained, ulp))
    assert not holds(order, numerics, label, 0, explained + 2)
    if explained > 2:  # as inaccurate as the original, not as both together
        assert not holds(order, numerics, label, explained, 2 * explained)


@pytest.mark.parametrize(
    ("constants", "tolerance"),
    [
        ([], 1e-10), ([np.float32(1 / 3)], 1e-10 + 2.0**-23), ([np.float64(1 / 3)], 1e-10),
        ([np.float16(1 / 3)], 1e-10 + 2.0**-10), ([np.float32(1 / 3)] * 2, 1e-10 + 2.0**-23),
        ([np.float32(1 / 3), np.float32(0.7)], 1e-10 + 2.0**-22),
        # The last four bits of a count, or of a half, are free.
        ([np.float32(1 + 2.0**-19), np.float32(0.5), np.float32(96)], 1e-10),
        ([np.float32(1 + 2.0**-20)], 1e-10 + 2.0**-23), ([np.float32(SPEC.epsilon)], 1e-10),
    ],
)  # fmt: skip
def test_mathematics_end_at_what_rounded_constants_explain(
    constants: list[np.generic], tolerance: float
) -> None:
    match = site_of("float", 96)
    _, _, rows = runs("float", 96)[0]
    for error, passes in ((0.99, True), (1.01, False)):
        judge = Judge(match, match.spec, 96, "exact")
        output = rows.expected["y"] * (1 + error * tolerance)
        judge.mathematics(rows, "new", "y", output, map(np.asarray, constants))
        assert judge.proof().passed == passes


@pytest.mark.parametrize("special", [math.nan, math.inf])
@pytest.mark.parametrize("side", ["original", "new"])
def test_no_number_is_as_good_as_that_of_the_formula(side: str, special: float) -> None:
    match = site_of("float", 96)
    _, _, rows = runs("float", 96)[0]
    judge, output = Judge(match, match.spec, 96, "exact"), rows.expected["y"].copy()
    output[0, 0, 0] = special
    judge.mathematics(rows, side, "y", output, [])
    assert not judge.proof().passed


@pytest.mark.parametrize("changes", [{}, {"epsilon_outside": True}, {"epsilon_clamp": True}])
def test_a_source_may_have_an_epsilon_that_rounding_makes_that_of_the_norm(changes: dict) -> None:
    """Half an ulp of float32 away, and no further; in float64, or in the new nodes, nothing."""
    epsilon = float(np.float32(0.7))
    for stash, side, error, passes in (
        (FLOAT, "original", 0.99, True), (FLOAT, "original", 1.01, False),
        (FLOAT, "new", 0.99, False), (DOUBLE, "original", 0.99, False),
    ):  # fmt: skip
        spec = NormSpec(epsilon=epsilon, stash_type=stash, **changes)
        x = np.linspace(-0.01, 0.01, 96).reshape(1, 96)
        beside = dataclasses.replace(spec, epsilon=epsilon * (1 - error * 2.0**-24))
        expected, output = (np.asarray(reference_float64(s, x)) for s in (spec, beside))
        rows = Rows(("tiny",), {"y": expected}, np.square(x).mean(axis=-1), None, "")
        match = dataclasses.replace(site_of("float", 96), spec=spec)
        judge = Judge(match, spec, 96, "exact")
        judge.mathematics(rows, side, "y", output, [])
        assert judge.proof().passed == passes, (stash, side, error)


@pytest.mark.parametrize("order", ["float16 LLaMA", "bfloat16 LLaMA"])
def test_an_exact_proof_ends_at_its_count_of_flips(order: str) -> None:
    """Three elements and two of a hundred: 41 of the 1,920 in a run."""
    match = site_of(order, 96)
    batch, _, rows = runs(order, 96)[0]
    exact = rows.expected["y"].astype(batch.x.dtype)
    assert exact.size == 1920
    for count, passes in ((41, True), (42, False)):
        judge = Judge(match, match.spec, 96, "exact")
        moved = (exact != 0) & (np.cumsum(exact != 0).reshape(exact.shape) <= count)
        after = np.where(moved, np.nextafter(exact, exact.dtype.type(0)), exact)
        judge.distance(rows, "y", exact, after, "numpy")
        assert judge.proof().passed == passes


@pytest.mark.parametrize(
    ("edges", "steps"), [((), 0), (("a quotient that is rounded before the codes are",), 1)]
)
def test_codes_are_the_same_or_one_step_apart_where_the_class_says_so(
    edges: tuple[str, ...], steps: int
) -> None:
    match = dataclasses.replace(site_of("float", 96), edges=edges)
    codes, quantized = np.arange(-100, 100, dtype=np.int8), Quantized("int8", scale=match.x)
    for apart, differ in ((steps, False), (steps + 1, True)):
        assert bool(_differences(match, quantized, [codes], [codes + np.int8(apart)])) == differ
    own = Quantized("int8_per_row", scales=match.x)
    scales = np.array([0.5], np.float32)
    assert not _differences(match, own, [codes, scales], [codes, scales])
    assert _differences(match, own, [codes, scales], [codes + np.int8(1), scales])
    assert _differences(match, own, [codes, scales], [codes, np.nextafter(scales, scales * 2)])


def test_an_embedding_is_the_formula_up_to_float64() -> None:
    expected = np.array([1.0, -3.0])
    for error, differ in ((0.99e-10, False), (1.01e-10, True)):
        assert bool(_apart(expected * (1 + error), expected, np.abs(expected))) == differ
