"""A square, a mean and a root that divide a row are fused, or there is a refusal that says why."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

import rmsnorm_export as rx
from rmsnorm_export.recognize import scan
from rmsnorm_export.recognize.context import FLOATS, widens
from tests.recognize import text_models as text


def test_the_length_of_a_whole_tensor_is_not_that_of_a_row() -> None:
    """x / ||x|| over all axes, which PyTorch flattens first: no norm that lacks a row length."""
    source = text.model(
        "v = Reshape(x, flat)\n l = ReduceL2<keepdims = 0>(v)\n y = Div(x, l)",
        constants="int64[1] flat = {-1}",
    )
    (refusal,) = rx.optimize(source).report.refused
    assert (refusal.kind, refusal.reason) == ("look-alike", "different-numerator")


def test_a_length_that_divides_no_row_is_no_norm_whatever_its_axis() -> None:
    """Global response normalisation: x times its length over the mean of all lengths."""
    source = text.model(
        "l = ReduceL2<axes = [1]>(x)\n m = ReduceMean<axes = [-1]>(l)\n d = Div(l, m)\n "
        "y = Mul(x, d)"
    )
    (refusal,) = rx.optimize(source).report.refused
    assert (refusal.kind, refusal.reason) == ("look-alike", "no-normalised-row")


def test_a_centred_row_is_that_of_a_layer_norm_where_it_is_chosen() -> None:
    """jax2onnx makes a row of equal elements 0, whatever its mean was rounded to."""
    source = text.model(
        "mean = ReduceMean<axes = [-1]>(x)\n c = Sub(x, mean)\n "
        "least = ReduceMin<axes = [-1]>(x)\n most = ReduceMax<axes = [-1]>(x)\n "
        "same = Equal(least, most)\n "
        f"zero = Constant<value_float = 0.0>()\n z = Where(same, zero, c)\n {text.norm('z', 'y')}"
    )
    (refusal,) = rx.optimize(source, numerics="upcast").report.refused
    assert (refusal.kind, refusal.reason) == ("look-alike", "layer-norm")


def test_an_error_of_ours_costs_no_norm_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in one transfer function: the norm that needs it is found by what it computes."""

    def failing(*_: object) -> None:
        raise IndexError("tuple index out of range")

    monkeypatch.setitem(scan._STANDARD, "Reciprocal", failing)
    inverse = text.norm("x", "u").replace("n = Div(x, s)", "r = Reciprocal(s)\n n = Mul(x, r)")
    source = text.model(
        inverse + text.norm("x", "v", "p"), outputs="float[B,S,8] u, float[B,S,8] v"
    )
    report = rx.optimize(source).report
    assert [site.n for site in report.fused] == [8, 8]
    (refusal,) = [r for r in report.refused if r.reason == "recognition-failed"]
    assert (refusal.kind, refusal.op) == ("norm", "Reciprocal")
    assert refusal.found == "IndexError: tuple index out of range"


# Nodes that keep the numbers and the shape of a value lose no norm, wherever they stand; their
# look-alikes are not taken for them.


@pytest.mark.parametrize("to", FLOATS, ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_a_type_is_wider_where_it_has_every_number_of_the_other(source, to) -> None:
    """Of half types every number is tried; of wider ones the ends, and the number above 1."""
    own = source.numpy()
    info = ml_dtypes.finfo(own)
    numbers = np.array([info.max, info.tiny, 1 + info.eps], own)
    if source.bitwidth == 16:
        numbers = np.arange(1 << 16, dtype=np.uint16).view(own)
    with np.errstate(all="ignore"):
        back = numbers.astype(to.numpy()).astype(own)
        is_kept = np.array_equal(back.astype(float), numbers.astype(float), equal_nan=True)
    assert widens(source, to) == is_kept


# Norms between shapes that the graph computes, as JAX's and TensorFlow's converters write them.

MEAN = "q = Mul(x, x)\n d = ReduceMean<axes = [-1]>(q)\n"


def test_zeros_that_are_expanded_twice_are_nothing():
    """A mean of 0 that a library subtracts in the same way as it does a real one."""
    model = text.model(
        f"{MEAN} z2 = Expand(zero, sizes2)\n z3 = Unsqueeze(z2, axis)\n z = Expand(z3, sizes3)\n"
        "c = Sub(x, z)\n e = Add(d, eps)\n s = Sqrt(e)\n n = Div(c, s)\n y = Mul(n, w)",
        inputs="float[2,5,8] x",
        outputs="float[2,5,8] y",
        constants=f"{text.CONSTANTS}, {text.WEIGHT}, float zero = {{0}}, int64[1] axis = {{-1}},"
        "int64[2] sizes2 = {2, 5}, int64[3] sizes3 = {2, 5, 1}",
    )
    result = rx.optimize(model, prove=True)
    assert len(result.report.fused) == 1
    text.check_same(model, ir.to_proto(result.model))


FLAT = """
 shape = Shape(x)
 rows = Gather(shape, leading)
 count = ReduceProd<keepdims = 1>(rows)
 sizes = Concat<axis = 0>(count, minus, eight)
 flat = Reshape(x, sizes)
 columns = Transpose<perm = [0, 2, 1]>(flat)
 dots = MatMul(flat, columns)
 most = Max(rows, rows)
 back = Concat<axis = 0>(most, one)
 d = Reshape(dots, back)
"""


@pytest.mark.parametrize(("leading", "count"), [("0, 1", 1), ("0, 0", 0)])
def test_flat_rows_times_their_columns_are_sums(leading, count):
    """TensorFlow's converter writes an Einsum so, with shapes that are products of sizes."""
    model = text.model(
        f"{FLAT} m = Div(d, n)\n e = Add(m, eps)\n s = Sqrt(e)\n u = Div(x, s)\n y = Mul(u, w)",
        constants=f"{text.CONSTANTS}, {text.WEIGHT}, float n = {{8}}, int64[2] leading = "
        f"{{{leading}}}, int64[1] minus = {{-1}}, int64[1] eight = {{8}}, int64[1] one = {{1}}",
    )
    result = rx.optimize(model, prove=True)
    assert len(result.report.fused) == count
    text.check_same(model, ir.to_proto(result.model))


def test_an_axis_that_is_not_the_row_is_no_row():
    """Squeezed out and put back behind the others, so that the division pairs all rows."""
    model = text.model(
        f"{MEAN} e = Add(d, eps)\n s = Sqrt(e)\n t = Squeeze(s, first)\n u = Unsqueeze(t, last)\n"
        "y = Div(x, u)",
        inputs="float[1,3,8] x",
        outputs="float[3,3,8] y",
        constants=f"{text.CONSTANTS}, int64[1] first = {{0}}, int64[1] last = {{-1}}",
    )
    report = rx.inspect(model)
    assert not report.fused
    assert [r.reason for r in report.refused] == ["axes-misplaced"]
