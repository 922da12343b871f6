"""``x / max(||x||, e) * sqrt(n) * g``: the norm of x-transformers, vit-pytorch and others."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import rmsnorm_export as rx
from rmsnorm_export.runtime.session import run_onnxruntime
from tests.recognize import text_models as text

N = 24
ROOT = N**0.5
DIVISORS = {
    "Max": "divisor = Max(length, bound)",
    "Clip": "divisor = Clip(length, bound)",
    "Expand": "clipped = Clip(length, bound)\n shape = Shape(x)\n divisor = Expand(clipped, shape)",
}
SCALES = {
    "root first": "n = Mul(unit, root)\n y = Mul(n, gamma)",
    "gain first": "n = Mul(unit, gamma)\n y = Mul(n, root)",
    "gain of an offset": "n = Mul(unit, root)\n g = Add(gamma, one)\n y = Mul(n, g)",
    "no gain": "y = Mul(unit, root)",
}


def normalize(divisor="Max", scale="root first"):
    """Return the graph itself, rows and all of its steps open."""
    gamma = ", ".join(map(str, np.linspace(0.5, 1.5, N)))
    return text.model(
        f"length = ReduceL2<axes = [-1], keepdims = 1>(x)\n {DIVISORS[divisor]}\n"
        f" unit = Div(x, divisor)\n {SCALES[scale]}",
        inputs=f"float[rows,{N}] x", outputs=f"float[rows,{N}] y",
        constants=f"float bound = {{1e-12}}, float root = {{{ROOT}}}, float one = {{1}}, "
        f"float[{N}] gamma = {{{gamma}}}",
    )  # fmt: skip


@pytest.mark.parametrize("scale", SCALES)
def test_the_packages_spellings_are_found_and_proved(scale):
    """As exporters write ``torch.nn.functional.normalize``."""
    model = normalize("Expand", scale)
    (site,) = rx.optimize(model, prove=True).report.fused
    attributes = {k: v for k, v in site.attributes.items() if (k, v) != ("scale_offset", 1.0)}
    assert (site.op, attributes) == ("RMSNorm_epsilon_clamp", {"epsilon_clamp": 1})
    assert site.epsilon == pytest.approx(1e-12 / ROOT, rel=1e-6)
    assert site.numerics == "reordered"
    assert any("Clip" in note for note in site.notes)
    (refusal,) = rx.optimize(model, target="ort", numerics="upcast").report.refused
    assert (refusal.reason, refusal.kind) == ("numerics", "norm")
    assert "unclamped" in refusal.hint
    for target in ("ort", "onnx"):
        (site,) = rx.optimize(model, target=target, numerics="unclamped", prove=True).report.fused
        assert site.numerics == "unclamped"
        assert "rows whose root mean square is between" in site.notes[-1]


def rows():
    """Return rows of every length: of zeros, far below the clamp, at it, above it."""
    lengths = [0.0, 1e-20, 1e-16, 0.5e-12, 0.999e-12, 1e-12, 1.001e-12, 2e-12, 1e-8, 1.0, 1e10]
    x = np.random.default_rng(0).standard_normal((len(lengths), N))
    x *= np.array(lengths)[:, None] / np.linalg.norm(x, axis=1, keepdims=True)
    return x.astype(np.float32)


def run(model, x):
    return run_onnxruntime(model, {"x": x})["y"]


@pytest.mark.parametrize(("divisor", "numerics"), [("Max", "exact"), ("Clip", "reordered")])
def test_rows_at_the_clamp_are_as_they_were(divisor, numerics):
    model, x = normalize(divisor), rows()
    result = rx.optimize(model, prove=True)
    assert [site.numerics for site in result.report.fused] == [numerics]
    expected = run(ir.serde.deserialize_model(model), x)
    np.testing.assert_allclose(run(result.model, x), expected, rtol=1e-6, atol=0)
    assert run(result.model, x[:0]).shape == (0, N)


@pytest.mark.parametrize("target", ["ort", "onnx"])
def test_unclamped_rows_differ_where_the_note_says_and_nowhere_else(target):
    model, x = normalize(), rows()
    before = run(rx.optimize(model).model, x)
    after = run(rx.optimize(model, target=target, numerics="unclamped").model, x)
    assert not np.isnan(after).any()
    loss = 1 - np.linalg.norm(after, axis=1)[1:] / np.linalg.norm(before, axis=1)[1:]
    near = np.array([False, False, True, True, True, True, True, False, False, False])
    assert (loss[near] > 0.01).all()
    assert (loss < 0.2930).all()
    assert (np.abs(loss[~near]) < 1e-6).all()


def mixed(body, output="float16"):
    """Return a model whose rows are float16, and part of which is computed in float32."""
    return text.model(
        f"small = CastLike(eps, x)\n {body}",
        inputs="float16[rows,64] x", outputs=f"{output}[rows,64] y",
        constants="float eps = {1e-5}, float root = {8.0}",
    )  # fmt: skip


@pytest.mark.parametrize(("numerics", "stash"), [("reordered", 10), ("upcast", 1)])
def test_in_float32_the_squares_of_small_halves_are_other_numbers(numerics, stash):
    """Where a clamp drops a rounding besides, what is computed in float32 is no less upcast."""
    model = mixed(
        "q = Mul(x, x)\n m = ReduceMean<axes = [-1]>(q)\n r = Sqrt(m)\n c = Clip(r, small)\n"
        " y = Div(x, c)"
    )
    result = rx.optimize(model, numerics=numerics, prove=True)
    (site,) = result.report.fused
    assert site.numerics == numerics
    (node,) = result.model.graph
    assert node.attributes.get_int("stash_type") == stash
    x = np.full((2, 64), 1e-4, np.float16)  # of which the square is 0 in float16
    models = (model, onnx.load_from_string(result.to_bytes()))
    before, after = (ReferenceEvaluator(m).run(None, {"x": x})[0] for m in models)
    assert np.array_equal(before, after) == (numerics == "reordered")


@pytest.mark.parametrize("last", ["e = Add(h, small)", "e = Max(h, small)"])
def test_a_root_that_was_rounded_is_not_inverted_in_half(last):
    """1 / 1e-5 is infinite in float16, where x / 1e-5 of a small x is a number."""
    model = mixed(
        "c = Cast<to = 1>(x)\n q = Mul(c, c)\n m = ReduceMean<axes = [-1]>(q)\n r = Sqrt(m)\n"
        f" h = Cast<to = 10>(r)\n {last}\n y = Div(x, e)"
    )
    result = rx.optimize(model, numerics="upcast", prove=True)
    assert [site.numerics for site in result.report.fused] == ["upcast"]
    x = np.zeros((2, 64), np.float16)
    x[1] = 6e-8
    assert np.isfinite(run(result.model, x)).all()


def test_a_row_of_length_one_that_meets_its_factor_in_float32_is_told_or_a_node():
    """No operator has x in float16 and y in float32, and yet this is a norm."""
    last = "u = Div(x, l)\n d = Cast<to = 1>(u)\n y = Mul(d, root)"
    plain = mixed(f"l = ReduceL2<axes = [-1]>(x)\n {last}", "float")
    assert [site.numerics for site in rx.optimize(plain, prove=True).report.fused] == ["exact"]
    wide = "c = Cast<to = 1>(x)\n k = ReduceL2<axes = [-1]>(c)\n l = Cast<to = 10>(k)"
    for numerics in ("reordered", "upcast"):
        report = rx.optimize(mixed(f"{wide}\n {last}", "float"), numerics=numerics).report
        assert [(r.kind, r.reason) for r in report.refused] == [("norm", "lossy-cast")]
