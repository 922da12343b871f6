"""Models that came out wrong, or did not load, because a size or a name was taken for granted."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

import rmsnorm_export as rx

TARGETS = ("portable", "onnx", "ort")
STORED = "float two = {2}, int64[1] ax = {-1}, float e = {1e-05}, int64[1] one = {1}"
ROOT = "s = Pow({x}, two) m = ReduceMean<keepdims = 1>(s, ax) a = Add(m, e) r = Sqrt(a) "
NORM = ROOT + "y = Div({x}, r)"
INNER = ROOT + "z = Div({x}, r)"


def _model(body: str, inputs: str = "float[B, 264] x", more: str = "") -> onnx.ModelProto:
    return parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18, "my" : 1]> g ({inputs}) => (float[] y) '
        f"<{STORED}> {{ {body} }} {more}"
    )


def _run(model: onnx.ModelProto | bytes, **feeds: Any) -> np.ndarray:
    data = model if isinstance(model, bytes) else model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(data, options).run(None, feeds)[0]


def _same(model: onnx.ModelProto, result: rx.Result, **feeds: Any) -> None:
    before, after = _run(model, **feeds), _run(result.to_bytes(), **feeds)
    assert before.shape == after.shape
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


X = np.random.default_rng(0).standard_normal((3, 264)).astype(np.float32)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("to", [2, 3, 9, 4, 5, 6, 12, 13, 10, 16, 1, 11])
@pytest.mark.parametrize("count", [264.0, 8.0])
def test_a_size_behind_a_cast(to: int, count: float, target: Any) -> None:
    """264 as uint8 is 8, and 1 as bool: the rows of the Reshape are not those of x."""
    body = (
        f"sx = Shape(x) d = Gather<axis = 0>(sx, one) u = Cast<to = {to}>(d) i = Cast<to = 7>(u) "
        f"sh = Concat<axis = 0>(ax, i) h = Reshape(x, sh) s = Mul(h, h) t = ReduceSum(s, ax) "
        f"n = Constant<value = float {{{count}}}>() m = Div(t, n) a = Add(m, e) r = Sqrt(a) "
        "y = Div(h, r)"
    )
    model = _model(body)
    _same(model, rx.optimize(model, target=target), x=X)


@pytest.mark.parametrize("operation", ["Mul", "Add"])
@pytest.mark.parametrize("steps", [7, 24, 70, 200])
def test_sizes_that_leave_int64(operation: str, steps: int) -> None:
    chain = "v0 = Shape(x) " + " ".join(f"v{i + 1} = {operation}(v{i}, v{i})" for i in range(steps))
    model = _model(f"{chain} h = Reshape(x, v{steps}) " + NORM.format(x="h"))
    for target in TARGETS:
        report = rx.optimize(model, target=target, prove=True).report  # type: ignore[arg-type]
        assert all(site.n is None or site.n < 2**63 for site in report.fused)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", ["N, 4", "K, 4"])
def test_a_body_has_dimensions_of_its_own(shape: str, target: Any) -> None:
    """Each run of the loop has more rows: the ``N`` of its input is not that of x."""
    body = (
        "trips = Constant<value = int64 {2}>() y = Loop(trips, , x) "
        f"<body = b (int64 it, bool c, float[{shape}] h) => (bool co, float[K, 4] h2) {{ "
        f"co = Identity(c) q = Add(h, x) {INNER.format(x='q')} h2 = Concat<axis = 0>(z, h) }}>"
    )
    model = _model(body, "float[N, 4] x")
    result = rx.optimize(model, target=target, prove=True)
    assert not any(site.residual for site in result.report.fused)
    _same(model, result, x=X[:1, :4])


def test_what_a_branch_captures_has_its_dimensions() -> None:
    then = f"t () => (float[N, 4] z) {{ q = Add(x, r0) {INNER.format(x='q')} }}"
    other = "o () => (float[N, 4] o) { o = Add(x, r0) }"
    body = f"y = If(c) <then_branch = {then}, else_branch = {other}>"
    report = rx.inspect(_model(body, "float[N, 4] x, float[N, 4] r0, bool c"))
    assert [site.residual for site in report.fused] == [True]


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


def test_a_stand_in_for_an_operator_of_onnxruntime_is_not_put_in_its_place() -> None:
    """ONNX Runtime runs its own operator, whatever the function says."""
    stand_in = '<domain: "com.microsoft", opset_import: ["" : 18]> FastGelu (a) => (b) '
    body = "h = com.microsoft.FastGelu(x) " + NORM.format(x="h")
    model = _model(body, "float[B, 8] x", stand_in + "{ b = Abs(a) }")
    model.opset_import.add(domain="com.microsoft", version=1)
    _same(model, rx.optimize(model, target="onnx"), x=X[:, :8])


FUNCTIONS = (
    '<domain: "my", opset_import: ["" : 18, "my" : 1]> Outer (x) => (y) { y = my.Norm(x) } '
    '<domain: "my", opset_import: ["" : 18]> Norm (x) => (y) { '
    "two = Constant<value = float {2}>() ax = Constant<value = int64[1] {-1}>() "
    "e = Constant<value = float {1e-05}>() " + NORM.format(x="x") + " }"
)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("entry", ["Outer", "Norm"])
def test_functions_are_listed_callee_first(entry: str, target: Any) -> None:
    model = _model(f"y = my.{entry}(x)", more=FUNCTIONS)
    result = rx.optimize(model, target=target)
    data = result.to_bytes()
    functions = onnx.load_from_string(data).functions
    names = [(function.domain, function.name) for function in functions]
    for index, function in enumerate(functions):
        assert not {(n.domain, n.op_type) for n in function.node} & set(names[index:])
    _same(model, result, x=X)
    if target == "portable":
        ReferenceEvaluator(data).run(None, {"x": X})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("read", [(), (3,)])
def test_a_residual_node_keeps_its_first_output(read: tuple[int, ...], target: Any) -> None:
    names = [f"s{i}" for i in range(4)]
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]> '
        "g (float[B, S, 4] x, float[4] w) => (float[B, S, 4] y) "
        "<float two = {2}, int64[1] ax = {-1}, float e = {1e-05}> { "
        f"{', '.join(names)} = com.microsoft.SkipSimplifiedLayerNormalization(x, x, w) "
        f"h = Identity({names[read[0]] if read else 'x'}) " + NORM.format(x="h") + " }"
    )
    result = rx.optimize(model, target=target)
    _same(model, result, x=X[:, :8].reshape(3, 2, 4), w=np.ones(4, np.float32))


AXES = [(shape, axes, keep, scale)
        for shape in ("A,B,1", "A,4,1", "A,4,1,1", "A,B,C,1", "A,4,D,1")
        for axes in ("-2", "1", "-2,-1", "-3,-2,-1")
        for keep in (1, 0)
        for scale in ("", "4,1", "1,4,1", "1")]  # fmt: skip


@pytest.mark.parametrize(("shape", "axes", "keep", "scale"), AXES)
def test_axes_before_dimensions_of_one(shape: str, axes: str, keep: int, scale: str) -> None:
    after = "" if keep else f"u = Constant<value_ints = [{axes}]>() m = Unsqueeze(m0, u) "
    product = f"w = Constant<value = float[{scale}] {{1.5, 2, 3, 4}}>() y = Mul(d, w)"
    if scale == "1":
        product = product.replace("1.5, 2, 3, 4", "1.5")
    model = parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 13]> g (float[{shape}] x) => (float[] y) '
        "<float e = {1e-05}> { s = Mul(x, x) "
        f"{'m' if keep else 'm0'} = ReduceMean<axes = [{axes}], keepdims = {keep}>(s) {after}"
        f"a = Add(m, e) r = Sqrt(a) d = Div(x, r) {product if scale else 'y = Identity(d)'} }}"
    )
    sizes = [{"A": 3, "B": 4, "C": 5, "D": 2}.get(d) or int(d) for d in shape.split(",")]
    x = np.random.default_rng(1).standard_normal(sizes).astype(np.float32)
    try:
        _run(model, x=x)
    except Exception:
        pytest.skip("the source does not run")
    result = rx.optimize(model, prove=True)
    assert not {r.reason for r in result.report.refused} & {"proof-failed", "not-provable"}
    _same(model, result, x=x)
