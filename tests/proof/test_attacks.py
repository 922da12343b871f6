"""Proof against truth: a right rewrite passes, and the class that is told is the class that is."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from recognize.text_models import TARGETS, check_same, model, norm, run

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import Target

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
