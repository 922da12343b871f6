"""Proofs that hold: right rewrites of every cast order, type, place and shape."""

from __future__ import annotations

import dataclasses
import itertools
import time
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from recognize.text_models import TARGETS, check_same, model, norm, run

import rmsnorm_export as rx
from proof import sites
from proof.sites import GEMMA, GEMMA_SPEC, LLAMA, NORM, PLAIN, SPEC, one_node, prove, site, written
from rmsnorm_export.errors import InputError
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.op.spec import BFLOAT16, FLOAT, FLOAT16, NormSpec
from rmsnorm_export.proof.feeds import Layout
from rmsnorm_export.proof.site import Proving
from rmsnorm_export.recognize.scan import recognize
from tests.sample import crossed
from tests.tools.tables import table

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


# Proof against truth: a right rewrite passes, and the class that is told is the class that is.

SKIP = "float[2,3,8] x, float[2,3,8] r"
ROW = "float[2,3,8] x"
RENAMED = "i = Identity(h)\n" + norm("h", "y").replace("Pow(h, two)", "Mul(i, h)")
PROVED = {
    "one value is gain and bias": (norm("x", "y0") + "y = Add(y0, w)", ROW),
    "one value is x and residual": ("h = Add(x, x)\n" + norm("h", "y"), ROW),
    "one value is x and gate": (norm("x", "y0") + "g = Sigmoid(x)\n y = Mul(y0, g)", ROW),
    "the sum by another name": ("h = Add(x, r)\n" + RENAMED, SKIP),
    "gate in front, by another name": ("g = Sigmoid(r)\n h = Mul(x, g)\n" + RENAMED, SKIP),
    "a norm of a norm": (norm("x", "y0") + norm("y0", "y", "k"), ROW),
    "a gain from a norm": (norm("w", "g", "k") + norm("x", "y", "", "g"), ROW),
}


@crossed(3, name=[*PROVED], target=TARGETS)
def test_a_right_rewrite_is_proved(name: str, target: Target) -> None:
    body, inputs = PROVED[name]
    source = model(body, inputs=inputs, outputs="float[2,3,8] y")
    result = rx.optimize(source, target=target, prove=True)
    assert result.report.fused
    assert not result.report.refused
    assert all(site.proof.passed for site in result.report.fused)
    check_same(source, ir.to_proto(result.model))


@pytest.mark.parametrize("target", TARGETS)
def test_the_default_epsilon_is_a_float32(target: Target) -> None:
    """The attribute's default 1e-5 is stored in float32: 2.5e-8 away, and this norm is float64."""
    gain = "double[8] w = {1, 2, 3, 4, 5, 6, 7, 8}"
    body = "y = RMSNormalization<stash_type = 11>(x, w)"
    source = model(body, inputs="double[4,8] x", outputs="double[4,8] y", constants=gain, opset=23)
    result = rx.optimize(source, target=target, prove=True)
    assert not result.report.refused
    tiny = {"x": np.random.default_rng(0).standard_normal((4, 8)) * 1e-6}
    (old,), (new,) = run(source, tiny), run(ir.to_proto(result.model), tiny)
    np.testing.assert_allclose(new, old, rtol=1e-12)


# Right rewrites whose proof needs more than the nodes of the site, and those that have none.

MODELS: dict[str, str] = table(__file__)


def optimized(name: str, **options: Any) -> rx.Report:
    model = onnx.parser.parse_model(MODELS[name])
    return rx.optimize(model, numerics="upcast", **options).report


EVERYWHERE = ("a cast up and down", "in a function", "a computed shape")


@pytest.mark.parametrize(
    ("name", "target"),
    # The other targets want to know the size of a group before there is anything to prove.
    [("the shape of an input", "portable"), ("a row of ones", "portable"),
     ("a row of ones", "ort"), *itertools.product(EVERYWHERE, ("portable", "onnx", "ort"))],
)  # fmt: skip
def test_what_a_cut_needs_comes_with_it(name: str, target: Any) -> None:
    report = optimized(name, target=target, prove=True)
    assert len(report.fused) == 1, report.refused
    proof = report.fused[0].proof
    assert (proof.passed, bool(proof.compared)) == (True, True)


def test_what_cannot_be_run_by_itself_is_no_failed_proof() -> None:
    assert optimized("a shape that is an input").fused
    (refused,) = optimized("a shape that is an input", prove=True).refused
    assert (refused.reason, refused.kind) == ("not-provable", "norm")
    assert "'whole', an input" in refused.found


@pytest.mark.parametrize("name", ["empty rows", "no rows"])
def test_odd_rows_are_no_failed_proof(name: str) -> None:
    """Rows of no elements; no rows, as a Reshape stores it."""
    refused = optimized(name, prove=True).refused
    assert [(r.reason, r.kind) for r in refused] == [("not-provable", "norm")]


@pytest.mark.parametrize("name", ["a clamp", "a clamp at 2**-23"])
def test_the_root_of_a_clamp_is_a_rounded_number(name: str) -> None:
    """2**-23 is one of float32, its root is not."""
    (site,) = optimized(name, prove=True).fused
    assert site.attributes["epsilon_clamp"] == 1
    assert site.proof.passed


def test_a_gate_on_the_way_to_the_root_is_not_chosen_apart_from_x() -> None:
    (site,) = optimized("gated by its square").fused
    assert site.op == "GatedRMSNorm"
    (refused,) = optimized("gated by its square", prove=True).refused
    assert refused.reason == "not-provable"
    assert "the gate 'p'" in refused.found


def test_the_proofs_of_a_model_end_with_its_elements() -> None:
    """Two layouts of 13 rows and one of 26, which is run twice."""
    types = recognize(ir.Model(ir.Graph([], [], nodes=[]), ir_version=10)).types
    proving = Proving(types, {}, elements=256)
    for _ in range(2):
        proving.take(Layout((13,), (64,), ()), FLOAT)
    with pytest.raises(InputError, match=r"130 elements, 128 are left"):
        proving.take(Layout((26,), (65,), ()), FLOAT)
    proving.take(Layout((26,), (64,), ()), FLOAT)
    assert proving.elements == 0
