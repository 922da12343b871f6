"""Norms of which functions hold parts, and of which branches hold them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from recognize.text_models import function, model, norm, optimized, run

import rmsnorm_export as rx

_ATEN = """
<domain: "my", opset_import: ["" : 17]>
square (self, exponent) => (y) { y = Pow(self, exponent) }
<domain: "my", opset_import: ["" : 17]>
mean (self) => (y) { y = ReduceMean<axes = [-1], keepdims = 1>(self) }
<domain: "my", opset_import: ["" : 17]>
rsqrt (self) => (y) { s = Sqrt(self)
 y = Reciprocal(s) }
<domain: "my", opset_import: ["" : 17]>
mul (self, other) => (y) { y = Mul(self, other) }
"""
_CALLS = "a = my.square(x, two)\n b = my.mean(a)\n c = Add(b, eps)\n d = my.rsqrt(c)\n"
_IMPORT = ', "my" : 1'


def test_an_operator_for_each_function() -> None:
    source = model(
        f"{_CALLS} e = my.mul(x, d)\n y = my.mul(e, w)", imports=_IMPORT, functions=_ATEN
    )
    report, proto = optimized(source, "portable")
    assert [node.op_type for node in proto.graph.node] == ["RMSNorm"]
    assert len(report.fused) == 1


def test_epsilon_and_exponent_are_handed_over() -> None:
    body = norm("x", "y", weight="w").replace("eps", "e0")
    called = f"""
<domain: "my", opset_import: ["" : 17]>
f (x, two, e0, w) => (y) {{ {body} }}
"""
    source = model(
        "a = my.f(x, two, eps, w)\n y = my.f(a, two, eps, w)", imports=_IMPORT, functions=called
    )
    assert len(optimized(source, "ort")[0].fused) == 2


def test_a_function_that_holds_a_whole_norm_stays() -> None:
    source = model(
        "a = my.f(x, w)\n y = my.f(a, w)",
        imports=_IMPORT,
        functions=function("f", "(x, w) => (y)", norm("x", "y")),
    )
    report, proto = optimized(source, "ort")
    assert len(report.fused) == 1
    assert [f.name for f in proto.functions] == ["f"]


def test_functions_stay_where_inlining_finds_nothing() -> None:
    source = model("a = my.square(x, two)\n y = Mul(a, w)", imports=_IMPORT, functions=_ATEN)
    proto = optimized(source, "ort")[1]
    assert len(proto.functions) == 4


def _branches(then: str, other: str, before: str) -> onnx.ModelProto:
    return model(
        f"""{before}
 y = If (c) <
  then_branch = t () => (float[B,S,8] y1) {{ {then} }},
  else_branch = e () => (float[B,S,8] y2) {{ {other} }}
 >""",
        inputs="float[B,S,8] x, bool c",
    )


_ROOT = """sq = Pow(x, two)
 m = ReduceMean<axes = [-1], keepdims = 1>(sq)
 e0 = Add(m, eps)
 s = Sqrt(e0)"""


@pytest.mark.parametrize("taken", [True, False])
def test_the_mean_may_stand_in_front_of_the_branch(taken: bool) -> None:
    source = _branches("n = Div(x, s)\n y1 = Mul(n, w)", "y2 = Relu(x)", _ROOT)
    arrays = {"x": np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)}
    arrays["c"] = np.asarray(taken)
    report, proto = optimized(source, "ort", arrays=arrays)
    assert len(report.fused) == 1
    assert [node.op_type for node in proto.graph.node] == ["If"], "the mean is dead"
    assert run(proto, arrays)


def _mean_in(then: str, other: str) -> onnx.ModelProto:
    return model(
        f"""s = If (c) <
  then_branch = t () => (float[B,S,1] m1) {{ q1 = Mul(x, x) {then} }},
  else_branch = e () => (float[B,S,1] m2) {{ q1 = Mul(x, x) {other} }}
 >
 r = Sqrt(s)
 y = Div(x, r)""",
        inputs="float[B,S,8] x, bool c",
    )


@pytest.mark.parametrize(
    "other",
    [
        "m2 = ReduceMean<axes = [-1]>(x)",
        "m2 = ReduceMax<axes = [-1]>(q1)",
        "m2 = ReduceMean<axes = [-1]>(q1)",
    ],
)
def test_what_a_branch_computes_of_a_norm_is_told(other: str) -> None:
    source = _mean_in("m1 = ReduceMean<axes = [-1]>(q1)", other)
    report = rx.optimize(source, numerics="upcast").report
    assert not report.fused
    assert {refusal.reason for refusal in report.refused} == {"crosses-subgraph"}
