"""What differs where a number overflows or is subnormal: classes say it, proofs look there."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import rmsnorm_export as rx
from proof.sites import CORE, NORM, PLAIN, TAIL, one_node, prove, site, source, written
from rmsnorm_export.op.dtypes import numpy_dtype
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT16, NormSpec
from rmsnorm_export.runtime.session import run_onnxruntime
from tests.sample import crossed
from tests.tools.tables import table

TARGETS = ("portable", "onnx", "ort")

BODIES: dict[str, str] = {
    "plain": PLAIN,
    **table(__file__),
}


def optimized(model: ir.Model, **options: Any) -> rx.Result:
    return rx.optimize(ir.serde.serialize_model(model), **options)


@crossed(
    2,
    target=TARGETS,
    case=[
        ("plain", 1e-6, "exact"), ("plain", 0.0, "exact"), ("plain", 1e-42, "exact"),
        ("x first", 1e-6, "reordered"), ("x first, divided", 1e-6, "reordered"),
        ("inverse first", 1e-6, "reordered"), ("scaled squares", 1e-6, "reordered"),
        ("a length", 1e-6, "reordered"), ("inverted before its root", 1e-6, "exact"),
        ("inverted before its root", 0.0, "reordered"),
    ],
)  # fmt: skip
def test_classes(case: tuple[str, float, str], target: Any) -> None:
    body, epsilon, numerics = case
    model = source(BODIES[body], epsilon=epsilon)
    (site,) = optimized(model, target=target, prove=True).report.fused
    assert site.numerics == numerics
    assert site.proof.passed
    strict = optimized(model, target=target, numerics="exact").report
    if numerics == "exact":
        assert len(strict.fused) == 1
        return
    assert [refusal.reason for refusal in strict.refused] == ["numerics"]
    assert "allow --numerics reordered" in strict.refused[0].hint
    assert any("overflows or vanishes" in note for note in site.notes)


@pytest.mark.parametrize(
    ("body", "epsilon", "words"),
    [("x first", 1e-6, "with a weight of every size"),
     ("x first, divided", 1e-6, "with a weight of every size"),
     ("inverse first", 1e-6, "NaN or infinity"),
     ("inverted before its root", 0.0, "NaN or infinity"), ("scaled squares", 0.0, "distance")],
)  # fmt: skip
def test_a_proof_sees_that_they_are_not_exact(body: str, epsilon: float, words: str) -> None:
    epsilon = float(np.float32(epsilon))
    match = site(BODIES[body], NormSpec(epsilon=epsilon), epsilon=epsilon)
    proof = prove(match, one_node(match, NORM.replace("0.000001", f"{epsilon:.9f}")))
    assert not proof.passed
    assert proof.compared
    assert words in proof.reason


@crossed(3, epsilon=[1e-6, 1e-20, 1e-38, 1e-42, 0.0], target=TARGETS)
def test_subnormal_rows_and_epsilons_are_tried(epsilon: float, target: Any) -> None:
    report = optimized(source(PLAIN, epsilon=epsilon), target=target, prove=True).report
    proof = report.fused[0].proof
    assert proof.passed
    assert {"denormal", "smallest", "zeros", "no rows"} <= set(proof.cases)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("opset", [13, 14, 17])
def test_no_rows_in_no_rows_out(opset: int, target: Any) -> None:
    """Groups are cut and joined: a Reshape takes a size of 0 for that of its input."""
    model = ir.from_onnx_text(BODIES["groups"].replace("OPSET", str(opset)))
    result = optimized(model, target=target, prove=True)
    w = np.ones(16, np.float32)
    for lead in ((2, 3), (0, 3), (2, 0), (0, 0)):
        x = np.ones((*lead, 16), np.float32)
        sides = (model, result.model)
        before, after = (run_onnxruntime(side, {"x": x, "w": w})["y"] for side in sides)
        assert before.shape == after.shape == x.shape
        np.testing.assert_allclose(after, before, rtol=1e-6)


@pytest.mark.parametrize("body", ["plain", "a dropped axis"])
def test_a_proof_tries_no_rows(body: str) -> None:
    """Nodes that are right on every row, and wrong where there is none."""
    match = site(BODIES[body])
    new = "  c = Constant <value_ints = [-1, 96]> ()\n  k = Shape (x)\n  d = {norm} (x, w)\n"
    new += "  flat = Reshape (d, c)\n  y = Reshape (flat, k)"
    proof = prove(match, written(match, new))
    assert not proof.passed
    assert proof.reason.startswith("no rows: x of shape")


def test_axes_that_the_file_fixes_are_never_without_rows() -> None:
    """Of x without rows the Reshape makes three in each of none; of this x there always are."""
    proof = (
        optimized(ir.from_onnx_text(BODIES["fixed axes"]), target="portable", prove=True)
        .report.fused[0]
        .proof
    )
    assert proof.passed, proof.reason
    assert "no rows" not in proof.cases


def test_no_rows_of_which_a_part_counts() -> None:
    """ONNX Runtime's mean over a tensor without elements is as long as the part: it fits no row."""
    extra = ", int64[1] start = {0}, int64[1] end = {24}"
    model = optimized(source(BODIES["a part of a row"], extra=extra), prove=True).model
    for shape in ((2, 3, 96), (0, 3, 96), (2, 0, 96)):
        feeds = {"x": np.ones(shape, np.float32), "w": np.ones(96, np.float32)}
        assert run_onnxruntime(model, feeds)["y"].shape == shape


def test_the_epsilon_of_a_rounded_count() -> None:
    """The sum times 1/48 in bfloat16: a row far below epsilon is divided by its root as before."""
    body = "  kf = Constant <value_float = 0.0208333> ()\n  k = Cast <to = 16> (kf)\n"
    body += "  p = Mul (x, x)\n  t = ReduceSum (p, axes)\n  m = Mul (t, k)\n"
    model = source(body + TAIL, n=48, epsilon=1e-5, dtype=BFLOAT16, stash=BFLOAT16)
    (site,) = optimized(model, numerics="upcast").report.fused
    assert site.epsilon == float(np.float32(1e-5).astype(numpy_dtype(BFLOAT16)))


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_a_rounding_to_float32_is_not_one_to_a_half_type(target: Any) -> None:
    """1 / rms of a float64 row, rounded to float32: infinite for a row of subnormal numbers."""
    body = "  p = Mul (xf, xf)\n  m = ReduceMean (p, axes)\n  s = Sqrt (m)\n"
    body += "  r = Reciprocal (s)\n  rf = Cast <to = 1> (r)\n  y = Mul (x, rf)\n"
    model = source("  xf = Cast <to = 11> (x)\n" + body, stash=DOUBLE, inputs=("x",), row="x")
    report = optimized(model, target=target).report
    assert [refusal.reason for refusal in report.refused] == ["numerics"]


@pytest.mark.parametrize(("body", "inputs"), [("a dropped axis", "xw"), ("a gated row", "xzw")])
def test_right_rewrites_pass_at_the_edges(body: str, inputs: str) -> None:
    """ONNX Runtime does not reduce what has no elements; a gate makes a subnormal row smaller."""
    model = source(BODIES[body], inputs=inputs)
    for seed in range(3):
        report = optimized(model, prove=True, seed=seed).report
        assert len(report.fused) == 1, report.refused


@pytest.mark.parametrize(("epsilon", "numerics"), [(2.332e-10, "reordered"), (2.329e-10, "upcast")])
def test_the_inverse_of_a_row_of_zeros_overflows_from_some_epsilon_on(
    epsilon: float, numerics: str
) -> None:
    """65504, the largest float16, to the power of -2 is 2.3306e-10."""
    body = CORE.partition("  v =")[0] + "  h = Cast <to = 10> (r)\n  y = Mul (x, h)\n"
    model = source(body, dtype=FLOAT16, epsilon=epsilon, inputs=["x"])
    (site,) = optimized(model, target="ort", numerics="upcast", prove=True).report.fused
    assert site.numerics == numerics


@pytest.mark.parametrize(("epsilon", "numerics"), [(2.939e-39, "exact"), (2.938e-39, "reordered")])
def test_an_inverse_of_the_mean_square_overflows_from_some_epsilon_on(
    epsilon: float, numerics: str
) -> None:
    """The inverse of the largest float32 is 2.9387e-39."""
    model = source(BODIES["inverted before its root"], epsilon=epsilon)
    (site,) = optimized(model).report.fused
    assert site.numerics == numerics
