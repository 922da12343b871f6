"""What of ONNX Runtime's own operators is written out: sums, biases, second outputs, scales."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import rmsnorm_export as rx
from rmsnorm_export.runtime.session import open_session

DEAD = """<ir_version: 8, opset_import: ["" : 18, "com.example" : 1, "com.microsoft" : 1]>
g (float[B, S, 8] x, float[B, S, 8] r, float[8] w) => (float[B, S, 8] y) {
  y = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.00001> (x, r, w)
}
<domain: "DOMAIN", opset_import: ["" : 18, "com.example" : 1]> NAME (a, b, c) => (d) {
  t = Add (a, b)
  q = Mul (t, t)
  axes = Constant <value_ints = [-1]> ()
  m = ReduceMean <keepdims = 1> (q, axes)
  s = Sqrt (m)
  o = Div (t, s)
  v = com.example.MyRoiPlugin (o)
  d = Mul (v, c)
}"""


@pytest.mark.parametrize(
    ("domain", "name", "called"),
    [("com.microsoft", "SkipSimplifiedLayerNormalization", False), ("mine", "Norm", False),
     ("mine", "Norm", True)],
)  # fmt: skip
def test_a_function_that_is_not_run_is_not_counted(domain: str, name: str, called: bool) -> None:
    """ONNX Runtime runs its own operator, and not the function of that name."""
    model = onnx.parser.parse_model(DEAD.replace("DOMAIN", domain).replace("NAME", name))
    if called:
        model.graph.node[0].domain, model.graph.node[0].op_type = domain, name
        del model.graph.node[0].attribute[:]
        model.opset_import.add(domain=domain, version=1)
    report = rx.optimize(model).report
    assert len(report.fused) + len(report.kept) + len(report.unfused) == 1
    (verdict,) = (entry for entry in report.runs_in if entry.runtime == "onnxruntime")
    assert ("com.example.MyRoiPlugin" in verdict.unknown) == called
