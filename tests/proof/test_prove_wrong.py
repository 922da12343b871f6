"""Proofs that must fail: each wrong rewrite is caught, and the reason says where."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from proof import sites
from proof.sites import GEMMA_SPEC, LLAMA, OFFSET, ORDERS, PLAIN, SPEC, TAIL, prove, site, written
from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, NormSpec
from rmsnorm_export.proof.prove import prove_site
from rmsnorm_export.proof.site import Proving
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.types import Types

ORIGINAL, NEW = "mathematics: the original nodes", "mathematics: the new nodes"


def rms(match: Match, attributes: str = "epsilon = 0.000001") -> Lowered:
    return sites.one_node(match, f"RMSNormalization <{attributes}>", "reordered")


def caught(match: Match, lowered: Lowered, *words: str, **options: Any) -> None:
    proof = prove(match, lowered, **options)
    assert not proof.passed
    assert any(word in proof.reason for word in words), proof.reason


@pytest.mark.parametrize("order", ORDERS)
def test_wrong_attributes_and_a_missing_weight(order: str) -> None:
    match = sites.site_of(order)
    for epsilon in ("0.00001", "0.0", "0.000001001", "0.000001, axis = -2"):
        caught(match, rms(match, f"epsilon = {epsilon}"), NEW)
    ones = f", {sites.NAMES[match.dtype]}[96] ones = {{{', '.join(['1'] * 96)}}}"
    lowered = written(match, "  y = {norm} (x, ones)", extra=ones)
    # The stored weight may well be all ones: a random one is always tried as well.
    caught(match, lowered, NEW, stored_scale=np.ones(96, np.float32))


@pytest.mark.parametrize("order", ORDERS)
def test_a_wrong_specification(order: str) -> None:
    match = sites.site_of(order)
    for change in ({"epsilon_outside": True}, {"partial_size": 48}, {"group_size": 48}):
        wrong = dataclasses.replace(match, spec=dataclasses.replace(match.spec, **change))
        caught(wrong, rms(match), ORIGINAL)


WITH_OFFSET = OFFSET + "{core}\n  y = Mul (v, g)"
SOURCES: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "an offset that the specification lacks": (WITH_OFFSET, {}, {}, ORIGINAL),
    "an offset that the node lacks": (WITH_OFFSET, {"scale_offset": 1.0}, {}, NEW),
    "a mean over one more": (
        "  k = Constant <value_float = 97.0> ()\n  p = Mul (x, x)\n  q = ReduceSum (p, axes)\n"
        "  m = Div (q, k)\n" + TAIL, {}, {}, ORIGINAL,
    ),
    "a layer norm": (
        "  u = ReduceMean (x, axes)\n  c = Sub (x, u)\n" + PLAIN, {}, {"row": "c"}, ORIGINAL,
    ),
    "another numerator": (
        "{core}\n  o = Constant <value_float = 1.00001> ()\n  k = Mul (v, o)\n  y = Mul (k, w)",
        {}, {}, ORIGINAL,
    ),
    "a gate that is no weight": ("{core}\n  y = Mul (v, z)", {}, {"inputs": "xz"}, "'z', an input"),
    "a mean over another axis of equal size": (
        "  first = Constant <value_ints = [0]> ()\n  p = Mul (x, x)\n"
        "  m = ReduceMean <keepdims = 0> (p, axes)\n" + TAIL,
        {}, {"shape": "96, 96"}, "cannot be evaluated|another shape|mathematics",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_wrong_sources(name: str) -> None:
    body, changes, arguments, words = SOURCES[name]
    match = site(body, dataclasses.replace(SPEC, **changes), **arguments)
    match = dataclasses.replace(match, gate=None)
    new = "  y = {norm} (x)" if match.scale is None else "  y = {norm} (x, w)"
    caught(match, written(match, new), *words.split("|"))


def test_wrong_axis_that_broadcasts() -> None:
    wrong = sites.source(PLAIN)
    wrong.graph.initializers["axes"].const_value = ir.tensor(np.array([-2]))
    match, right = sites.match_of(wrong), sites.site_of("float")
    caught(match, rms(match), ORIGINAL)
    match.x.replace_all_uses_with(right.x)
    match.scale.replace_all_uses_with(right.scale)
    caught(right, Lowered(match.nodes, [(right.output, match.output)], "exact", right), NEW)


def _takes_for_two(number: float, match: Match) -> Lowered:
    """A norm that is right but where the weight is this number."""
    new = f"  n = Constant <value_float = {number}> ()\n  two_ = Constant <value_float = 2.0> ()\n"
    new += "  same = Equal (w, n)\n  g = Where (same, two_, w)\n  y = {norm} (x, g)"
    return written(match, new)


def test_the_stored_weight_is_tried_too() -> None:
    match = sites.site_of("float")
    lowered = _takes_for_two(3.0, match)
    assert prove(match, lowered).passed  # no random weight is exactly 3
    assert prove(match, lowered, stored_scale=np.full(96, 2, np.float32)).passed
    caught(match, lowered, "with a stored weight", stored_scale=np.full(96, 3, np.float32))


def test_sites_of_one_form_share_drawn_scales_and_have_their_own() -> None:
    """Layers of one model, of which one has the scale that is taken for another."""
    match = sites.site_of("float")
    lowered = _takes_for_two(7.0, match)
    proving = Proving(
        Types(ir.Model(match.nodes[-1].graph, ir_version=10)),
        {"": 18, "com.microsoft": 1},
    )
    assert match.scale is not None
    proofs = []
    for number in (5, 6, 7, 5):
        match.scale.const_value = ir.tensor(np.full(96, number, np.float32))
        proofs.append(prove_site(match, lowered, proving))
    assert [proof.passed for proof in proofs] == [True, True, False, True]
    assert "with a stored weight" in proofs[2].reason
    assert [*proving.forms] == [*{proof.form for proof in proofs}]


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
def test_rounding_orders(dtype: int) -> None:
    llama, gemma = site(LLAMA, dtype=dtype), site(sites.GEMMA, GEMMA_SPEC, dtype=dtype)
    caught(llama, sites.one_node(llama), "rounding order")
    caught(gemma, rms(gemma), "accuracy")


IN_HALF = "RMSNormalization <epsilon = 0.000001, stash_type = 10> (x, w)"


@pytest.mark.parametrize(
    ("order", "node", "words"),
    [("float", "LayerNormalization <epsilon = 0.000001> (x, w)", NEW),
     ("float16 LLaMA", IN_HALF, "NaN or infinity|distance|accuracy"),
     ("float16 LLaMA", "{norm} (wide, scale)", "Runtime does not load|different shapes or types"),
     ("float", "NoSuchNorm (x, w)", "NoSuchNorm")],
)  # fmt: skip
def test_wrong_nodes(order: str, node: str, words: str) -> None:
    match = sites.site_of(order)
    front = "  wide = Cast <to = 1> (x)\n  scale = Cast <to = 1> (w)\n" if "wide" in node else ""
    caught(match, written(match, f"{front}  y = {node}", "upcast"), *words.split("|"))


@pytest.mark.parametrize("epsilon", [5e-324, 1e-50])
def test_a_node_that_the_runtime_removes(epsilon: float) -> None:
    """Of a float64 number that is 0 in float32 ONNX Runtime's optimizer removes an Add, no Sum."""
    own = {"dtype": DOUBLE, "stash": DOUBLE, "epsilon": epsilon}
    match = site(PLAIN, NormSpec(epsilon=epsilon, stash_type=DOUBLE), **own)
    for operator, holds in (("Add", False), ("Sum", True)):
        lowered = written(
            match, PLAIN.replace("{core}", sites.CORE.replace("Add", operator)), **own
        )
        if holds:
            assert prove(match, lowered).passed
        else:
            caught(match, lowered, ", optimized")


def test_wrong_sum() -> None:
    spec = dataclasses.replace(SPEC, kind="SkipRMSNorm")
    match = site("  t = Add (x, h)\n" + PLAIN, spec, row="t", inputs="xhw", outputs="yt")
    norm = "  s1 = Add (x, h)\n  y = {norm} (s1, w)\n"
    caught(match, written(match, norm + "  t = Add (x, x)"), NEW)
    assert prove(match, written(match, norm + "  t = Identity (s1)")).passed


def test_an_offset_added_in_another_type() -> None:
    """T(1 + w) of a float32 weight is one rounding, 1 + T(w) in T is two."""
    offset = OFFSET + "  gh = Cast <to = {dtype}> (g)\n"
    body = offset + "{core}\n  vh = Cast <to = {dtype}> (v)\n  y = Mul (vh, gh)"
    spec = dataclasses.replace(SPEC, scale_offset=1.0)
    match = site(body, spec, dtype=FLOAT16, weight=FLOAT, n=1031)
    rms_of = "  y = RMSNormalization <epsilon = 0.000001> "
    half = "  wh = Cast <to = 10> (w)\n  one = Constant <value_float = 1.0> ()\n"
    half += "  oh = Cast <to = 10> (one)\n  g = Add (wh, oh)\n"
    wrong = written(match, half + rms_of + "(x, g)", weight=FLOAT, n=1031)
    caught(match, wrong, "accuracy", "rounding order")
    right = written(match, offset + rms_of + "(x, gh)", weight=FLOAT, n=1031)
    assert prove(match, right).passed
