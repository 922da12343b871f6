"""Models that came out wrong, or did not load, because a size or a name was taken for granted."""

from __future__ import annotations

import onnx
import pytest
from onnx import parser

import rmsnorm_export as rx

STORED = "float two = {2}, int64[1] ax = {-1}, float e = {1e-05}, int64[1] one = {1}"
ROOT = "s = Pow({x}, two) m = ReduceMean<keepdims = 1>(s, ax) a = Add(m, e) r = Sqrt(a) "
NORM = ROOT + "y = Div({x}, r)"


def _model(body: str, inputs: str = "float[B, 264] x", more: str = "") -> onnx.ModelProto:
    return parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18, "my" : 1]> g ({inputs}) => (float[] y) '
        f"<{STORED}> {{ {body} }} {more}"
    )


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
@pytest.mark.parametrize(
    "name", ["Sqrt", "Pow", "Cast", "Mul", "RMSNormalization", "SimplifiedLayerNormalization"]
)
@pytest.mark.parametrize("overload", ["", "second"])
def test_a_function_named_as_an_operator(name: str, domain: str, overload: str) -> None:
    model = _model(NORM.format(x="x"))
    body, imports = [onnx.helper.make_node("Abs", ["a"], ["b"])], [onnx.helper.make_opsetid("", 18)]
    own = onnx.helper.make_function(domain, name, ["a"], ["b"], body, imports, overload=overload)
    model.functions.append(own)
    model.ir_version = 10
    for call in (rx.inspect, rx.optimize):
        with pytest.raises(rx.InputError, match="name of an operator of ONNX"):
            call(model)
