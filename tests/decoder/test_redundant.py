"""Sums that come back to their first term, sizes, and masks as numbers take fewer nodes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.passes.common import ShapeInferencePass

from rmsnorm_export.decoder.redundant import drop_redundant
from rmsnorm_export.runtime.session import load_session, run_session

_LONG, _INT = np.iinfo(np.int64), np.iinfo(np.int32)
_TEXT = """<ir_version: 9, opset_import: ["" : 18]>
g ({kind} x, int64[1] size) => ({out}[n] y)
<int64[1] zero = {{0}}, int64[1] one = {{1}}, int32[1] one_32 = {{1}}, int32[1] two_32 = {{2}}> {{
  {lines}
  many = Expand (z, size)
  y = Identity (many)
}}"""

_LESS = "c = Cast <to = 6> (b) \n z = Sub (c, one_32)"
SUMS = {
    "as transformers counts": ("int64", f"a = Add (zero, x) \n b = Add (a, one) \n {_LESS}"),
    "with a lookup": (
        "int64[1]",
        f"a = Gather (x, zero) \n b = Add (one, a) \n {_LESS}",
    ),
    "of 32 bits": ("int32[1]", "a = Sub (x, one_32) \n z = Add (a, one_32)"),
    "of nothing": ("int64[1]", "z = Add (x, zero)"),
}
ALIKE = {
    "another sum": ("int64[1]", "b = Add (x, one) \n c = Cast <to = 6> (b) \n z = Sub (c, two_32)"),
    "taken from a constant": ("int64[1]", "a = Sub (one, x) \n z = Sub (a, one)"),
    "more bits": ("int32[1]", "a = Sub (x, one_32) \n b = Cast <to = 7> (a) \n z = Add (b, one)"),
    "several numbers": ("int64[n]", "z = Add (x, zero)"),
    "the second of two": ("int64[2]", "z = Gather (x, one)"),
    "the first of two": ("int64[2]", "a = Gather (x, zero) \n z = Add (a, one)"),
}


def _before_and_after(kind: str, lines: str) -> tuple[ir.Model, ir.Model]:
    out = (
        "int32" if "to = 6" in lines or (kind == "int32[1]" and "to = 7" not in lines) else "int64"
    )
    before = ir.from_onnx_text(_TEXT.format(kind=kind, lines=lines, out=out))
    ShapeInferencePass()(before)
    after = before.clone()
    drop_redundant(after)
    return before, after


def _check_same(before: ir.Model, after: ir.Model) -> None:
    sessions = [load_session(ir.to_proto(m).SerializeToString()) for m in (before, after)]
    (value, _), ends = before.graph.inputs, (_INT if before.graph.inputs[0].dtype == 6 else _LONG)
    sizes = [d if isinstance(d, int) else 3 for d in value.shape]
    for number in (0, 5, -1, _INT.max, _INT.min, ends.max, ends.min):
        array = np.full(sizes, number, ends.dtype)
        feeds = {"x": array, "size": np.array([3])}
        first, second = (run_session(session, feeds)["y"] for session in sessions)
        assert first.dtype == second.dtype
        assert first.tolist() == second.tolist()


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_that_comes_back_goes(name: str) -> None:
    before, after = _before_and_after(*SUMS[name])
    assert [node.op_type for node in after.graph] in (
        ["Cast", "Expand", "Identity"],
        ["Expand", "Identity"],
    )
    _check_same(before, after)


@pytest.mark.parametrize("name", ALIKE)
def test_what_looks_alike_is_kept(name: str) -> None:
    before, after = _before_and_after(*ALIKE[name])
    assert [n.op_type for n in after.graph] == [n.op_type for n in before.graph]
    _check_same(before, after)


_NAMED = """<ir_version: 9, opset_import: ["" : 18]>
g (float[batch, 6] x, bool[batch, n] mask) => ({out} y)
<int64[3] sizes = {{0, 2, 3}}, int64[3] parts = {{0, 3, 2}},
 int64[1] one = {{1}}, int64[2] ones = {{1, 1}}, float least = {{-3.4e38}},
 float endless = {{-inf}}, int64 three = {{3}}, float[1, 1, 1] cube = {{2}}> {{
  {lines}
}}"""
_ROWS = "a = Relu (x) \n b = Reshape (a, sizes) \n"
FEWER = {
    "a size of a view": (
        "int64[1]",
        f"{_ROWS} c = Shape <start = 0, end = 1> (b) \n y = Identity (c)",
        ["Shape", "Identity"],
    ),
    "a size times one": (
        "int64[1]",
        f"{_ROWS} c = Shape <start = 0, end = 1> (b) \n d = Mul (one, c) \n y = Identity (d)",
        ["Shape", "Identity"],
    ),
    "a mask": (
        "float[batch, n]",
        "a = Cast <to = 1> (mask) \n b = Mul (a, least) \n y = Identity (b)",
        ["Where", "Identity"],
    ),
    "a mask that is turned": (
        "float[batch, n]",
        "a = Not (mask) \n b = Cast <to = 1> (a) \n c = Mul (least, b) \n y = Identity (c)",
        ["Not", "Where", "Identity"],  # ONNX Runtime's Where loses the sign of a zero in front
    ),
    "views of a sine and a cosine": (
        "float[batch, 3, 2]",
        "a = Sin (x) \n b = Reshape (a, parts) \n c = Cos (x) \n d = Reshape (c, parts) \n"
        "y = Add (b, d)",
        ["Reshape", "Sin", "Cos", "Add"],
    ),
    "a mask of whole numbers": (
        "int64[batch, n]",
        "a = Cast <to = 7> (mask) \n b = Mul (three, a) \n y = Identity (b)",
        ["Where", "Identity"],
    ),
}
KEPT = {
    "a size that is computed": "a = NonZero (x) \n y = Shape <start = 1, end = 2> (a)",
    "two sizes": f"{_ROWS} c = Shape <end = 2> (b) \n y = Identity (c)",
    "a sine that is read as it is, too": (
        "a = Sin (x) \n b = Reshape (a, parts) \n c = ReduceSum (b) \n d = ReduceSum (a) \n"
        "y = Add (c, d)"
    ),
    "more elements": "a = Shape <end = 1> (x) \n b = Mul (a, ones) \n y = Identity (b)",
    "zero times infinity": "a = Cast <to = 1> (mask) \n b = Mul (a, endless) \n y = Identity (b)",
    "a higher rank": "a = Cast <to = 1> (mask) \n b = Mul (a, cube) \n y = Identity (b)",
    "a number": "a = Cast <to = 1> (x) \n b = Mul (a, least) \n y = Identity (b)",
}


def _named(out: str, lines: str) -> tuple[ir.Model, ir.Model]:
    before = ir.from_onnx_text(_NAMED.format(out=out, lines=lines))
    ShapeInferencePass()(before)
    after = before.clone()
    drop_redundant(after)
    sessions = [load_session(ir.to_proto(m).SerializeToString()) for m in (before, after)]
    feeds = {"x": np.arange(-6, 6, dtype=np.float32).reshape(2, 6)}
    feeds["mask"] = np.array([[True, False, True], [False, False, True]])
    first, second = (run_session(session, feeds)["y"] for session in sessions)
    assert (first.dtype, first.shape, first.tobytes()) == (
        second.dtype,
        second.shape,
        second.tobytes(),
    )
    return before, after


@pytest.mark.parametrize("name", FEWER)
def test_sizes_and_masks_take_fewer_nodes(name: str) -> None:
    out, lines, operators = FEWER[name]
    _, after = _named(out, lines)
    assert [node.op_type for node in after.graph if node.op_type != "Constant"] == operators


@pytest.mark.parametrize("name", KEPT)
def test_other_sizes_and_masks_are_kept(name: str) -> None:
    kind = "int64" if "Shape" in KEPT[name] else "float"
    before, after = _named(f"{kind}[]", KEPT[name])
    assert [n.op_type for n in after.graph] == [n.op_type for n in before.graph]


def test_an_older_opset_is_left_alone() -> None:
    text = _NAMED.replace('"" : 18', '"" : 14').format(
        out="float[batch, 3, 2]", lines="a = Sin (x) \n b = Reshape (a, parts) \n y = Identity (b)"
    )
    model = ir.from_onnx_text(text)
    drop_redundant(model)
    assert [node.op_type for node in model.graph] == ["Sin", "Reshape", "Identity"]
