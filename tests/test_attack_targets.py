"""From one target to another and back, and the same bytes every time."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from recognize.text_models import (
    CONSTANTS,
    TARGETS,
    WEIGHT,
    check_same,
    found,
    function,
    model,
    norm,
    optimized,
)

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import Target


def _zoo() -> dict[str, onnx.ModelProto]:
    """Small models whose norms every target has a form for (a residual may stay an Add)."""
    row = "float[2,3,8] x"
    ones = f"{WEIGHT}, {CONSTANTS}, float one = {{1}}"
    return {
        "plain": model(norm("x", "y")),
        "weightless": model(norm("x", "y", weight=None)),
        "offset": model("g = Add(one, w)\n" + norm("x", "y", "", "g"), constants=ones),
        "residual": model(
            "h = Add(x, r)\n" + norm("h", "y") + "z = Relu(h)",
            inputs=row + ", float[2,3,8] r",
            outputs="float[2,3,8] y, float[2,3,8] z",
        ),
        "leaked": model(norm("x", "y"), outputs="float[B,S,8] y, float[B,S,1] s, float[B,S,8] n"),
        "two axes": model(
            norm("x", "y").replace("axes = [-1]", "axes = [-2, -1]"),
            inputs="float[B,4,2] x",
            outputs="float[B,4,2] y",
            constants=f"{CONSTANTS}, float[4,2] w = {{1, 2, 3, 4, 5, 6, 7, 8}}",
        ),
        "branch": model(
            "y = If (c) <then_branch = t () => (float[B,S,8] u) {" + norm("x", "u")
            + "}, else_branch = f () => (float[B,S,8] v) { v = Relu(x) }>",
            inputs="float[B,S,8] x, bool c",
        ),
        "function": model(
            "y = my.F(x, w)",
            imports=', "my" : 1',
            functions=function("F", "(x, w) => (y)", norm("x", "y")),
        ),
        "gain behind Transpose": model(
            "g = Transpose(column)\n" + norm("x", "y", "", "g"),
            constants=f"{CONSTANTS}, float[8,1] column = {{1, 2, 3, 4, 5, 6, 7, 8}}",
        ),
        "quantized gain": model(
            "g = DequantizeLinear(q, step)\n" + norm("x", "y", "", "g"),
            constants=f"{CONSTANTS}, int8[8] q = {{1, 2, 3, 4, 5, 6, 7, 8}}, float step = {{0.5}}",
        ),
    }  # fmt: skip


ZOO = _zoo()


CIRCLES: list[tuple[Target, ...]] = [
    ("portable", "onnx", "ort", "portable"),
    ("portable", "ort", "onnx", "portable"),
]
"""Every target is turned into every other once."""


@pytest.mark.parametrize("circle", CIRCLES, ids="-".join)
@pytest.mark.parametrize("name", ZOO)
def test_round_trips(name: str, circle: tuple[Target, ...]) -> None:
    source = ZOO[name]
    step = source
    for target in circle:
        report, proto = optimized(step, target)
        assert found(report) == 1, f"{target}: {report.refused}"
        check_same(source, proto)
        step = proto


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ZOO)
def test_a_second_run_changes_no_byte(name: str, target: Target) -> None:
    once = ir.to_proto(rx.optimize(ZOO[name], target=target).model)
    twice = ir.to_proto(rx.optimize(once, target=target).model)
    assert twice.SerializeToString(deterministic=True) == once.SerializeToString(deterministic=True)


def test_names_do_not_grow_from_run_to_run() -> None:
    step = ZOO["residual"]
    for target in CIRCLES[0]:
        step = ir.to_proto(rx.optimize(step, target=target).model)
        assert all(node.name.count("Norm") <= 1 for node in step.graph.node)


@pytest.mark.parametrize("target", TARGETS)
def test_a_shape_that_only_inference_knows(target: Target) -> None:
    # The branch gives the shape; SimplifiedLayerNormalization has none for ONNX's inference.
    source = model(
        "a = If (c) <then_branch = t () => (float[2,3,8] u) { u = Relu(x) },"
        " else_branch = f () => (float[2,3,8] v) { v = Abs(x) }>\n"
        "b = SimplifiedLayerNormalization(a, w)\n y = SimplifiedLayerNormalization(b, w)",
        inputs="float[2,3,8] x, bool c",
        outputs="float[2,3,8] y",
    )
    report, _ = optimized(source, target)
    assert found(report) == 2


_PROGRAM = """
import sys
sys.path[:0] = {path!r}
import test_attack_targets as t
print(t.fingerprint())
"""


def fingerprint() -> str:
    """A hash over the results of many functions, subgraphs and equal wishes for names."""
    names = [f"F{i}" for i in range(5)]
    functions = "".join(
        function(n, "(x, w) => (y)", norm("x", "y"), imports=', "my" : 1') for n in names
    )
    calls = "\n".join(f"y{i} = my.{n}(x, w)" for i, n in enumerate(names))
    top = function(
        "Top", "(x, w) => (y)", calls + "\n y = Sum(y0, y1, y2, y3, y4)", imports=', "my" : 1'
    )
    source = model("y = my.Top(x, w)", imports=', "my" : 1', functions=functions + top)
    digest = hashlib.sha256()
    for target in TARGETS:
        result = rx.optimize(source, target=target)
        digest.update(ir.to_proto(result.model).SerializeToString(deterministic=True))
        digest.update(repr([(s.name, s.scope) for s in result.report.fused]).encode())
    return digest.hexdigest()


def test_names_do_not_depend_on_hash_order() -> None:
    program = _PROGRAM.format(path=[os.path.dirname(__file__), *sys.path])
    # This process has a random seed, or another one.
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == fingerprint()


EPSILONS = [0.0, 1e-45, 1e-40, 1e-12, 1e30, 3e38]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_extreme_epsilons(epsilon: float, target: Target) -> None:
    source = model(norm("x", "y"))
    for tensor in source.graph.initializer:
        if tensor.name == "eps":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.float32(epsilon), "eps"))
    report, _ = optimized(source, target)
    (site,) = report.fused
    assert site.epsilon == float(np.float32(epsilon))


@pytest.mark.parametrize("epsilon", [np.nan, np.inf, -1.0])
def test_an_epsilon_that_is_none(epsilon: float) -> None:
    source = model(norm("x", "y"))
    for tensor in source.graph.initializer:
        if tensor.name == "eps":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.float32(epsilon), "eps"))
    report = rx.optimize(source).report
    assert not report.fused
    assert len(report.refused) == 1


def test_an_epsilon_that_float32_cannot_hold() -> None:
    # sqrt(1e-10 * m + 1e30) * 1e5 is an RMSNorm with epsilon 1e40.
    source = model(
        """sq = Pow(x, two)
        m0 = ReduceMean<axes = [-1]>(sq)
        m = Mul(m0, small)
        e = Add(m, large)
        s0 = Sqrt(e)
        s = Mul(s0, back)
        y = Div(x, s)""",
        constants=f"{CONSTANTS}, float small = {{1e-10}}, float large = {{1e30}},"
        " float back = {1e5}",
    )
    report = rx.optimize(source).report
    assert not report.fused
    assert len(report.refused) == 1


def test_the_body_of_a_partial_norm_behind_a_residual_is_a_valid_function() -> None:
    """Two values of it had one name: the residual sum and the sum of squares."""
    source = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        main (float[3, 5] x, float[3, 5] r) => (float[3, 5] y)
        <int64[2] parts = {3, 2}, float two = {2}, int64[1] axes = {-1}, float three = {3}>
        {
            h = Add (r, x)
            part, rest = Split <axis = -1> (h, parts)
            p = Pow (part, two)
            total = ReduceSum <keepdims = 1> (p, axes)
            mean = Div (total, three)
            s = Sqrt (mean)
            y = Div (h, s)
        }""")
    report, proto = optimized(source, "portable")
    assert [site.op for site in report.fused] == ["SkipRMSNorm"]
    onnx.checker.check_model(proto, full_check=True)
    check_same(source, proto)
