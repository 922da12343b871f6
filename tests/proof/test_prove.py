"""Proofs that hold: right rewrites of every cast order, type, place and shape."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import onnx_ir as ir
import pytest

from proof.sites import F32_EPSILON, GEMMA, LLAMA, match_of, one_node, prove, source
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, NormSpec

SPEC = NormSpec(epsilon=F32_EPSILON)
GEMMA_SPEC = dataclasses.replace(SPEC, scale_before_cast=True)
SIMPLIFIED = "SimplifiedLayerNormalization"


def node(match, op_type: str = SIMPLIFIED, numerics: Numerics = "exact", **attributes: float):
    attributes = {"epsilon": match.spec.epsilon, **attributes}
    opset = 23 if op_type == "RMSNormalization" else 0
    return one_node(match, op_type, numerics=numerics, min_opset=opset, **attributes)


@pytest.mark.parametrize("op_type", [SIMPLIFIED, "RMSNormalization"])
@pytest.mark.parametrize("n", [1, 3, 111, 96, 4104])
def test_float32(op_type: str, n: int) -> None:
    match = match_of(source("{core}\n  y = Mul (v, w)", n=n), SPEC, n=n)
    proof = prove(match, node(match, op_type), stored_scale=np.linspace(-2, 2, n, dtype=np.float32))
    assert proof.passed, proof.reason
    assert "onnxruntime" in proof.runtime
    assert {"random", "tiny", "huge", "overflow", "zeros", "outlier"} <= set(proof.cases)
    assert proof.max_ulp <= proof.bound_ulp
    # Both sides are sums of the same terms: far below what the bound must allow for.
    assert proof.error_after < 100


def test_float64() -> None:
    spec = NormSpec(epsilon=1e-6, stash_type=DOUBLE)
    model = source("{core}\n  y = Mul (v, w)", dtype=DOUBLE, stash=DOUBLE, epsilon=F32_EPSILON)
    match = match_of(model, dataclasses.replace(spec, epsilon=F32_EPSILON), DOUBLE)
    proof = prove(match, node(match, stash_type=DOUBLE))
    assert proof.passed, proof.reason
    assert "overflow" not in proof.cases


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
@pytest.mark.parametrize("n", [3, 96, 1031])
@pytest.mark.parametrize(
    ("body", "spec", "op_type", "numerics"),
    [
        (LLAMA, SPEC, "RMSNormalization", "exact"),
        (LLAMA, SPEC, SIMPLIFIED, "reordered"),
        (GEMMA, GEMMA_SPEC, SIMPLIFIED, "exact"),
    ],
)
def test_half_orders(
    dtype: int, n: int, body: str, spec: NormSpec, op_type: str, numerics: Numerics
) -> None:
    match = match_of(source(body, dtype=dtype, n=n), spec, dtype, n=n)
    proof = prove(match, node(match, op_type, numerics))
    assert proof.passed, proof.reason
    assert "numpy" in proof.runtime
    if numerics == "exact":
        assert proof.mismatch < 0.02
    else:
        assert proof.error_after <= 0.51 <= proof.error_before


def test_t5_weight_in_float32() -> None:
    body = "{core}\n  vh = Cast <to = 1> (v)\n  yf = Mul (w, vh)\n  y = Cast <to = 10> (yf)"
    match = match_of(source(body, dtype=FLOAT16, weight=FLOAT), GEMMA_SPEC, FLOAT16)
    half = ir.Value(name="wh")
    cast = ir.node("Cast", [match.scale], attributes={"to": FLOAT16}, outputs=[half])
    new = node(match)
    rounded = one_node(match, SIMPLIFIED, inputs=[match.x, half], epsilon=F32_EPSILON)
    rounded = dataclasses.replace(rounded, nodes=[cast, *rounded.nodes])
    proof = prove(match, new)
    assert not proof.passed  # the operator takes one type only
    assert "does not load" in proof.reason
    proof = prove(match, rounded)  # rounding the weight is a rounding that the source lacks
    assert not proof.passed
    assert "accuracy" in proof.reason or "rounding order" in proof.reason


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
def test_a_chain_in_half_only_becomes_more_accurate(dtype: int) -> None:
    model = source("{core}\n  y = Mul (v, w)", dtype=dtype, stash=dtype, epsilon=2.0**-16)
    match = match_of(model, NormSpec(epsilon=2.0**-16), dtype)
    match = dataclasses.replace(match, narrow=("mean rounded",))
    proof = prove(match, node(match, "RMSNormalization", "upcast"))
    assert proof.passed, proof.reason
    assert proof.error_after < 1.6 < proof.error_before
    strict = prove(match, node(match, "RMSNormalization", "exact"))
    assert not strict.passed


def test_unit_offset() -> None:
    body = "  one = Constant <value_float = 1.0> ()\n  g = Add (w, one)\n{core}\n  y = Mul (v, g)"
    spec = dataclasses.replace(SPEC, scale_offset=1.0)
    match = match_of(source(body), spec)
    gain = match.nodes[1].outputs[0]
    lowered = one_node(match, SIMPLIFIED, inputs=[match.x, gain], epsilon=F32_EPSILON)
    stored_scale = np.zeros(96, np.float32)
    assert prove(match, lowered, stored_scale=stored_scale).passed


def test_bias_and_cancellation() -> None:
    match = match_of(source("{core}\n  q = Mul (v, w)\n  y = Add (q, b)", inputs=("x", "w", "b")),
                     SPEC)  # fmt: skip
    norm = one_node(match, SIMPLIFIED, inputs=[match.x, match.scale], epsilon=F32_EPSILON)
    last = ir.node("Add", [norm.nodes[0].outputs[0], match.bias])
    lowered = dataclasses.replace(
        norm, nodes=[*norm.nodes, last], replace=[(match.output, last.outputs[0])]
    )
    proof = prove(match, lowered)
    assert proof.passed, proof.reason


def test_residual_with_its_sum() -> None:
    body = "  t = Add (x, h)\n{core}\n  y = Mul (v, w)"
    model = source(body, row="t", inputs=("x", "h", "w"), outputs=("y", "t"))
    match = match_of(model, dataclasses.replace(SPEC, kind="SkipRMSNorm"))
    lowered = one_node(
        match,
        "SkipSimplifiedLayerNormalization",
        domain="com.microsoft",
        outputs=4,
        epsilon=F32_EPSILON,
    )
    proof = prove(match, lowered)
    assert proof.passed, proof.reason


def test_gate() -> None:
    body = "{core}\n  q = Mul (v, w)\n  g = Sigmoid (z)\n  k = Mul (z, g)\n  y = Mul (q, k)"
    match = match_of(
        source(body, inputs=("x", "z", "w")), dataclasses.replace(SPEC, kind="GatedRMSNorm")
    )
    norm = one_node(match, SIMPLIFIED, inputs=[match.x, match.scale], epsilon=F32_EPSILON)
    half = ir.node("Sigmoid", [match.gate])
    silu = ir.node("Mul", [half.outputs[0], match.gate])
    last = ir.node("Mul", [norm.nodes[0].outputs[0], silu.outputs[0]])
    lowered = dataclasses.replace(
        norm, nodes=[*norm.nodes, half, silu, last], replace=[(match.output, last.outputs[0])]
    )
    proof = prove(match, lowered)
    assert proof.passed, proof.reason


def test_constant_sizes_in_a_reshape() -> None:
    body = "  flat = Constant <value_ints = [10, 96]> ()\n"
    body += "  back = Constant <value_ints = [2, 5, 96]> ()\n"
    body += "  k = Reshape (x, flat)\n{core}\n  q = Reshape (v, back)\n  y = Mul (q, w)"
    match = match_of(source(body, row="k", shape="2, 5"), SPEC)
    proof = prove(match, node(match))
    assert proof.passed, proof.reason


def test_groups() -> None:
    body = "  split = Constant <value_ints = [0, 0, -1, 24]> ()\n  s0 = Shape (x)\n"
    body += "  k = Reshape (x, split)\n{core}\n  q = Reshape (v, s0)\n  y = Mul (q, w)"
    match = match_of(source(body, row="k"), dataclasses.replace(SPEC, group_size=24))
    split, shape, down, up, scale = (ir.Value(name=name) for name in ("a", "b", "c", "d", "e"))
    ones = ir.Value(name="ones", const_value=ir.tensor(np.ones(24, np.float32)))
    four = ir.tensor(np.array([0, 0, -1, 24]))
    norm = ir.node(SIMPLIFIED, [down, ones], attributes={"epsilon": F32_EPSILON})
    nodes = [
        ir.node("Constant", [], attributes={"value": four}, outputs=[split]),
        ir.node("Shape", [match.x], outputs=[shape]),
        ir.node("Reshape", [match.x, split], outputs=[down]),
        norm,
        ir.node("Reshape", [norm.outputs[0], shape], outputs=[up]),
        ir.node("Mul", [up, match.scale], outputs=[scale]),
    ]
    lowered = dataclasses.replace(node(match), nodes=nodes, replace=[(match.output, scale)])
    proof = prove(match, lowered)
    assert proof.passed, proof.reason


@pytest.mark.parametrize("n", [96, 100])
def test_a_rounded_count_is_told_from_a_wrong_one(n: int) -> None:
    """1/n as a float32 constant is off by up to 6e-8, n + 1 by 1/(2n)."""
    for count, right in ((n, True), (n + 1, False)):
        body = f"  k = Constant <value_float = {np.float32(1 / count):.12f}> ()\n"
        body += "  p = Mul (x, x)\n  q = ReduceSum (p, axes)\n  m = Mul (q, k)\n"
        body += "  a = Add (m, epsilon)\n  s = Sqrt (a)\n  v = Div (x, s)\n  y = Mul (v, w)"
        match = match_of(source(body, n=n), SPEC, n=n)
        assert prove(match, node(match)).passed is right


def test_equal_sites_share_one_proof_and_the_source_stays() -> None:
    models = [source("{core}\n  y = Mul (v, w)", n=8192) for _ in range(2)]
    before = [ir.serde.serialize_model(model).SerializeToString() for model in models]
    matches = [match_of(model, SPEC, n=8192) for model in models]
    first = prove(matches[0], node(matches[0]))
    start = time.perf_counter()
    second = prove(matches[1], node(matches[1]))
    assert first is second
    assert time.perf_counter() - start < 0.5
    after = [ir.serde.serialize_model(model).SerializeToString() for model in models]
    assert after == before


def test_unknown_size_rank_and_types() -> None:
    model = source("{core}\n  y = Mul (v, w)")
    match = match_of(model, SPEC)
    for value in (match.x, match.scale, match.output):
        value.shape = value.type = None
    match = dataclasses.replace(match, n=None, rank=None)
    proof = prove(match, node(match))
    assert proof.passed, proof.reason


@pytest.mark.parametrize("weight", [FLOAT16, FLOAT])
def test_unknown_type_of_a_weight(weight: int) -> None:
    body = GEMMA if weight == FLOAT16 else (
        "{core}\n  yf = Mul (v, w)\n  y = Cast <to = {dtype}> (yf)"
    )  # fmt: skip
    match = match_of(source(body, dtype=FLOAT16, weight=weight), GEMMA_SPEC, FLOAT16)
    match.scale.type = None
    wide, scale, back = (ir.Value(name=name) for name in ("wide", "scale", "back"))
    norm = ir.node(SIMPLIFIED, [wide, scale], attributes={"epsilon": F32_EPSILON})
    nodes = [
        ir.node("Cast", [match.x], attributes={"to": FLOAT}, outputs=[wide]),
        ir.node("Cast", [match.scale], attributes={"to": FLOAT}, outputs=[scale]),
        norm,
        ir.node("Cast", [norm.outputs[0]], attributes={"to": FLOAT16}, outputs=[back]),
    ]
    lowered = dataclasses.replace(node(match), nodes=nodes, replace=[(match.output, back)])
    proof = prove(match, lowered)
    assert proof.passed, proof.reason


def test_sizes_that_only_a_reshape_knows() -> None:
    """x of unknown shape; the source reshapes to constant sizes, the new nodes know two axes."""
    body = "  back = Constant <value_ints = [2, 5, 4, 3]> ()\n"
    body += "  flat = Constant <value_ints = [10, 12]> ()\n"
    body += "  k = Reshape (x, flat)\n{core}\n  y = Reshape (v, back)"
    model = source(body, row="k", n=12, inputs=("x",))
    match = match_of(model, dataclasses.replace(SPEC, axis=-2), n=12)
    match.x.shape = None
    match = dataclasses.replace(match, rank=4)
    ones = ir.Value(name="ones", const_value=ir.tensor(np.ones((4, 3), np.float32)))
    lowered = one_node(match, SIMPLIFIED, inputs=[match.x, ones], epsilon=F32_EPSILON, axis=-2)
    lowered = dataclasses.replace(lowered, initializers=[ones])
    proof = prove(match, lowered)
    assert proof.passed, proof.reason


def test_absurdly_long_rows_are_not_tried() -> None:
    match = match_of(source("{core}\n  y = Mul (v, w)"), SPEC)
    for value in (match.x, match.scale):
        value.shape = None
    proof = prove(dataclasses.replace(match, n=2**40), node(match))
    assert not proof.passed
    assert "too long" in proof.reason
