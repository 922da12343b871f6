"""The Add in front of a norm: folded, counted in the headline, and never left without a reason."""

from __future__ import annotations

import onnx
import pytest
from recognize.text_models import check_same, model, norm, ops, optimized

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.recognize.finish import same_where_added
from rmsnorm_export.show import to_html, to_text

XR = "float[2,3,8] x, float[2,3,8] r"
FOLDED = {"portable": "SkipRMSNorm", "ort": "SkipSimplifiedLayerNormalization"}
ALONE: dict[Target, str] = {"portable": "RMSNorm", "onnx": "RMSNormalization",
                            "ort": "SimplifiedLayerNormalization"}  # fmt: skip


def folded(report: rx.Report) -> int:
    return sum(site.residual for site in (*report.fused, *report.kept))


BETWEEN = {
    "nothing": "h = Add(x, r)\n",
    "commuted": "h = Add(r, x)\n",
    "a Cast that changes nothing": "h0 = Add(x, r)\n h = Cast<to = 1>(h0)\n",
    "two of them": "h0 = Add(x, r)\n h1 = Identity(h0)\n h = Cast<to = 1>(h1)\n",
    "the sum read elsewhere, before and behind":
        "h0 = Add(x, r)\n a = Relu(h0)\n h = Identity(h0)\n b = Abs(h)\n q = Add(a, b)\n",
}  # fmt: skip


@pytest.mark.parametrize("target", FOLDED)
@pytest.mark.parametrize("between", BETWEEN)
def test_what_stands_between(between: str, target: Target) -> None:
    body, outputs = BETWEEN[between], "float[2,3,8] y, float[2,3,8] h"
    if "q" in body:
        outputs += ", float[2,3,8] q"
    source = model(body + norm("h", "y"), inputs=XR, outputs=outputs)
    report, proto = optimized(source, target)
    assert [site.op for site in report.fused] == [FOLDED[target]]
    assert "Add" not in ops(proto) or "q" in body
    assert report.headline() == "1 of 1 RMSNorm, 1 of 1 residual are one node"
    assert not report.unfolded
    check_same(source, proto)


REASONS: dict[str, tuple[str, str, str]] = {
    "unknown": ("h = Add(x, r)\n" + norm("h", "y"), "float[2,S,8] x, float[2,T,8] r",
                "its operands are not known to be of one shape"),
    "repeated": ("h = Add(x, r)\n" + norm("h", "y"), "float[2,3,8] x, float[1,3,8] r",
                 "one operand is repeated over the other"),
    "fewer axes": ("h = Add(r, x)\n" + norm("h", "y"), "float[2,S,8] x, float[S,8] r",
                   "one operand is repeated over the other"),
    "branch": ("h = Add(x, r)\n"
               "y = If (c) <then_branch = t () => (float[2,3,8] u) {" + norm("h", "u") + "},\n"
               "else_branch = f () => (float[2,3,8] v) { v = Abs(h) }>", XR + ", bool c",
               "the sum and the norm are in different graphs"),
}  # fmt: skip


@pytest.mark.parametrize("target", FOLDED)
@pytest.mark.parametrize("name", REASONS)
def test_every_miss_has_a_reason(name: str, target: Target) -> None:
    body, inputs, why = REASONS[name]
    source = model(body, inputs=inputs)
    report, _ = optimized(source, target)
    (kept,) = report.unfolded
    assert (kept.op, kept.reason, kept.kind) == ("Add", "residual-kept", "residual")
    assert kept.message == f"the residual Add is not folded: {why}"
    assert all((kept.found, kept.hint))
    assert report.headline() == "1 of 1 RMSNorm, 0 of 1 residual are one node"
    assert "residuals (1)" in to_text(report)
    assert why in to_html(report)


def test_a_sum_with_a_vector_is_no_residual() -> None:
    source = model("h = Add(x, r)\n" + norm("h", "y"), inputs="float[2,3,8] x, float[8] r")
    report, _ = optimized(source, "portable")
    assert (folded(report), report.unfolded) == (0, ())


@pytest.mark.parametrize("target", ALONE)
@pytest.mark.parametrize("first", ALONE)
def test_a_file_that_was_fused_without_its_residual(first: Target, target: Target) -> None:
    body = "h = Add(x, r)\n" + norm("h", "y") + norm("y", "z", "k")
    source = model(body, inputs=XR, outputs="float[2,3,8] z, float[2,3,8] h")
    before = rx.optimize(source, target=first, fold_residual=False)
    assert sorted(site.op for site in before.report.fused) == [ALONE[first]] * 2
    report, proto = optimized(onnx.load_from_string(before.to_bytes()), target)
    if target == "onnx":
        assert (folded(report), len(report.unfolded)) == (0, 1)
    else:
        assert (folded(report), report.unfolded) == (1, ())
        assert {FOLDED[target], ALONE[target]} <= set(ops(proto))
    assert len(report.fused) + len(report.kept) == 2
    assert (len(report.kept) > 0) == (first == target)
    check_same(source, proto)
    again, twice = optimized(proto, target)
    assert (len(again.fused), len(again.kept), folded(again)) == (0, 2, folded(report))
    assert ops(twice) == ops(proto)


def test_nodes_of_that_form_stay_where_the_residual_has_to() -> None:
    """The order of Gemma, in float16."""
    source = model(
        "h = Add(x, r)\n y = SimplifiedLayerNormalization<axis = -1, epsilon = 1e-5>(h, w)",
        inputs="float16[2,3,8] x, float16[2,3,8] r, float16[8] w",
        outputs="float16[2,3,8] y",
        constants="",
    )
    report = rx.optimize(source, target="ort").report
    assert (len(report.fused), len(report.kept), folded(report)) == (0, 1, 0)
    assert report.unfolded[0].found == "class upcast, reordered is allowed"
    looser = rx.optimize(source, target="ort", numerics="upcast").report
    assert (len(looser.fused), len(looser.kept), folded(looser)) == (1, 0, 1)
    shown = rx.inspect(source)
    assert (len(shown.kept), len(shown.unfolded)) == (1, 1)


def test_outputs_that_nobody_reads_are_not_written() -> None:
    """ONNX Runtime 1.16 to 1.18 give wrong numbers where the sum is an output that is not read."""
    last = "h = Add(x, r)\n" + norm("h", "y") + "q = Add(y, h)\n" + norm("q", "z", "k")
    source = model(last, inputs=XR, outputs="float[2,3,8] z")
    _, proto = optimized(source, "ort")
    outputs = [list(node.output) for node in proto.graph.node]
    assert outputs == [["y", "", "", "h"], ["z"]]
    proto.graph.node[1].output.extend(["", "", "unread"])
    _, again = optimized(proto, "ort")
    assert [list(node.output) for node in again.graph.node] == outputs
    check_same(source, again)


def test_sizes_without_a_name_are_not_known_to_be_the_same() -> None:
    assert same_where_added(("n", 8), ("n", 8))
    assert not same_where_added((None, 8), (None, 8))
