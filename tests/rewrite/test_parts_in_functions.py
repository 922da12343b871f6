"""Norms of which functions hold parts, and of which branches hold them."""

from __future__ import annotations

import numpy as np
import pytest
from recognize.text_models import function, model, norm, optimized

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


_ROOT = """sq = Pow(x, two)
 m = ReduceMean<axes = [-1], keepdims = 1>(sq)
 e0 = Add(m, eps)
 s = Sqrt(e0)"""


@pytest.mark.parametrize("taken", [True, False])
def test_the_mean_may_stand_in_front_of_the_branch(taken: bool) -> None:
    branches = "then_branch = t () => (float[B,S,8] y1) { n = Div(x, s)\n y1 = Mul(n, w) }, "
    branches += "else_branch = e () => (float[B,S,8] y2) { y2 = Relu(x) }"
    source = model(f"{_ROOT}\n y = If (c) <{branches}>", inputs="float[B,S,8] x, bool c")
    x = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
    report, proto = optimized(source, "ort", arrays={"x": x, "c": np.asarray(taken)})
    assert len(report.fused) == 1
    assert [node.op_type for node in proto.graph.node] == ["If"], "the mean is dead"


@pytest.mark.parametrize("other", ["ReduceMean, x", "ReduceMax, q1", "ReduceMean, q1"])
def test_what_a_branch_computes_of_a_norm_is_told(other: str) -> None:
    branches = (
        f"(float[B,S,1] m{i}) {{ q1 = Mul(x, x)\n m{i} = {op}<axes = [-1]>({of}) }}"
        for i, (op, of) in enumerate([("ReduceMean", "q1"), other.split(", ")])
    )
    then, otherwise = branches
    source = model(
        f"s = If (c) <then_branch = t () => {then}, else_branch = e () => {otherwise}>\n"
        " r = Sqrt(s)\n y = Div(x, r)",
        inputs="float[B,S,8] x, bool c",
    )
    report = rx.optimize(source, numerics="upcast").report
    assert not report.fused
    assert {refusal.reason for refusal in report.refused} == {"crosses-subgraph"}
