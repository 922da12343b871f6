"""Proofs that hold: right rewrites of every cast order, type, place and shape."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from proof import sites
from proof.sites import GEMMA, GEMMA_SPEC, LLAMA, NORM, PLAIN, SPEC, one_node, prove, site, written
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, NormSpec

RMS = "RMSNormalization <epsilon = 0.000001>"


@pytest.mark.parametrize("op", [NORM, RMS])
@pytest.mark.parametrize("n", [1, 3, 111, 96, 4104])
def test_float32(op: str, n: int) -> None:
    match = site(PLAIN, n=n)
    stored = np.linspace(-2, 2, n, dtype=np.float32)
    proof = prove(match, one_node(match, op), stored_scale=stored)
    assert proof.passed, proof.reason
    assert "onnxruntime" in proof.runtime
    assert {"random", "tiny", "huge", "overflow", "zeros", "outlier"} <= set(proof.cases)
    assert proof.max_ulp <= proof.bound_ulp
    # Both sides are sums of the same terms: far below what the bound must allow for.
    assert proof.error_after < 100


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
@pytest.mark.parametrize("n", [3, 96, 1031])
@pytest.mark.parametrize(
    ("body", "spec", "op", "numerics"),
    [(LLAMA, SPEC, RMS, "exact"), (LLAMA, SPEC, NORM, "reordered"),
     (GEMMA, GEMMA_SPEC, NORM, "exact")],
)  # fmt: skip
def test_half_orders(dtype, n, body, spec, op, numerics):
    match = site(body, spec, dtype=dtype, n=n)
    proof = prove(match, one_node(match, op, numerics))
    assert proof.passed, proof.reason
    assert "numpy" in proof.runtime
    exact = numerics == "exact"
    assert proof.mismatch < 0.02 if exact else proof.error_after <= 0.51 <= proof.error_before


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
def test_a_chain_in_half_only_becomes_more_accurate(dtype: int) -> None:
    epsilon = 2.0**-16
    match = site(PLAIN, NormSpec(epsilon=epsilon), dtype=dtype, stash=dtype, epsilon=epsilon)
    match = dataclasses.replace(match, narrow=("mean rounded",))
    op = f"RMSNormalization <epsilon = {epsilon}>"
    proof = prove(match, one_node(match, op, "upcast"))
    assert proof.passed, proof.reason
    assert proof.error_after < 1.6 < proof.error_before
    assert not prove(match, one_node(match, op, "exact")).passed


SILU = "  q = {norm} (x, w)\n  g = Sigmoid (z)\n  k = Mul (g, z)\n  y = Mul (q, k)"
SKIP = (
    "y, d1, d2, t = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.000001> (x, h, w)"
)
FLAT = """  flat = Constant <value_ints = [10, 96]> ()
  back = Constant <value_ints = [2, 5, 96]> ()
  k = Reshape (x, flat){core}
  q = Reshape (v, back)
  y = Mul (q, w)"""
GROUPS = """  split = Constant <value_ints = [0, 0, -1, 24]> ()
  s0 = Shape (x)
  k = Reshape (x, split)"""
ONES = f", float[24] ones = {{{', '.join('1' * 24)}}}"
WIDE = {"dtype": DOUBLE, "stash": DOUBLE, "epsilon": SPEC.epsilon}
RIGHT: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "float64": (PLAIN, {"stash_type": DOUBLE}, WIDE,
                f"  y = {NORM.replace('>', ', stash_type = 11>')} (x, w)"),
    "offset": (sites.OFFSET + "{core}\n  y = Mul (v, g)", {"scale_offset": 1.0}, {},
               sites.OFFSET + "  y = {norm} (x, g)"),
    "bias": ("{core}\n  q = Mul (v, w)\n  y = Add (q, b)", {}, {"inputs": "xwb"},
             "  q = {norm} (x, w)\n  y = Add (q, b)"),
    "residual": ("  t = Add (x, h)\n" + PLAIN, {"kind": "SkipRMSNorm"},
                 {"row": "t", "inputs": "xhw", "outputs": "yt"}, SKIP),
    "gate": ("{core}\n  q = Mul (v, w)\n  g = Sigmoid (z)\n  k = Mul (z, g)\n  y = Mul (q, k)",
             {"kind": "GatedRMSNorm"}, {"inputs": "xzw"}, SILU),
    "sizes in a Reshape": (FLAT, {}, {"row": "k", "shape": "2, 5"}, "  y = {norm} (x, w)"),
    "groups": (GROUPS + "{core}\n  q = Reshape (v, s0)\n  y = Mul (q, w)", {"group_size": 24},
               {"row": "k", "extra": ONES},
               GROUPS + "\n  d = {norm} (k, ones)\n  u = Reshape (d, s0)\n  y = Mul (u, w)"),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_right_rewrites(name: str) -> None:
    body, changes, arguments, new = RIGHT[name]
    match = site(body, dataclasses.replace(SPEC, **changes), **arguments)
    lowered = written(match, new, extra=arguments.get("extra", ""))
    proof = prove(match, lowered, stored_scale=np.zeros(96, np.float32))
    assert proof.passed, proof.reason
    assert ("overflow" in proof.cases) == (match.dtype != DOUBLE)


@pytest.mark.parametrize(
    ("new", "words"),
    [("  y = {norm} (x, w)", "does not load"),  # the operator takes one type only
     ("  wh = Cast <to = 10> (w)\n  y = {norm} (x, wh)", "accuracy|rounding order")],
)  # fmt: skip
def test_a_weight_in_float32_of_a_norm_in_float16(new: str, words: str) -> None:
    """Rounding the weight is a rounding that the source, T5's order, lacks."""
    body = "{core}\n  vh = Cast <to = 1> (v)\n  yf = Mul (w, vh)\n  y = Cast <to = 10> (yf)"
    match = site(body, GEMMA_SPEC, dtype=FLOAT16, weight=FLOAT)
    proof = prove(match, written(match, new, weight=FLOAT))
    assert not proof.passed
    assert any(word in proof.reason for word in words.split("|"))


@pytest.mark.parametrize("n", [96, 100])
def test_a_rounded_count_is_told_from_a_wrong_one(n: int) -> None:
    """1/n as a float32 constant is off by up to 6e-8, n + 1 by 1/(2n)."""
    for count, right in ((n, True), (n + 1, False)):
        body = f"  k = Constant <value_float = {np.float32(1 / count):.12f}> ()\n"
        body += "  p = Mul (x, x)\n  q = ReduceSum (p, axes)\n  m = Mul (q, k)\n"
        match = site(body + sites.TAIL, n=n)
        assert prove(match, one_node(match)).passed is right


def test_equal_sites_share_one_proof_and_the_source_stays() -> None:
    first, second = (site(PLAIN, n=8192) for _ in range(2))
    before = [ir.serde.serialize_graph(m.nodes[0].graph) for m in (first, second)]
    proof = prove(first, one_node(first))
    start = time.perf_counter()
    assert prove(second, one_node(second)) is proof
    assert time.perf_counter() - start < 0.5
    assert [ir.serde.serialize_graph(m.nodes[0].graph) for m in (first, second)] == before


def test_unknown_size_rank_and_types() -> None:
    match = site(PLAIN)
    for value in (match.x, match.scale, match.output):
        value.shape = value.type = None
    match = dataclasses.replace(match, n=None, rank=None)
    proof = prove(match, one_node(match))
    assert proof.passed, proof.reason


def test_sizes_that_only_a_reshape_knows() -> None:
    """x of unknown shape; the source reshapes to constant sizes, the new nodes know two axes."""
    body = "  back = Constant <value_ints = [2, 5, 4, 3]> ()\n"
    body += "  flat = Constant <value_ints = [10, 12]> ()\n"
    body += "  k = Reshape (x, flat)\n{core}\n  y = Reshape (v, back)"
    match = site(body, dataclasses.replace(SPEC, axis=-2), row="k", n=12, inputs="x")
    match.x.shape = None
    match = dataclasses.replace(match, rank=4)
    ones = f", float[4, 3] ones = {{{', '.join('1' * 12)}}}"
    new = f"  y = {NORM.replace('-1', '-2')} (x, ones)"
    proof = prove(match, written(match, new, extra=ones))
    assert proof.passed, proof.reason


def test_absurdly_long_rows_are_not_tried() -> None:
    match = site(PLAIN)
    match.x.shape = match.scale.shape = None
    proof = prove(dataclasses.replace(match, n=2**40), one_node(match))
    assert not proof.passed
    assert "too long" in proof.reason
