"""The Add in front of a norm: folded, counted in the headline, and never left without a reason."""

from __future__ import annotations

import pytest
from recognize.text_models import model, norm, optimized

from rmsnorm_export.lower.targets import Target
from rmsnorm_export.recognize.finish import same_where_added
from rmsnorm_export.show import to_html, to_text

XR = "float[2,3,8] x, float[2,3,8] r"
FOLDED = {"portable": "SkipRMSNorm", "ort": "SkipSimplifiedLayerNormalization"}
REASONS: dict[str, tuple[str, str, str]] = {
    "unknown": ("h = Add(x, r)\n" + norm("h", "y"), "float[2,S,8] x, float[2,T,8] r",
                "its operands are not known to be of one shape"),
    "repeated": ("h = Add(x, r)\n" + norm("h", "y"), "float[2,3,8] x, float[1,3,8] r",
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


def test_sizes_without_a_name_are_not_known_to_be_the_same() -> None:
    assert same_where_added(("n", 8), ("n", 8))
    assert not same_where_added((None, 8), (None, 8))
