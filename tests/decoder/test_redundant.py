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
g ({inputs}) => ({out} y)
<int64[1] zero = {{0}}, int64[1] one = {{1}}, int32[1] one_32 = {{1}}, int32[1] two_32 = {{2}},
 int64[3] sizes = {{0, 2, 3}}, int64[3] parts = {{0, 3, 2}}, int64[2] ones = {{1, 1}},
 float least = {{-3.4e38}}, float endless = {{-inf}}, int64 three = {{3}},
 float[1, 1, 1] cube = {{2}}> {{
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
