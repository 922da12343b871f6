"""Proofs that must fail: each wrong rewrite is caught, and the reason says where."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
import pytest

from proof.sites import F32_EPSILON, GEMMA, LLAMA, match_of, one_node, prove, source
from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.op.spec import BFLOAT16, FLOAT, FLOAT16, NormSpec
from rmsnorm_export.recognize.match import Match

SPEC = NormSpec(epsilon=F32_EPSILON)
GEMMA_SPEC = dataclasses.replace(SPEC, scale_before_cast=True)
SIMPLIFIED = "SimplifiedLayerNormalization"
PLAIN = "{core}\n  y = Mul (v, w)"
ORDERS = {
    "float": (PLAIN, FLOAT, SPEC),
    "float16 LLaMA": (LLAMA, FLOAT16, SPEC),
    "float16 Gemma": (GEMMA, FLOAT16, GEMMA_SPEC),
    "bfloat16 LLaMA": (LLAMA, BFLOAT16, SPEC),
}


def site(order: str) -> Match:
    body, dtype, spec = ORDERS[order]
    return match_of(source(body, dtype=dtype), spec, dtype)


def rms(match: Match, **changes: float) -> Lowered:
    attributes = {"epsilon": F32_EPSILON, **changes}
    return one_node(match, "RMSNormalization", min_opset=23, numerics="reordered", **attributes)


def caught(match: Match, lowered: Lowered, *words: str, **options) -> None:
    proof = prove(match, lowered, **options)
    assert not proof.passed
    assert any(word in proof.reason for word in words), proof.reason


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("epsilon", [1e-5, 0.0, 1.001e-6])
def test_epsilon(order: str, epsilon: float) -> None:
    match = site(order)
    caught(match, rms(match, epsilon=epsilon), "mathematics: the new nodes")


@pytest.mark.parametrize("order", ORDERS)
def test_epsilon_outside_the_root(order: str) -> None:
    match = site(order)
    wrong = dataclasses.replace(match.spec, epsilon_outside=True)
    caught(dataclasses.replace(match, spec=wrong), rms(match), "mathematics: the original nodes")


@pytest.mark.parametrize("order", ORDERS)
def test_wrong_axis(order: str) -> None:
    match = site(order)
    caught(match, rms(match, axis=-2), "mathematics: the new nodes")


def test_wrong_axis_that_broadcasts() -> None:
    wrong = source("{core}\n  y = Mul (v, w)")
    wrong.graph.initializers["axes"].const_value = ir.tensor(np.array([-2]))
    match = match_of(wrong, SPEC)
    caught(match, rms(match), "mathematics: the original nodes")
    right = site("float")
    for old, new in ((right.x, match.x), (right.scale, match.scale)):
        new.replace_all_uses_with(old)
    caught(right, Lowered(match.nodes, [(right.output, match.output)], "exact", right),
           "mathematics: the new nodes")  # fmt: skip


def test_the_stored_weight_is_tried_too() -> None:
    match = site("float")
    three, two = (ir.Value(name=f"b{k}", const_value=ir.tensor(np.float32(k))) for k in (3, 2))
    same = ir.node("Equal", [match.scale, three])
    other = ir.node("Where", [same.outputs[0], two, match.scale])
    norm = one_node(match, SIMPLIFIED, inputs=[match.x, other.outputs[0]], epsilon=F32_EPSILON)
    lowered = dataclasses.replace(norm, nodes=[same, other, *norm.nodes], initializers=[three, two])
    assert prove(match, lowered).passed  # no random weight is exactly 3
    assert prove(match, lowered, stored_scale=np.full(96, 2, np.float32)).passed
    caught(match, lowered, "with a stored weight", stored_scale=np.full(96, 3, np.float32))


@pytest.mark.parametrize("order", ORDERS)
def test_missing_weight(order: str) -> None:
    match = site(order)
    dtype = {FLOAT: np.float32, FLOAT16: np.float16}.get(match.dtype)
    if dtype is None:
        dtype = ir.DataType(match.dtype).numpy()
    ones = ir.Value(name="ones", const_value=ir.tensor(np.ones(96, dtype)))
    lowered = one_node(match, SIMPLIFIED, inputs=[match.x, ones], epsilon=F32_EPSILON)
    lowered = dataclasses.replace(lowered, initializers=[ones])
    # The stored weight may well be all ones: a random one is always tried as well.
    caught(match, lowered, "mathematics: the new nodes", stored_scale=np.ones(96, np.float32))


def test_unit_offset_forgotten() -> None:
    body = "  one = Constant <value_float = 1.0> ()\n  g = Add (w, one)\n{core}\n  y = Mul (v, g)"
    match = match_of(source(body), dataclasses.replace(SPEC, scale_offset=1.0))
    caught(match, rms(match), "mathematics: the new nodes")
    plain = dataclasses.replace(match, spec=SPEC)
    caught(plain, rms(plain), "mathematics: the original nodes")


def test_mean_over_one_more() -> None:
    body = "  k = Constant <value_float = 97.0> ()\n  p = Mul (x, x)\n  q = ReduceSum (p, axes)\n"
    body += "  m = Div (q, k)\n  a = Add (m, epsilon)\n  s = Sqrt (a)\n  v = Div (x, s)\n"
    match = match_of(source(body + "  y = Mul (v, w)"), SPEC)
    caught(match, rms(match), "mathematics: the original nodes")


def test_layer_norm_is_not_rms_norm() -> None:
    body = "  u = ReduceMean (x, axes)\n  c = Sub (x, u)\n{core}\n  y = Mul (v, w)"
    match = match_of(source(body, row="c"), SPEC)
    caught(match, rms(match), "mathematics: the original nodes")
    match = site("float")
    lowered = one_node(match, "LayerNormalization", epsilon=F32_EPSILON)
    caught(match, lowered, "mathematics: the new nodes")


def test_another_numerator() -> None:
    body = "{core}\n  o = Constant <value_float = 1.0000001> ()\n  k = Mul (v, o)\n  y = Mul (k, w)"
    body = body.replace("1.0000001", "1.00001")
    match = match_of(source(body), SPEC)
    caught(match, rms(match), "mathematics: the original nodes")


def test_partial_and_group_sizes() -> None:
    match = site("float")
    for change in ({"partial_size": 48}, {"group_size": 48}):
        wrong = dataclasses.replace(match, spec=dataclasses.replace(SPEC, **change))
        caught(wrong, rms(match), "mathematics: the original nodes")


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
def test_another_rounding_order_is_not_exact(dtype: int) -> None:
    match = match_of(source(LLAMA, dtype=dtype), SPEC, dtype)
    lowered = one_node(match, SIMPLIFIED, epsilon=F32_EPSILON)
    caught(match, lowered, "rounding order")


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
def test_less_accurate_is_not_reordered(dtype: int) -> None:
    match = match_of(source(GEMMA, dtype=dtype), GEMMA_SPEC, dtype)
    caught(match, rms(match), "accuracy")


def test_accumulating_in_half() -> None:
    match = site("float16 LLaMA")
    caught(match, rms(match, stash_type=FLOAT16), "NaN or infinity", "distance", "accuracy")


def test_wrong_sum() -> None:
    body = "  t = Add (x, h)\n{core}\n  y = Mul (v, w)"
    model = source(body, row="t", inputs=("x", "h", "w"), outputs=("y", "t"))
    match = match_of(model, dataclasses.replace(SPEC, kind="SkipRMSNorm"))
    added = ir.node("Add", [match.x, match.residual])
    doubled = ir.node("Add", [match.x, match.x])
    norm = ir.node(SIMPLIFIED, [added.outputs[0], match.scale], attributes={"epsilon": F32_EPSILON})
    pairs = [(match.output, norm.outputs[0]), (match.sum, doubled.outputs[0])]
    wrong = Lowered([added, norm, doubled], pairs, "exact", match)
    caught(match, wrong, "mathematics: the new nodes")
    pairs[1] = (match.sum, added.outputs[0])
    assert prove(match, Lowered([added, norm], pairs, "exact", match)).passed


def test_a_gate_is_not_a_weight() -> None:
    model = source("{core}\n  y = Mul (v, z)", inputs=("x", "z"))
    match = match_of(model, SPEC)
    match = dataclasses.replace(match, gate=None, scale=None, offset_scale=None)
    caught(match, one_node(match, SIMPLIFIED, epsilon=1e-6, inputs=[match.x]), "'z', an input")


def test_a_mean_over_another_axis_of_equal_size() -> None:
    body = "  first = Constant <value_ints = [0]> ()\n  p = Mul (x, x)\n"
    body += "  m = ReduceMean <keepdims = 0> (p, axes)\n  a = Add (m, epsilon)\n  s = Sqrt (a)\n"
    match = match_of(source(body + "  v = Div (x, s)\n  y = Mul (v, w)", shape="96, 96"), SPEC)
    caught(match, rms(match), "cannot be evaluated", "another shape", "mathematics")


def test_another_output_type() -> None:
    match = site("float16 LLaMA")
    wide = ir.node("Cast", [match.x], attributes={"to": FLOAT})
    scale = ir.node("Cast", [match.scale], attributes={"to": FLOAT})
    norm = ir.node(
        SIMPLIFIED, [wide.outputs[0], scale.outputs[0]], attributes={"epsilon": F32_EPSILON}
    )
    lowered = Lowered([wide, scale, norm], [(match.output, norm.outputs[0])], "upcast", match)
    caught(match, lowered, "ONNX Runtime does not load", "different shapes or types")


def test_unknown_operator() -> None:
    match = site("float")
    caught(match, one_node(match, "NoSuchNorm", domain="nowhere"), "NoSuchNorm")


def test_an_offset_added_in_another_type() -> None:
    """T(1 + w) of a float32 weight is one rounding, 1 + T(w) in T is two."""
    body = "  one = Constant <value_float = 1.0> ()\n  g = Add (w, one)\n"
    body += "  gh = Cast <to = {dtype}> (g)\n{core}\n  vh = Cast <to = {dtype}> (v)\n"
    model = source(body + "  y = Mul (vh, gh)", dtype=FLOAT16, weight=FLOAT, n=1031)
    match = match_of(model, dataclasses.replace(SPEC, scale_offset=1.0), FLOAT16, n=1031)
    half = ir.node("Cast", [match.scale], attributes={"to": FLOAT16})
    one = ir.Value(name="one", const_value=ir.tensor(np.float16(1)))
    gain = ir.node("Add", [half.outputs[0], one])
    norm = one_node(match, "RMSNormalization", inputs=[match.x, gain.outputs[0]],
                    min_opset=23, epsilon=F32_EPSILON)  # fmt: skip
    wrong = dataclasses.replace(norm, nodes=[half, gain, *norm.nodes])
    caught(match, wrong, "accuracy", "rounding order")
    source_gain = next(n for n in model.graph if n.op_type == "Add").outputs[0]
    source_gain = next(u.outputs[0] for u, _ in source_gain.uses() if u.op_type == "Cast")
    right = one_node(match, "RMSNormalization", inputs=[match.x, source_gain],
                     min_opset=23, epsilon=F32_EPSILON)  # fmt: skip
    assert prove(match, right).passed
