"""Sums of numbers that come back to their first term, as fusions write them, go from a graph."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.passes.common import ShapeInferencePass

from rmsnorm_export.rewrite.redundant import drop_redundant
from rmsnorm_export.runtime.session import open_session, run_session

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
    sessions = [open_session(ir.to_proto(m).SerializeToString()) for m in (before, after)]
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
