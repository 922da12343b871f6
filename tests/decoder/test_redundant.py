"""Sums that come back to their first term, sizes, and masks as numbers take fewer nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.passes.common import ShapeInferencePass

from rmsnorm_export.decoder.redundant import drop_redundant
from rmsnorm_export.runtime.session import load_session, run_session
from tests.tools.tables import table

_LONG, _INT = np.iinfo(np.int64), np.iinfo(np.int32)
_TEXT = """<ir_version: 9, opset_import: ["" : 18]>
g ({inputs}) => ({out} y)
<int64[1] zero = {{0}}, int64[1] one = {{1}}, int32[1] one_32 = {{1}}, int32[1] two_32 = {{2}},
 int64[3] sizes = {{0, 2, 3}}, int64[3] parts = {{0, 3, 2}}, int64[2] ones = {{1, 1}},
 float least = {{-3.4e38}}, float endless = {{-inf}}, int64 three = {{3}},
 float[1, 1, 1] cube = {{2}}, int64[n] places, bool[batch, n] both> {{
  {lines}
}}"""


def before_and_after(lines: str, inputs: str, out: str) -> tuple[ir.Model, ir.Model]:
    before = ir.from_onnx_text(_TEXT.format(lines=lines, inputs=inputs, out=out))
    ShapeInferencePass()(before)
    after = before.clone()
    drop_redundant(after)
    return before, after


def check_same(models: tuple[ir.Model, ir.Model], *every: dict[str, np.ndarray]) -> None:
    sessions = [load_session(ir.to_proto(m).SerializeToString()) for m in models]
    for feeds in every:
        first, second = (run_session(session, feeds)["y"] for session in sessions)
        assert (first.dtype, first.shape) == (second.dtype, second.shape)
        assert first.tobytes() == second.tobytes()


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph if node.op_type != "Constant"]


TABLE: dict[str, Any] = table(__file__)
SUMS, ALIKE, FEWER, KEPT = (TABLE[name] for name in ("sums", "alike", "fewer", "kept"))


def summed(kind: str, lines: str) -> tuple[ir.Model, ir.Model]:
    """The models, of which the one before has been compared with the one after."""
    narrow = "to = 6" in lines or (kind == "int32[1]" and "to = 7" not in lines)
    lines += "\n many = Expand (z, size) \n y = Identity (many)"
    out = f"int{32 if narrow else 64}[n]"
    models = before_and_after(lines, f"{kind} x, int64[1] size", out)
    value = models[0].graph.inputs[0]
    ends, shape = (_INT if value.dtype == 6 else _LONG), value.shape
    sizes = [d if isinstance(d, int) else 3 for d in shape]
    numbers = (0, 5, -1, _INT.max, _INT.min, ends.max, ends.min)
    every = [{"x": np.full(sizes, n, ends.dtype), "size": np.array([3])} for n in numbers]
    check_same(models, *every)
    return models


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_that_comes_back_goes(name: str) -> None:
    _, after = summed(*SUMS[name])
    assert operators(after) in (["Cast", "Expand", "Identity"], ["Expand", "Identity"])


@pytest.mark.parametrize("name", ALIKE)
def test_what_looks_alike_is_kept(name: str) -> None:
    before, after = summed(*ALIKE[name])
    assert operators(after) == operators(before)


def named(out: str, lines: str) -> tuple[ir.Model, ir.Model]:
    models = before_and_after(lines, "float[batch, 6] x, bool[batch, n] mask", out)
    x, mask = np.arange(-6, 6, dtype=np.float32).reshape(2, 6), [[1, 0, 1], [0, 0, 1]]
    check_same(models, {"x": x, "mask": np.array(mask, bool)})
    return models


@pytest.mark.parametrize("name", FEWER)
def test_sizes_and_masks_take_fewer_nodes(name: str) -> None:
    out, lines, left = FEWER[name]
    _, after = named(out, lines)
    assert operators(after) == left


@pytest.mark.parametrize("name", KEPT)
def test_other_sizes_and_masks_are_kept(name: str) -> None:
    kind = "int64" if "Shape" in KEPT[name] else "float"
    before, after = named(f"{kind}[]", KEPT[name])
    assert operators(after) == operators(before)


def test_an_older_opset_is_left_alone() -> None:
    lines = "a = Sin (x) \n b = Reshape (a, parts) \n y = Identity (b)"
    text = _TEXT.format(lines=lines, inputs="float[batch, 6] x", out="float[batch, 3, 2]")
    model = ir.from_onnx_text(text.replace('"" : 18', '"" : 14'))
    drop_redundant(model)
    assert operators(model) == ["Sin", "Reshape", "Identity"]
