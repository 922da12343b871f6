"""Right rewrites whose proof needs more than the nodes of the site, and those that have none."""

from __future__ import annotations

import itertools
from typing import Any

import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import rmsnorm_export as rx
from proof import sites
from rmsnorm_export.errors import InputError
from rmsnorm_export.op.spec import FLOAT
from rmsnorm_export.proof.feeds import Layout
from rmsnorm_export.proof.site import Proving
from rmsnorm_export.recognize.scan import recognize

CORE = "\n" + sites.CONSTANTS + sites.CORE

HEAD = '<ir_version: 10, opset_import: ["" : 18{}]>\n'
HALF = "main (float16[B, S, 64] x) => (float16[B, S, 64] y)"

ROUNDED = "  xf = Cast <to = 1> (down)" + CORE.format(row="xf") + "  y = CastLike (v, x)\n}"
CAST_UP_AND_DOWN = HEAD.format("") + HALF + "{\n  up = Cast <to = 1> (x)\n"
CAST_UP_AND_DOWN += "  down = Cast <to = 10> (up)\n" + ROUNDED
IN_A_FUNCTION = (
    HEAD.format(', "local" : 1') + HALF + "{ y = local.Block (x) }\n"
    '<domain: "local", opset_import: ["" : 18]>\nBlock (x) => (y) {\n'
    "  up = Cast <to = 1> (x)\n  doubled = Add (up, up)\n  down = CastLike (doubled, x)\n" + ROUNDED
)


def grouped(inputs: str, front: str, declared: str = "") -> str:
    """A norm of groups of 16, with a gain over the whole row of 64."""
    main = f"main ({inputs}, float[64] w) => (float y) {declared} {{\n{front}\n"
    body = "  g = Reshape (h, parts)" + CORE.format(row="g") + "  back = Reshape (v, whole)\n"
    return HEAD.format("") + main + body + "  y = Mul (w, back)\n}"


REST = """
  rest = Constant <value_ints = [4, 16]> ()
  n = Constant <value_ints = [64]> ()
  parts = Concat <axis = 0> (lead, rest)
  whole = Concat <axis = 0> (lead, n)"""
LEAD = "  a2 = Constant <value_ints = [2]> ()\n  a8 = Constant <value_ints = [8]> ()\n"
COMPUTED_SHAPE = grouped(
    "float[2, 8, 64] x", f"{LEAD}  lead = Concat <axis = 0> (a2, a8){REST}\n  h = Mul (x, x)"
)
SHAPE_OF_AN_INPUT = grouped(
    "int64[batch, sequence] ids, float[32, 64] table",
    f"  lead = Shape (ids){REST}\n  h = Gather (table, ids)",
)
SHAPE_IS_AN_INPUT = grouped(
    "float[batch, sequence, 64] x, int64[4] parts, int64[3] whole",
    "  h = Neg (x)",
    "<float[batch, sequence, 4, 16] g, float[batch, sequence, 64] back>",
)


def optimized(text: str, **options: Any) -> rx.Report:
    model = onnx.parser.parse_model(text)
    return rx.optimize(model, numerics="upcast", **options).report


EVERYWHERE = (CAST_UP_AND_DOWN, IN_A_FUNCTION, COMPUTED_SHAPE)


NATIVE = '<ir_version: 10, opset_import: ["" : 23]>\n'
ROW_OF_ONES = (
    NATIVE
    + """main (float[B, S, 64] h) => (float[B, S, 64] y) {
  shape = Shape (h)
  x = ConstantOfShape <value = float[1] {1.0}> (shape)
  y = RMSNormalization <axis = -1> (x, x)
}"""
)


@pytest.mark.parametrize(
    ("text", "target"),
    # The other targets want to know the size of a group before there is anything to prove.
    [(SHAPE_OF_AN_INPUT, "portable"), (ROW_OF_ONES, "portable"), (ROW_OF_ONES, "ort"),
     *itertools.product(EVERYWHERE, ("portable", "onnx", "ort"))],
)  # fmt: skip
def test_what_a_cut_needs_comes_with_it(text: str, target: Any) -> None:
    report = optimized(text, target=target, prove=True)
    assert len(report.fused) == 1, report.refused
    proof = report.fused[0].proof
    assert (proof.passed, bool(proof.compared)) == (True, True)


def test_what_cannot_be_run_by_itself_is_no_failed_proof() -> None:
    assert optimized(SHAPE_IS_AN_INPUT).fused
    (refused,) = optimized(SHAPE_IS_AN_INPUT, prove=True).refused
    assert (refused.reason, refused.kind) == ("not-provable", "norm")
    assert "'whole', an input" in refused.found


EMPTY_ROWS = NATIVE + "main (float[B, S, 0] x, float[0] w) => (float[B, S, 0] y) {"
EMPTY_ROWS += " y = RMSNormalization <axis = -1> (x, w) }"
NO_ROWS = """<ir_version: 9, opset_import: ["" : 19]>
main (float[0, 3, 8] x, float[8] w) => (float[0, 3, 8] y)
<float two = {2}, int64[1] axes = {-1}, float epsilon = {0.00001}, int64[3] shape = {-1, 3, 1}> {
  p = Pow (x, two)
  mean = ReduceMean <keepdims = 1> (p, axes)
  m = Reshape (mean, shape)
TAIL
}""".replace("TAIL", sites.TAIL)


@pytest.mark.parametrize(
    ("text", "reason", "target"),
    [(EMPTY_ROWS, "not-provable", "portable"), (NO_ROWS, "not-provable", "portable")],
)  # fmt: skip
def test_odd_rows_are_no_failed_proof(text: str, reason: str, target: Any) -> None:
    """Rows of no elements; no rows, as a Reshape stores it."""
    refused = optimized(text, target=target, prove=True).refused
    assert [(r.reason, r.kind) for r in refused] == [(reason, "norm")]


ROW = HEAD.format("") + "main (float[B, S, 64] x) => (float[B, S, 64] y) {"
CLAMPED = ROW + CORE.format(row="x").replace("Add (m, epsilon)", "Max (m, epsilon)")
CLAMPED += "  y = Identity (v)\n}"
GATED_BY_ITS_SQUARE = ROW + CORE.format(row="x") + "  g = Sigmoid (p)\n  y = Mul (v, g)\n}"


@pytest.mark.parametrize("epsilon", ["0.00000011920928955078125", "0.000001"])
def test_the_root_of_a_clamp_is_a_rounded_number(epsilon: str) -> None:
    """2**-23 is one of float32, its root is not."""
    (site,) = optimized(CLAMPED.replace("0.000001", epsilon), prove=True).fused
    assert site.attributes["epsilon_clamp"] == 1
    assert site.proof.passed


def test_a_gate_on_the_way_to_the_root_is_not_chosen_apart_from_x() -> None:
    (site,) = optimized(GATED_BY_ITS_SQUARE).fused
    assert site.op == "GatedRMSNorm"
    (refused,) = optimized(GATED_BY_ITS_SQUARE, prove=True).refused
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
