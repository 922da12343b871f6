"""A factor is 1, 1/n or sqrt(n) where it is that number in its own type, and not near it."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx_ir import from_proto

import rmsnorm_export as rx
from rmsnorm_export.recognize import consts
from rmsnorm_export.recognize.scan import recognize
from tests.recognize import text_models as text
from tests.sample import crossed

N = 8
TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float": np.float32,
         "double": np.float64}  # fmt: skip
STABLE = "q = Mul(x, x)\n m = ReduceMean<axes = [-1]>(q)\n e = Add(m, eps)\n "
MEAN = f"{STABLE}d = Sqrt(e)\n "
SUM = "q = Mul(x, x)\n s = ReduceSum(q, axes)\n "
ROOT = "e = Add(m, eps)\n d = Sqrt(e)\n y = Div(x, d)"
FORMS = {
    "of 1": (1.0, MEAN + "r = Reciprocal(d)\n i = Mul(r, c)\n y = Mul(x, i)"),
    "of the row": (1.0, MEAN + "v = Div(x, d)\n y = Mul(v, c)"),
    "of the root": (N**0.5, SUM + "e = Add(s, eps)\n d = Sqrt(e)\n i = Div(c, d)\n y = Mul(x, i)"),
    "of a length": (N**0.5, "v = LpNormalization<axis = -1, p = 2>(x)\n y = Mul(v, c)"),
    "of x": (N**0.5, "l = ReduceL2<axes = [-1]>(x)\n v = Mul(x, c)\n y = Div(v, l)"),
    "of the sum": (1 / N, f"{SUM}m = Mul(s, c)\n {ROOT}"),
}


def step_of(dtype: str) -> float:
    """The gap of the numbers above 1."""
    return float(ml_dtypes.finfo(TYPES[dtype]).eps)


def model(dtype: str, form: str, number: float, count: int = N) -> onnx.ModelProto:
    _, body = FORMS[form]
    stored = "eps = Constant<value_float = 0.01>()" if dtype == "float" else (
        "c32 = Constant<value_float = 0.01>()\n eps = CastLike(c32, x)")  # fmt: skip
    source = text.model(
        f"{stored}\n {body}", inputs=f"{dtype}[rows,{count}] x", outputs=f"{dtype}[rows,{count}] y",
        constants="int64[1] axes = {-1}", opset=17,
    )  # fmt: skip
    array = np.asarray(number).astype(TYPES[dtype])
    source.graph.initializer.append(onnx.numpy_helper.from_array(array, "c"))
    return source


def is_folded(dtype: str, form: str, number: float, count: int = N) -> bool:
    """Whether the factor is taken for what makes an RMSNorm of the row; one that is not is kept, or
    refused by name."""
    recognition = recognize(from_proto(model(dtype, form, number, count)))
    if not recognition.matches:
        (refusal,) = recognition.told.values()
        assert refusal.reason == "not-the-mean"
        return False
    (match,) = recognition.matches
    return match.factor == 1.0 and match.output.name == "y"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", TYPES)
def test_the_number_itself_is_folded_and_its_neighbours_are_not(dtype: str, form: str) -> None:
    """In float64, in which the factor is computed, the tolerance ends some ulp further."""
    number, count = FORMS[form][0], N
    step = step_of(dtype) * (8 if dtype == "double" else 1)
    if number == 1 / N:  # no power of two, and the root halves what is beside it
        count, number = 11, 1 / 11
    stored = float(np.asarray(number).astype(TYPES[dtype]))
    assert is_folded(dtype, form, stored, count)
    for beside in (stored * (1 + step), stored * (1 - step / (1 if dtype == "double" else 2))):
        assert not is_folded(dtype, form, beside, count), beside


@pytest.mark.parametrize("form", ["of 1", "of the root", "of a length", "of x"])
def test_in_float64_the_tolerance_is_that_of_its_own_arithmetic(form: str) -> None:
    number = FORMS[form][0]
    assert is_folded("double", form, float(np.nextafter(number, 9.0)))


@pytest.mark.parametrize("form", ["of the root", "of a length", "of x"])
@pytest.mark.parametrize(
    ("dtype", "narrow"), [("double", "float"), ("double", "float16"), ("float", "bfloat16")]
)
def test_a_root_of_a_narrower_type_is_none_in_a_wider_one(
    dtype: str, narrow: str, form: str
) -> None:
    number = float(np.asarray(N**0.5).astype(TYPES[narrow]))
    assert not is_folded(dtype, form, number)
    report = rx.optimize(model(dtype, form, number), prove=True).report
    assert not report.unproved
    assert report.fused


KEPT = {
    "with x": MEAN + "k = Mul(x, c)\n v = Div(k, d)\n y = Mul(v, g)",
    "with 1 / rms": MEAN + "i = Div(c, d)\n v = Mul(x, i)\n y = Mul(v, g)",
    "with the gain": MEAN + "i = Div(c, d)\n h = Mul(i, g)\n y = Mul(x, h)",
    "under the root": STABLE + "i = Div(c, e)\n r = Sqrt(i)\n v = Mul(x, r)\n y = Mul(v, g)",
    "under a power": STABLE + "i = Div(c, e)\n half = CastLike(h32, x)\n r = Pow(i, half)\n"
    " v = Mul(x, r)\n y = Mul(v, g)",
    "with a length": "l = ReduceL2<axes = [-1]>(x)\n u = Mul(x, c)\n v = Div(u, l)\n y = Mul(v, g)",
}


def kept(dtype: str, where: str, number: float, gain: str) -> onnx.ModelProto:
    body = f"eps = CastLike(e32, x)\n c64 = Constant<value = double {{{number!r}}}>()\n"
    return text.model(
        f"{body} c = CastLike(c64, x)\n {KEPT[where]}",
        inputs=f"{dtype}[B,S,{N}] x, {dtype}[{gain}] g", outputs=f"{dtype}[B,S,{N}] y",
        constants="float e32 = {0.01}, float h32 = {0.5}",
    )  # fmt: skip


@crossed(
    8,
    where=[*KEPT],
    dtype=["float", "float16", "double"],
    number=[1e4, 200.0, 0.1, 1e-4],
    gain=[f"{N}", f"B,S,{N}", "B,S,1"],
)
def test_a_factor_that_is_kept_is_proved(where: str, dtype: str, number: float, gain: str) -> None:
    """Rows and scales of a proof are such that their products with it are numbers."""
    if dtype == "float16" and not 0.05 < number < 1000.0:
        pytest.skip("results of ordinary rows overflow or vanish")
    report = rx.optimize(kept(dtype, where, number, gain), numerics="upcast", prove=True).report
    assert [refusal.found for refusal in report.refused] == []
    assert len(report.fused) == 1


@pytest.mark.parametrize("where", KEPT)
@pytest.mark.parametrize(
    ("dtype", "number"), [("float", 1e30), ("float", 1e-30), ("double", 1e250), ("double", 1e-250)]
)
def test_a_factor_with_which_ordinary_rows_are_no_numbers_is_left_alone(
    where: str, dtype: str, number: float
) -> None:
    """Its square, and that of a row, is none in the type; the class would be no promise."""
    for gain in (f"{N}", "B,S,1"):
        report = rx.inspect(kept(dtype, where, number, gain), numerics="upcast")
        assert not report.fused
        (refusal,) = report.refused
        assert refusal.reason in ("not-the-mean", "different-numerator", "spelling-unknown")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("number", [1.0, 1 / 3, 2 - 2**-7, 1000.0, 2.0**-14, 2.0**-15])
def test_half_an_ulp_of_a_constant(dtype: str, number: float) -> None:
    """What is rounded to it is as far away at most, and what is further is rounded to another."""
    stored = np.asarray(number).astype(TYPES[dtype])
    half = consts.rounding_of(stored)
    for sign in (1, -1):
        if sign == 1 or math.frexp(float(stored))[0] != 0.5:  # below a power of two the gap is half
            inside, outside = (float(stored) * (1 + sign * half * k) for k in (0.99, 1.01))
            if dtype != "double":
                assert np.asarray(inside).astype(TYPES[dtype]) == stored
                assert np.asarray(outside).astype(TYPES[dtype]) != stored
    assert half == pytest.approx(np.abs(float(_above(stored)) / float(stored) - 1) / 2, rel=1e-9)
    assert consts.rounding_of(np.array(7)) == 0.0


def _above(stored: np.ndarray) -> np.ndarray:
    return np.nextafter(stored, stored.dtype.type(np.inf))


@crossed(
    2,
    dtype=["float", "double"],
    floor=["Max(r, half)", "Max(half, r)", "Clip(r, half)"],
    square=["Mul(c, c)", "Pow(c, two)"],
)
def test_a_floor_is_squared_with_its_root(dtype: str, floor: str, square: str) -> None:
    source = text.model(
        f"s = Mul(x, x)\n m = ReduceMean<axes = [-1]>(s)\n r = Sqrt(m)\n c = {floor}\n"
        f" q = {square}\n d = Sqrt(q)\n y = Div(x, d)",
        inputs=f"{dtype}[rows,16] x", outputs=f"{dtype}[rows,16] y",
        constants=f"{dtype} half = {{0.5}}, {dtype} two = {{2}}",
    )  # fmt: skip
    (site,) = rx.optimize(source, prove=True).report.fused
    assert (site.epsilon, site.attributes["epsilon_clamp"]) == (0.5, 1)


@pytest.mark.parametrize(("shape", "norms"), [("4,1", 1), ("1,1", 0), ("1,4", 0), ("4,4", 1)])
def test_a_row_of_one_that_is_repeated_is_no_sum(shape: str, norms: int) -> None:
    rows, columns = map(int, shape.split(","))
    ones = ", ".join(["1"] * rows * columns)
    source = text.model(
        "s = Mul(x, x)\n m = MatMul(s, w)\n e = Add(m, eps)\n d = Sqrt(e)\n v = Div(x, d)\n"
        " y = Mul(v, root)",
        inputs=f"float[rows,{rows}] x", outputs=f"float[rows,{max(rows, columns)}] y",
        constants=f"float[{shape}] w = {{{ones}}}, {text.CONSTANTS}, float root = {{{rows**0.5}}}",
    )  # fmt: skip
    report = rx.optimize(source, prove=True).report
    assert len(report.fused) == norms
    assert not report.refused
