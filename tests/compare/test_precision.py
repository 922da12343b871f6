"""Models of different float types, and bfloat16 where ONNX Runtime has no kernels for it."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from rmsnorm_export import verify
from rmsnorm_export.op.dtypes import numpy_dtype
from rmsnorm_export.runtime.metrics import compare_arrays

F32, F16, F64, BF16 = 1, 10, 11, 16
TYPES = {F32: "float", F16: "float16", F64: "double", BF16: "bfloat16"}
N = 16
ROUGH = {F16: 1e-2, BF16: 4e-2, F32: 1e-4, F64: 1e-9}


def tower(element_type: int, *, epsilon: float = 1e-6) -> onnx.ModelProto:
    """A product, an RMSNorm that is computed in float32, a product; weights of one seed."""
    kind, rng = TYPES[element_type], np.random.default_rng(0)
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g ({kind}[rows, {N}] x) => ({kind}[rows, {N}] y)
        {{
          h = MatMul (x, w0)  wide = Cast <to = 1> (h)  squares = Mul (wide, wide)
          last = Constant <value_ints = [-1]> ()  mean = ReduceMean <keepdims = 1> (squares, last)
          epsilon = Constant <value_float = {epsilon:.9f}> ()  stable = Add (mean, epsilon)
          rms = Sqrt (stable)  unit = Div (wide, rms)  narrow = Cast <to = {element_type}> (unit)
          scaled = Mul (gain, narrow)  y = MatMul (scaled, w1)
        }}"""
    )
    square = (N, N)
    for name, shape in (("w0", square), ("gain", (N,)), ("w1", square)):
        weight = (rng.standard_normal(shape) / 4).astype(numpy_dtype(element_type))
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    return model


@pytest.mark.parametrize(("a", "b"), itertools.permutations((F32, F16, F64), 2))
def test_two_types_of_one_model_agree_and_of_another_differ(a: int, b: int) -> None:
    """The bound is that of the narrower type, and says so; a wrong epsilon is still seen."""
    narrow = max((a, b), key=ROUGH.__getitem__)
    outcome = verify(tower(a), tower(b))
    assert outcome.passed, outcome.reason
    (output,) = outcome.outputs
    assert f"the narrower of {numpy_dtype(a)} and {numpy_dtype(b)}" in output.tolerance
    assert 0.3 < output.bound_abs / ROUGH[narrow] < 5  # the largest element
    assert 0 < output.metrics.max_abs < output.bound_abs
    wrong = verify(tower(a), tower(b, epsilon=0.3))
    assert wrong.verdict == "differ"
    assert wrong.first_difference is not None
    assert wrong.first_difference.value == "epsilon"


@pytest.mark.parametrize(("a", "b"), [(BF16, BF16), (BF16, F32), (F32, BF16)])
def test_a_type_without_kernels_is_not_compared(a: int, b: int) -> None:
    outcome = verify(tower(a), tower(b))
    assert (outcome.passed, outcome.verdict, outcome.outputs) == (False, "not run", ())
    assert "MatMul" in outcome.not_run


def test_the_reference_is_the_wider_one_whichever_side_it_is_on() -> None:
    wide = np.array([1.0, 1.0 + 2**-12, 3.0, 70000.0], np.float32)
    narrow = wide[:3].astype(np.float16)
    for a, b in ((narrow, wide[:3]), (wide[:3], narrow)):
        metrics = compare_arrays(a, b)
        assert metrics.dtype == "float16"
        assert metrics.max_abs == 2**-12
        assert metrics.max_ulp == 0.25  # of float16, whose gap at 1 is 2**-10
        assert (metrics.mismatch, metrics.nan_inf_agree) == (0.0, True)
    with np.errstate(over="ignore"):
        beyond = compare_arrays(wide.astype(np.float16), wide)
    assert not beyond.nan_inf_agree
    assert beyond.max_ulp == np.inf


def test_inputs_that_the_narrower_type_does_not_hold_are_no_pass() -> None:
    inputs = {"x": np.full((2, N), 1e6, np.float32)}
    assert verify(tower(F32), tower(F32), inputs=inputs).passed
    assert verify(tower(F32), tower(F16), inputs=inputs).verdict == "differ"
