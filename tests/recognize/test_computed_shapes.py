"""Norms between shapes that the graph computes, as JAX's and TensorFlow's converters write them."""

from __future__ import annotations

import onnx_ir as ir
import pytest

import rmsnorm_export as rx
from tests.recognize import text_models as text

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
