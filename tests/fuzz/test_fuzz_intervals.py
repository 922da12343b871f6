"""The intervals hold what runtimes compute, and little else."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from fuzz.norms import ROW, norm
from tests.tools.fuzz.evaluate import Program, rounded
from tests.tools.fuzz.feeds import all_feeds
from tests.tools.fuzz.intervals import UNIT, Arithmetic, Mode, Value, ideal
from tests.tools.fuzz.operators import CannotEvaluateError
from tests.tools.fuzz.subject import Mutant, load, run


def _value(lo: float, hi: float) -> Value:
    return Value(np.asarray(lo, np.float32), np.asarray(hi, np.float32), np.dtype(np.float32))


@pytest.mark.parametrize("dtype", ["float", "double", "float16"])
@pytest.mark.parametrize("order", ["llama", "gemma"])
def test_what_onnxruntime_computes_lies_inside(order: str, dtype: str) -> None:
    seed = norm(order, dtype)
    mutant = Mutant(seed.model, seed.signature)
    for index, feed in enumerate(mutant.feeds):
        assert feed.outputs is not None
        value = mutant.expected(index, Mode(spread=True, free=mutant.half))["y"]
        got = feed.outputs["y"].astype(np.float64)
        lo, hi = value.lo.astype(np.float64), value.hi.astype(np.float64)
        inside = (got >= lo) & (got <= hi) | np.isnan(got) & np.isnan(lo)
        inside |= np.isneginf(lo) & np.isposinf(hi)
        assert inside.all(), feed.kind


@pytest.mark.parametrize("mode", [Mode(spread=True), Mode(wide=True, spread=True)])
def test_an_interval_is_a_few_roundings_wide(mode: Mode) -> None:
    seed = norm("llama", "float")
    feeds = dict(all_feeds(seed.signature, 0))["plain"]
    value = Program(seed.model).run(feeds, mode)["y"]
    unit = UNIT[np.dtype(np.float64 if mode.wide else np.float32)]
    width = (value.hi - value.lo) / np.abs(value.lo)
    # 2 for each of 7 operators on either side, and the square root of a sum of ROW squares.
    assert np.all(width > 0)
    assert width.max() < 2 * (14 + 2 + ROW**0.5) * unit


def test_a_rounding_to_a_half_type_is_kept_or_free() -> None:
    seed = norm("llama", "float16")
    feeds = dict(all_feeds(seed.signature, 0))["plain"]
    program = Program(seed.model)
    point = rounded(program.run(feeds, Mode())["y"]).astype(np.float64)
    kept, free = (program.run(feeds, Mode(spread=True, free=f))["y"] for f in (False, True))
    assert np.mean(kept.lo == kept.hi) > 0.98  # the others lie near a boundary
    assert np.all((point >= kept.lo) & (point <= kept.hi))
    assert np.all((free.lo <= kept.lo) & (free.hi >= kept.hi))
    assert np.mean(free.lo < free.hi) > 0.5


def test_what_is_not_known_stays_unknown() -> None:
    calculus = Arithmetic(Mode(spread=True))
    with np.errstate(all="ignore"):
        unknown = calculus.divide(_value(1, 1), _value(-1e-30, 1e-30))
        product = calculus.elementwise(np.multiply, unknown, _value(0, 0))
        root = calculus.root(_value(-1e-30, 1.0))
    for value in (unknown, product, root):
        assert np.isneginf(value.lo), value
        assert np.isposinf(value.hi), value


def test_a_quotient_by_zero_of_either_sign_is_not_known() -> None:
    """NumPy takes either of two zeros for the smaller one."""
    calculus = Arithmetic(Mode(spread=True))
    with np.errstate(all="ignore"):
        zero = calculus.elementwise(np.multiply, _value(-1, 1), _value(0, 0))
        quotient = calculus.divide(_value(1, 1), zero)
        infinite = calculus.divide(_value(1, 1), _value(0, 0))
    assert np.isneginf(quotient.lo)
    assert np.isposinf(quotient.hi)
    assert infinite.lo == infinite.hi == np.inf


@pytest.mark.parametrize(("clamped", "width"), [("h", 2**-22), ("w", 0)])
def test_only_the_clamp_of_a_computed_number_stands_for_its_neighbours(
    clamped: str, width: float
) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        graph (float[2] x) => (float[2] y) <float w = {0.25}, float one = {1.0}> {
          h = Mul (x, x) c = Max (CLAMPED, one) y = Mul (c, x) }""".replace("CLAMPED", clamped)
    )
    feeds = {"x": np.asarray([0.5, 0.25], np.float32)}
    value = Program(model).run(feeds, Mode(wide=True, spread=True))["y"]
    np.testing.assert_allclose((value.hi - value.lo) / value.lo, width, rtol=1e-6, atol=2**-48)


def test_sums_of_subnormal_numbers_are_exact() -> None:
    calculus = Arithmetic(Mode(spread=True))
    total = calculus.elementwise(np.add, _value(0, 0), _value(1e-45, 1e-45))
    assert total.lo == total.hi == np.float32(1e-45)


@pytest.mark.parametrize("exact", [1 / 48, 48**0.5, 48**-0.5])
def test_a_constant_stands_for_the_number_that_was_rounded(exact: float) -> None:
    lo, hi = ideal(np.asarray(exact, np.float32), np.dtype(np.float32))
    assert lo < hi
    assert lo <= exact <= hi
    stored = np.asarray(0.017, np.float32)
    assert ideal(stored, stored.dtype) == (stored, stored)


def test_an_empty_mean_is_not_a_number() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        graph (float[a, b] x) => (float[a, 1] y) { y = ReduceMean <axes = [-1]> (x) }"""
    )
    (value,) = Program(model).run({"x": np.ones((2, 0), np.float32)}, Mode(spread=True)).values()
    assert value.lo.shape == (2, 1)
    assert np.isnan(value.lo).all()


def test_the_sigmoid_of_onnxruntime_is_further_off() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        graph (float[a] x) => (float[a] y) { y = Sigmoid (x) }"""
    )
    feeds = {"x": np.linspace(-24, 24, 100_001, dtype=np.float32)}
    outputs = run(load(model.SerializeToString()), feeds)["y"]

    def off(mode: Mode) -> float:
        value = Program(model).run(feeds, mode)["y"]
        return float(np.mean((outputs < value.lo) | (outputs > value.hi)))

    assert off(Mode(spread=True)) > 0.2
    assert off(Mode(spread=True, runtime=True)) == 0


def test_axes_of_a_number_are_refused_as_a_model() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        graph (float x) => (float y) { y = ReduceMean <axes = [-1]> (x) }"""
    )
    with pytest.raises(CannotEvaluateError, match="ReduceMean"):
        Program(model).run({"x": np.ones((), np.float32)}, Mode())
