"""transformers' fusions on graphs that are written here; on decoders see tests/torch."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("transformers.exporters", reason="pip install 'transformers>=5.20'")

import rmsnorm_export as rx

pytestmark = [pytest.mark.export, pytest.mark.slow]


@pytest.mark.parametrize(("gain", "folded"), [(1.5, 1), (1.0001, 0)], ids=["exact", "rounded"])
def test_a_residual_goes_into_a_norm_of_half_precision(gain: float, folded: int) -> None:
    """As in Gemma, whose gain is added up in float32: where float16 holds it exactly."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 18]>
        g (float16[b, s, 8] x, float16[b, s, 8] r) => (float16[b, s, 8] y, float16[b, s, 8] z)
        {
            sum = Add(x, r)
            wide = Cast<to = 1>(sum)
            two = Constant<value_float = 2.0>()
            square = Pow(wide, two)
            axes = Constant<value_ints = [-1]>()
            mean = ReduceMean(square, axes)
            epsilon = Constant<value_float = 0.000001>()
            shifted = Add(mean, epsilon)
            root = Sqrt(shifted)
            inverse = Reciprocal(root)
            normal = Mul(wide, inverse)
            scaled = Mul(normal, gain)
            narrow = Cast<to = 10>(scaled)
            y = Neg(narrow)
            z = Neg(sum)
        }
    """)
    values = np.full(8, gain, np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(values, "gain"))
    made = rx.optimize(model, fusions="cuda").report.fusions
    assert made is not None
    assert made.problem == made.not_compared == ""
    assert made.residuals == folded
    norms = made.operators.get("SimplifiedLayerNormalization", (1, 1))
    assert norms == (1, 1 - folded)
