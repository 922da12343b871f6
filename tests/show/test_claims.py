"""Every claim of a report is computed: for each there is a model for which it is not printed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, numpy_helper

import rmsnorm_export as rx
from rmsnorm_export.decoder.result import GenerationExport
from rmsnorm_export.show import to_text
from tests.tools.runtimes.models import block

HEAD = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2,8] x) => (float[2,8] y) <float two = {2}, float e = {1e-6}, float root = {2.8284}, """
ROOT = """{ square = Pow(x, two) mean = ReduceMean <axes=[-1]> (square) sum = Add(mean, e)
    rms = Sqrt(sum) """


SKIPPED = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float16[2,3,8] x, float16[2,3,8] r) => (float16[2,3,8] y)
<float16[8] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
SCALE [skip] y = com.microsoft.SkipSimplifiedLayerNormalization (x, r, gain) }"""


def _model(rest: str) -> Callable[[], onnx.ModelProto]:
    return lambda: onnx.parser.parse_model(HEAD + rest)


def _skip(scale: str) -> Callable[[], onnx.ModelProto]:
    return lambda: onnx.parser.parse_model(SKIPPED.replace("SCALE", scale))


def _native(*shape: int) -> Callable[[], onnx.ModelProto]:
    """Return a model of one RMSNormalization with a scale of this shape."""
    weights = numpy_helper.from_array(np.ones(shape, np.float32), "w")
    text = """<ir_version: 10, opset_import: ["" : 23]>
    g (float[2,4,8] x) => (float[2,4,8] y) { y = RMSNormalization (x, w) }"""

    def build() -> onnx.ModelProto:
        model = onnx.parser.parse_model(text)
        model.graph.initializer.append(weights)
        return model

    return build


WEIGHTLESS = _model(f"float w = {{1}}> {ROOT} y = Div(x, rms) }}")
GAIN = _model(
    f"float[8] w = {{1, 2, 3, 4, 5, 6, 7, 8}}> {ROOT} unit = Div(x, rms) y = Mul(unit, w) }}"
)
CLAMPED = _model(
    """float least = {1e-6}> { length = ReduceL2 <axes=[-1]> (x) bound = Clip(length, least)
    unit = Div(x, bound) y = Mul(unit, root) }"""
)
NONE = _model("float w = {1}> { y = Relu(x) }")


TWO_GAINS = _model(
    f"""float[8] w = {{1, 2, 3, 4, 5, 6, 7, 8}}, float[8] v = {{8, 7, 6, 5, 4, 3, 2, 1}}> {ROOT}
    unit = Div(x, rms) a = Mul(unit, w) b = Mul(unit, v) y = Sub(a, b) }}"""
)
LENGTH = _model(
    """float[8] w = {1, 2, 3, 4, 5, 6, 7, 8}> { length = ReduceL2 <axes=[-1]> (x)
    unit = Div(x, length) y = Mul(unit, w) }"""
)
BFLOAT16 = _model(
    f"""bfloat16[8] w = {{1, 1, 1, 1, 1, 1, 1, 1}}> {ROOT} unit = Div(x, rms)
    half = Cast <to=16> (unit) half2 = Mul(half, w) y = Cast <to=1> (half2) }}"""
)
DOUBLE = _model(
    """double f = {1e-6}> { d = Cast <to=11> (x) square = Mul(d, d)
    mean = ReduceMean <axes=[-1]> (square) sum = Add(mean, f) rms = Sqrt(sum)
    unit = Div(d, rms) y = Cast <to=1> (unit) }"""
)
SKIP, SKIP_COMPUTED = (
    _skip("gain = Abs(w)"),
    _skip("gain = ReduceMax <axes=[0, 1], keepdims=0> (r)"),
)
ALIKE = _model(f"float w = {{1}}> {ROOT} y = Sub(x, rms) }}")
INVERSE = _model(
    """float[8] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
    unit, inverse = SimplifiedLayerNormalization <axis=-1> (x, w) y = Mul(unit, inverse) }"""
)
GROUPS, ROW, ONE = _native(4, 8), _native(8), _native(1)


def _foreign() -> onnx.ModelProto:
    model = NONE()
    model.graph.node[0].op_type, model.graph.node[0].domain = "NoSuchThing", "com.microsoft"
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    return model


def _block() -> onnx.ModelProto:
    return block(TensorProto.FLOAT)


def _half() -> onnx.ModelProto:
    return block(TensorProto.FLOAT16)


def _in_half() -> onnx.ModelProto:
    """Return the norm with a gain, its squares in float16 as well."""
    model = GAIN()
    for constant in model.graph.initializer:
        half = numpy_helper.to_array(constant).astype(np.float16)
        constant.CopyFrom(numpy_helper.from_array(half, constant.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return model


def _optimized(model: Callable[[], onnx.ModelProto], **options: Any) -> rx.Report:
    return rx.optimize(model(), **options).report


PLAIN: dict[str, Any] = {"target": "plain"}
NAMED: dict[str, Any] = {**PLAIN, "sites": ["*"]}
PROVED: dict[str, Any] = {"prove": True}
CLAIMS: dict[str, tuple[rx.Report, rx.Report]] = {
    "nothing that looks like one": (_optimized(NONE), _optimized(GAIN, **NAMED)),
    "no RMSNorm to write out": (_optimized(GAIN, **NAMED), _optimized(GAIN, **PLAIN)),
    "1 of 1 RMSNorm is one node": (_optimized(GAIN), _optimized(CLAMPED, target="ort")),
    "is plain operators": (_optimized(GAIN, **PLAIN), _optimized(GAIN)),
    "of 3 residuals": (_optimized(_block), _optimized(GAIN)),
    "3 of 3 residuals are one node": (_optimized(_block), _optimized(_half, target="ort")),
    "can be written out (1)": (rx.inspect(GAIN(), target="plain"), _optimized(GAIN, **PLAIN)),
    "numerics reordered": (_optimized(_half, target="ort"), _optimized(GAIN, target="ort")),
    "nodes executed": (_optimized(GAIN, **PROVED), _optimized(GAIN)),
    "0 of 2 norms as one kernel": (
        _optimized(TWO_GAINS, **PROVED),
        _optimized(TWO_GAINS, **PROVED, target="ort"),
    ),
    "does not load in": (_optimized(BFLOAT16, **PROVED), _optimized(GAIN, **PROVED)),
    "next: run it in onnxruntime": (_optimized(GAIN), _optimized(_foreign)),
    "next: optimize": (rx.inspect(GAIN()), rx.inspect(_foreign())),
    "next: optimize --for": (rx.inspect(GAIN()), _optimized(GAIN)),
    "proofs:": (_optimized(GAIN, **PROVED), _optimized(CLAMPED, **PROVED, target="ort")),
    "RMSNorms that were not fused": (
        _optimized(CLAMPED, target="ort"),
        rx.inspect(CLAMPED(), target="ort"),
    ),
    "1 look-alike left alone": (_optimized(ALIKE), _optimized(INVERSE, target="onnx")),
    "the node is written anew": (_optimized(GROUPS, target="onnx"), _optimized(ROW, target="onnx")),
    "its scale is repeated over the row": (_optimized(ONE, target="onnx"), _optimized(ROW)),
    "the sum is an Add": (
        _optimized(SKIP, runtime="onnxruntime@1.15"),
        _optimized(SKIP, runtime="onnxruntime@1.16"),
    ),
    "loses the scale of such a node": (
        _optimized(_half, runtime="onnxruntime@1.20.0", numerics="upcast"),
        _optimized(_half, runtime="onnxruntime@1.20.1", numerics="upcast"),
    ),
    "a scale that is computed in the graph": (
        _optimized(SKIP_COMPUTED, target="onnx"),
        _optimized(SKIP, target="onnx"),
    ),
    "nodes  skip\n": (_optimized(SKIP, target="onnx"), _optimized(SKIP)),
    "onnxruntime, onnxruntime-node, onnxruntime-web: its CPU provider": (
        _optimized(BFLOAT16),
        _optimized(GAIN),
    ),
    "overflows or vanishes on the way": (_optimized(LENGTH), _optimized(GAIN)),
    "the TensorRT plugin leaves this node": (_optimized(DOUBLE), _optimized(GAIN)),
    "runs it, by the table of runtimes": (
        _optimized(GAIN, **PLAIN),
        _optimized(BFLOAT16, **PLAIN),
    ),
    "already one node (1)": (_optimized(lambda: rx.optimize(GAIN()).model), _optimized(GAIN)),
    "raised from opset 17 to 23": (_optimized(GAIN, target="onnx"), _optimized(GAIN)),
    "overflow above 255": (_optimized(_in_half), _optimized(_in_half, numerics="upcast")),
}
"""A claim -> a report of which it holds, and one of which it does not."""


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_is_made_where_it_holds(claim: str) -> None:
    holds, fails = (to_text(report) + to_text(report, verbose=1) for report in CLAIMS[claim])
    assert claim in holds
    assert claim not in fails


def test_what_optimize_has_done_is_listed_where_it_is_asked_for() -> None:
    """Of ``inspect``, whose result the list is, always."""
    done = _optimized(GAIN)
    assert "fused (1)" in to_text(done, verbose=1)
    assert "fused (1)" not in to_text(done)
    assert "fusable (1)" in to_text(rx.inspect(GAIN()))


@pytest.mark.parametrize("runtime", ["onnxruntime", "opencv", "tract"])
def test_nothing_is_promised_of_norms_that_were_refused(runtime: str) -> None:
    """What a note says of a runtime holds for any model."""
    for model, headline in ((GAIN, "1 of 1"), (CLAMPED, "0 of 1")):
        report = _optimized(model, runtime=runtime)
        assert report.headline().startswith(headline)
        assert "a norm," not in report.notes[-1].replace("a norm, with", "")
        assert "one kernel" not in report.notes[-1]


@pytest.mark.parametrize(("options", "words"), [({}, "are one node"), (PLAIN, "plain operators")])
def test_a_folder_says_what_its_graphs_say(options: dict[str, Any], words: str) -> None:
    reports = {name: _optimized(GAIN, **options) for name in ("prefill", "decode")}
    text = to_text(GenerationExport(None, reports), verbose=-1)
    assert text.startswith(f"2 of 2 RMSNorms are {words.removeprefix('are ')}, in 2 graphs")
    assert to_text(GenerationExport(None, reports)).count("next: ") == 1


def test_nodes_of_a_function_without_names_are_called_by_their_outputs() -> None:
    """Also where the function had to go into the place of its call."""
    model, body = NONE(), GAIN().graph
    constants = [onnx.helper.make_node("Constant", [], [t.name], value=t) for t in body.initializer]
    ends, nodes = (["x"], ["y"]), [*constants, *body.node]
    model.functions.append(
        onnx.helper.make_function("mine", "Norm", *ends, nodes, [*model.opset_import])
    )
    model.graph.node[0].CopyFrom(onnx.helper.make_node("Norm", *ends, domain="mine"))
    model.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    (site,) = _optimized(lambda: model, opset=21).fused
    assert site.nodes == tuple(node.output[0] for node in body.node)
