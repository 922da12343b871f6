"""Proof against truth: a right rewrite passes, and the class that is told is the class that is."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from recognize.text_models import CONSTANTS, TARGETS, check_same, model, norm, run

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.proof.evaluate import run_float64, run_numpy

SKIP = "float[2,3,8] x, float[2,3,8] r"
ROW = "float[2,3,8] x"
RENAMED = "i = Identity(h)\n" + norm("h", "y").replace("Pow(h, two)", "Mul(i, h)")
PROVED = {
    "one value is gain and bias": (norm("x", "y0") + "y = Add(y0, w)", ROW),
    "one value is x and residual": ("h = Add(x, x)\n" + norm("h", "y"), ROW),
    "one value is x and gate": (norm("x", "y0") + "g = Sigmoid(x)\n y = Mul(y0, g)", ROW),
    "the sum by another name": ("h = Add(x, r)\n" + RENAMED, SKIP),
    "gate in front, by another name": ("g = Sigmoid(r)\n h = Mul(x, g)\n" + RENAMED, SKIP),
    "a norm of a norm": (norm("x", "y0") + norm("y0", "y", "k"), ROW),
    "a gain from a norm": (norm("w", "g", "k") + norm("x", "y", "", "g"), ROW),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PROVED)
def test_a_right_rewrite_is_proved(name: str, target: Target) -> None:
    body, inputs = PROVED[name]
    source = model(body, inputs=inputs, outputs="float[2,3,8] y")
    result = rx.optimize(source, target=target, prove=True)
    assert result.report.fused
    assert not result.report.refused
    assert all(site.proof.passed for site in result.report.fused)
    check_same(source, ir.to_proto(result.model))


@pytest.mark.parametrize("target", TARGETS)
def test_the_default_epsilon_is_a_float32(target: Target) -> None:
    """The attribute's default 1e-5 is stored in float32: 2.5e-8 away, and this norm is float64."""
    gain = "double[8] w = {1, 2, 3, 4, 5, 6, 7, 8}"
    body = "y = RMSNormalization<stash_type = 11>(x, w)"
    source = model(body, inputs="double[4,8] x", outputs="double[4,8] y", constants=gain, opset=23)
    result = rx.optimize(source, target=target, prove=True)
    assert not result.report.refused
    tiny = {"x": np.random.default_rng(0).standard_normal((4, 8)) * 1e-6}
    (old,), (new,) = run(source, tiny), run(ir.to_proto(result.model), tiny)
    np.testing.assert_allclose(new, old, rtol=1e-12)


SQUARES = "sq = Mul(x, x)\n m = ReduceMean<axes = [-1]>(sq)\n e = Add(m, eps)\n"
HALF = {
    "ReduceL2": "m = ReduceL2<axes = [-1]>(x)\n s = Mul(m, inverse_root)\n n = Div(x, s)",
    "ReduceSumSquare": "t = ReduceSumSquare<axes = [-1]>(x)\n m = Mul(t, eighth)\n"
    "e = Add(m, eps)\n s = Sqrt(e)\n n = Div(x, s)",
    "root, then inverse": f"{SQUARES} s = Sqrt(e)\n i = Reciprocal(s)\n n = Mul(x, i)",
    "inverse, then root": f"{SQUARES} i = Reciprocal(e)\n s = Sqrt(i)\n n = Mul(x, s)",
    "gain before the division": f"{SQUARES} s = Sqrt(e)\n k = Mul(x, w)\n n = Div(k, s)",
}
ELEMENT = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def _half_model(name: str, dtype: str) -> onnx.ModelProto:
    body = HALF[name] + ("\ny = Identity(n)" if "Mul(x, w)" in HALF[name] else "\ny = Mul(n, w)")
    source = model(body, inputs=f"{dtype}[16,8] x", outputs=f"{dtype}[16,8] y", constants=CONSTANTS)
    del source.graph.initializer[:]
    numbers = {"eps": 1e-3, "eighth": 0.125, "inverse_root": 8**-0.5, "w": np.linspace(0.5, 2, 8)}
    for key, number in numbers.items():
        array = np.asarray(number).astype(ELEMENT[dtype])
        source.graph.initializer.append(onnx.numpy_helper.from_array(array, key))
    return source


@pytest.mark.parametrize("numerics", ["exact", "upcast"])
@pytest.mark.parametrize("scale", [1e-2, 1.0, 300.0])
@pytest.mark.parametrize("dtype", ELEMENT)
@pytest.mark.parametrize("name", HALF)
def test_a_chain_in_a_half_type(name: str, dtype: str, scale: float, numerics: str) -> None:
    """``exact`` repeats each rounding; ``upcast`` is never further from float64 than the source."""
    source = ir.from_proto(_half_model(name, dtype))
    result = rx.optimize(source, numerics=numerics)  # type: ignore[arg-type]
    rng = np.random.default_rng(1)
    arrays = {"x": (rng.standard_normal((16, 8)) * scale).astype(ELEMENT[dtype])}
    old, new = (run_numpy(m, arrays)["y"] for m in (source, result.model))
    truth = run_float64(source, arrays).outputs["y"]
    if numerics == "exact" or not result.report.fused:
        np.testing.assert_array_equal(old.view(np.uint16), new.view(np.uint16))
        return
    (site,) = result.report.fused
    assert site.numerics == "upcast"
    # Three roundings to T at the end of any order: x * (1 / rms) * w.
    slack = 1.5 * float(ml_dtypes.finfo(ELEMENT[dtype]).eps) * np.abs(truth)
    errors = (np.abs(array.astype(np.float64) - truth) for array in (old, new))
    before, after = (np.where(np.isnan(error), np.inf, error) for error in errors)
    assert np.all(after <= np.maximum(before, slack))
