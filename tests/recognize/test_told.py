"""A square, a mean and a root that divide a row are fused, or there is a refusal that says why:
beside operators of other domains and attributes of a caller, too."""

from __future__ import annotations

import pytest

import rmsnorm_export as rx
from rmsnorm_export.recognize import scan

from .text_models import function, model, norm, optimized

MY = ', "my" : 1'


def test_a_namesake_does_not_tell_shapes() -> None:
    """my::Relu transposes: with the shape rule of Relu the Add would seem to keep its shape."""
    source = model(
        "h = my.Relu(x)\n t = my.Relu(h)\n a = Add(t, r)\n" + norm("a", "y"),
        inputs="float[2,8,1] x, float[2,1,8] r",
        outputs="float[2,8,8] y",
        imports=MY,
        functions=function("Relu", "(a) => (b)", "b = Transpose<perm = [0, 2, 1]>(a)"),
    )
    report, _ = optimized(source, "portable")
    assert [site.op for site in report.fused] == ["RMSNorm"]


def test_the_length_of_a_whole_tensor_is_not_that_of_a_row() -> None:
    """x / ||x|| over all axes, which PyTorch flattens first: no norm that lacks a row length."""
    source = model(
        "v = Reshape(x, flat)\n l = ReduceL2<keepdims = 0>(v)\n y = Div(x, l)",
        constants="int64[1] flat = {-1}",
    )
    (refusal,) = rx.optimize(source).report.refused
    assert (refusal.kind, refusal.reason) == ("look-alike", "different-numerator")


def test_an_error_of_ours_costs_no_norm_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in one transfer function: the norm that needs it is found by what it computes."""

    def failing(*_: object) -> None:
        raise IndexError("tuple index out of range")

    monkeypatch.setitem(scan._STANDARD, "Reciprocal", failing)
    inverse = norm("x", "u").replace("n = Div(x, s)", "r = Reciprocal(s)\n n = Mul(x, r)")
    source = model(inverse + norm("x", "v", "p"), outputs="float[B,S,8] u, float[B,S,8] v")
    report = rx.optimize(source).report
    assert [site.n for site in report.fused] == [8, 8]
    (refusal,) = [r for r in report.refused if r.reason == "recognition-failed"]
    assert (refusal.kind, refusal.op) == ("norm", "Reciprocal")
    assert refusal.found == "IndexError: tuple index out of range"
