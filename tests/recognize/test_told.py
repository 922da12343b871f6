"""A square, a mean and a root that divide a row are fused, or there is a refusal that says why."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

import rmsnorm_export as rx
from rmsnorm_export.recognize import scan
from rmsnorm_export.recognize.context import FLOATS, widens
from tests.recognize import text_models as text
from tests.tools.tables import table

CONSTANTS = "T two = {2}, T eps = {0.00001}"
CASES: dict[str, dict[str, Any]] = table(__file__)
TYPED = [(name, dtype) for name, case in CASES.items() for dtype in case.get("types", ["float"])]


@pytest.mark.parametrize(("name", "dtype"), TYPED)
def test_a_norm_is_fused_or_refused_for_its_reason(name: str, dtype: str) -> None:
    parts = {"inputs": "T[B,S,8] x", "outputs": "T[B,S,8] y", "constants": CONSTANTS}
    texts = {part: CASES[name].get(part, usual) for part, usual in parts.items()}
    typed = {part: re.sub(r"\bT\b", dtype, text_) for part, text_ in texts.items()}
    source = text.model(CASES[name]["nodes"], **typed, opset=CASES[name].get("opset", 17))
    result = rx.optimize(source, numerics="upcast", prove=True)
    reasons = CASES[name]["reasons"]
    assert [refusal.reason for refusal in result.report.refused] == reasons
    assert len(result.report.fused) == (not reasons)
    if "kind" in CASES[name]:
        assert [refusal.kind for refusal in result.report.refused] == [CASES[name]["kind"]]
    if not reasons and not CASES[name].get("rounded"):
        text.check_same(source, ir.to_proto(result.model))


def test_a_length_that_divides_no_row_is_no_norm_whatever_its_axis() -> None:
    """Global response normalisation: x times its length over the mean of all lengths."""
    source = text.model(
        "l = ReduceL2<axes = [1]>(x)\n m = ReduceMean<axes = [-1]>(l)\n d = Div(l, m)\n "
        "y = Mul(x, d)"
    )
    (refusal,) = rx.optimize(source).report.refused
    assert (refusal.kind, refusal.reason) == ("look-alike", "no-normalised-row")


def test_a_centred_row_is_that_of_a_layer_norm_where_it_is_chosen() -> None:
    """jax2onnx makes a row of equal elements 0, whatever its mean was rounded to."""
    source = text.model(
        "mean = ReduceMean<axes = [-1]>(x)\n c = Sub(x, mean)\n "
        "least = ReduceMin<axes = [-1]>(x)\n most = ReduceMax<axes = [-1]>(x)\n "
        "same = Equal(least, most)\n "
        f"zero = Constant<value_float = 0.0>()\n z = Where(same, zero, c)\n {text.norm('z', 'y')}"
    )
    (refusal,) = rx.optimize(source, numerics="upcast").report.refused
    assert (refusal.kind, refusal.reason) == ("look-alike", "layer-norm")


def test_a_size_that_only_inference_names_is_no_number() -> None:
    """As optimum-cli writes positions: how long a text is, of an embedding without a shape."""
    source = text.model(
        "found = Gather(table, ids)\n shape = Shape(found)\n length = Gather(shape, one)\n "
        f"end = Add(length, one)\n {text.norm('x', 'y', weight=None)}",
        inputs="float[9,8] table, int64[B,tokens] ids, float[B,S,8] x",
        outputs="float[B,S,8] y, int64 end", constants=f"{text.CONSTANTS}, int64 one = {{1}}",
    )  # fmt: skip
    report = rx.inspect(source)
    assert (len(report.fused), report.refused) == (1, ())


def test_an_error_of_ours_costs_no_norm_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in one transfer function: the norm that needs it is found by what it computes."""

    def failing(*_: object) -> None:
        raise IndexError("tuple index out of range")

    monkeypatch.setitem(scan._STANDARD, "Reciprocal", failing)
    inverse = text.norm("x", "u").replace("n = Div(x, s)", "r = Reciprocal(s)\n n = Mul(x, r)")
    source = text.model(
        inverse + text.norm("x", "v", "p"), outputs="float[B,S,8] u, float[B,S,8] v"
    )
    report = rx.optimize(source).report
    assert [site.n for site in report.fused] == [8, 8]
    (refusal,) = [r for r in report.refused if r.reason == "recognition-failed"]
    assert (refusal.kind, refusal.op) == ("norm", "Reciprocal")
    assert refusal.found == "IndexError: tuple index out of range"


# Nodes that keep the numbers and the shape of a value lose no norm, wherever they stand; their
# look-alikes are not taken for them.


@pytest.mark.parametrize("to", FLOATS, ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_a_type_is_wider_where_it_has_every_number_of_the_other(source, to) -> None:
    """Of half types every number is tried; of wider ones the ends, and the number above 1."""
    own = source.numpy()
    info = ml_dtypes.finfo(own)
    numbers = np.array([info.max, info.tiny, 1 + info.eps], own)
    if source.bitwidth == 16:
        numbers = np.arange(1 << 16, dtype=np.uint16).view(own)
    with np.errstate(all="ignore"):
        back = numbers.astype(to.numpy()).astype(own)
        is_kept = np.array_equal(back.astype(float), numbers.astype(float), equal_nan=True)
    assert widens(source, to) == is_kept
