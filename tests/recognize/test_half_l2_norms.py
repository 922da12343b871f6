"""``x / ||x||`` in half types is one node with its own roundings; sqrt(n) and the scale follow."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch.nn.functional import normalize as unit_row

import rmsnorm_export as rx
from tests.recognize import text_models as text
from tests.recognize.exports import EXPORTERS, N, export
from tests.sample import crossed

ROOT = N**0.5
FORMULAS = {
    "scale last": (2, lambda x, p: unit_row(x, dim=-1) * ROOT * p.weight),
    "scale first": (2, lambda x, p: unit_row(x, dim=-1) * p.weight * ROOT),
    "clamped": (2, lambda x, _: x / x.norm(dim=-1, keepdim=True).clamp_min(1e-3) * ROOT),
    "inverse": (1, lambda x, p: x * (1 / x.norm(dim=-1, keepdim=True)) * ROOT * p.weight),
    "outside": (1, lambda x, p: x / (x.norm(dim=-1, keepdim=True) + 1e-3) * ROOT * p.weight),
    "in float32": (2, lambda x, p: unit_row(x.float(), dim=-1).to(x.dtype) * ROOT * p.weight),
}


def evaluated(model, feeds):
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, feeds)


def run(model, feeds):
    return text.run(model, feeds, optimized=True)


def hold_the_same_numbers(model, result, *runs, dtype=np.float16, image=False, shape=(2, 5, N)):
    """Bit for bit, on rows of zeros, tiny and huge ones, with an infinity and with a NaN."""
    x = np.random.default_rng(0).standard_normal(shape)
    x[0] *= np.array([1, 0, 1e-7, 3e3, 2e4])[:, None]
    x[1, ..., 0, 3], x[1, ..., 1, 5] = np.inf, np.nan
    x = np.moveaxis(x, -1, 1)[..., None] if image else x
    feeds = {model.graph.input[0].name: x.astype(dtype)}
    for each in runs:
        optimized = each(onnx.load_from_string(result.to_bytes()), feeds)
        for before, after in zip(each(model, feeds), optimized, strict=True):
            np.testing.assert_array_equal(after.astype(np.float32), before.astype(np.float32))


@crossed(3, formula=[*FORMULAS], exporter=[*EXPORTERS], dtype=[torch.float16, torch.bfloat16])
def test_pytorchs_spellings_are_one_exact_node(formula, exporter, dtype):
    unit_length, computed = FORMULAS[formula]
    model = export(computed, exporter, dtype=dtype)
    result = rx.optimize(model, prove=True)
    (site,) = result.report.fused
    assert (site.numerics, site.attributes["unit_length"]) == ("exact", unit_length)
    assert "stay nodes after it" in site.notes[0]
    half = dtype == torch.float16
    stored = np.float16 if half else ml_dtypes.bfloat16
    # With a clamp alone between the two ONNX Runtime rounds the length as it pleases.
    runs = [evaluated, run][: 1 + (half and formula != "clamped")]
    hold_the_same_numbers(model, result, *runs, dtype=stored)
    for target in ("ort", "onnx"):
        (refusal,) = rx.optimize(model, target=target).report.refused
        assert refusal.reason == ("epsilon-outside" if formula == "outside" else "numerics")
    if half and formula == "scale last":  # whose epsilon is 0
        (site,) = rx.optimize(model, target="ort", numerics="upcast").report.fused
        assert (site.numerics, "unit_length" in site.attributes) == ("upcast", False)


REDUCED = "l = ReduceL2<axes = [-1]>(x)\n c = Max(l, e)\n u = Div(x, c)"
SQUARES = "q = Mul(x, x)\n s = ReduceSum(q, axes)\n l = Sqrt(s)\n c = Clip(l, e)\n u = Div(x, c)"
LP = "u = LpNormalization<axis = -1, p = 2>(x)"
EXPANDED = "c = Clip(l, e)\n s = Shape(x)\n d = Expand(c, s)\n u = Div(x, d)"
SCALED = "v = Mul(u, r)\n y = Mul(v, g)"
WHOLE = f"e = Cast<to = 10>(eps)\n k = Constant<value_float = {ROOT}>()\n {REDUCED}"
FUNCTION = text.function("F", "(x) => (v)", WHOLE + "\n r = Cast<to = 10>(k)\n v = Mul(u, r)")


@pytest.mark.parametrize(
    ("unit", "behind", "opset", "reasons"), [
        ("l = ReduceL2<axes = [-1]>(x)\n" + EXPANDED, SCALED, 13, []),
        ("l = ReduceL2<axes = [2]>(x)\n" + EXPANDED, "y = Mul(u, r)", 17, []),
        ("l = ReduceL2(x, axes)\n" + EXPANDED, SCALED, 20, []),
        ("l = ReduceL2<axes = [1]>(x)\n" + EXPANDED, SCALED, 17, []),
        ("v = my.F(x)", "y = Mul(v, g)", 17, []),
        (LP, SCALED, 17, []),
        # Of two norms with one unit row the first has it.
        (REDUCED, SCALED + "\n z = Mul(u, r)", 17, ["numerics"]),
        (SQUARES, SCALED, 17, ["numerics"]),
        (REDUCED, "y = Identity(u)", 17, ["not-the-mean"]),
    ],
)  # fmt: skip
def test_wherever_it_stands(unit, behind, opset, reasons):
    image = "axes = [1]" in unit
    shape, scale = (f"2,{N},5,1", f"{N},1,1") if image else (f"2,5,{N}", f"{N}")
    model = text.model(
        f"e = Cast<to = 10>(b)\n r = Cast<to = 10>(t)\n g = Cast<to = 10>(w)\n{unit}\n{behind}",
        inputs=f"float16[{shape}] x",
        outputs=", ".join(f"float16[{shape}] {name}" for name in ("yz" if "z" in behind else "y")),
        constants=f"float b = {{1e-4}}, float t = {{{ROOT}}}, int64[1] axes = {{-1}}, "
        f"float[{scale}] w = {{{', '.join(map(str, np.linspace(0.5, 1.5, N)))}}}",
        opset=opset, imports=', "my" : 1', functions=FUNCTION,
    )  # fmt: skip
    fused = not reasons or "z" in behind
    for target in ("portable", "plain"):
        result = rx.optimize(model, target=target, prove=True)
        assert [site.numerics for site in result.report.fused] == ["exact"] * fused
        assert [refusal.reason for refusal in result.report.refused] == reasons
        # The evaluator computes all of LpNormalization in float16, where the squares overflow.
        hold_the_same_numbers(model, result, *[run, evaluated][: 1 + (unit != LP)], image=image)
        again = rx.optimize(onnx.load_from_string(result.to_bytes()), target=target).report
        assert len((*again.kept, *again.fused)) == fused
