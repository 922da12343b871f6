"""Heads that share keys: multiplied by these as they are, with the numbers that copies give."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from rmsnorm_export.decoder.grouped import group_heads

SHARED, WIDTH, PLACES = 3, 5, 7
VIEWS = {
    "[0, 1, 3, 2]": "turned = Transpose <perm = [0, 1, 3, 2]> (keys)",
    "through three axes": """
      flat = Reshape (keys, flat_sizes)
      back = Transpose <perm = [0, 2, 1]> (flat)
      turned = Reshape (back, turned_sizes)""",
}


def attention(group: int, view: str, axis: int = 2) -> ir.Model:
    """As transformers repeats keys and values, and PyTorch's exporters turn them."""
    heads, cache = SHARED * group, f"float[batch, {SHARED}, {PLACES}, {WIDTH}]"
    copied = f"{SHARED}, {group}" if axis == 2 else f"{group}, {SHARED}"
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g (float[batch, {heads}, rows, {WIDTH}] queries, {cache} k, {cache} v,
       float[rows, {PLACES}] mask)
      => (float[batch, {heads}, rows, {WIDTH}] y)
    <int64[1] axis = {{{axis}}}, float factor = {{0.25}}, int64[1] whole = {{{heads}}},
     int64[2] ways = {{{copied}}}, int64[2] sizes = {{{PLACES}, {WIDTH}}},
     int64[3] flat_sizes = {{-1, {PLACES}, {WIDTH}}},
     int64[4] turned_sizes = {{-1, {heads}, {WIDTH}, {PLACES}}}> {{
      batch = Shape <start = 0, end = 1> (k)
      wide = Concat <axis = 0> (batch, ways, sizes)
      four = Concat <axis = 0> (batch, whole, sizes)
      k_apart = Unsqueeze (k, axis)
      v_apart = Unsqueeze (v, axis)
      k_wide = Expand (k_apart, wide)
      v_wide = Expand (v_apart, wide)
      keys = Reshape (k_wide, four)
      values = Reshape (v_wide, four)
      {view}
      scaled = Mul (turned, factor)
      scores = MatMul (queries, scaled)
      masked = Add (scores, mask)
      shares = Softmax (masked)
      y = MatMul (shares, values)
    }}"""
    return ir.from_onnx_text(text)


def outputs(model: ir.Model, group: int, batch: int, rows: int) -> np.ndarray:
    rng = np.random.default_rng(batch)
    shapes = {
        "queries": (batch, SHARED * group, rows, WIDTH), "mask": (rows, PLACES),
        "k": (batch, SHARED, PLACES, WIDTH), "v": (batch, SHARED, PLACES, WIDTH),
    }  # fmt: skip
    feeds = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    return session.run(None, feeds)[0]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("group", [1, 2, 4])
def test_shared_heads_are_not_copied(view: str, group: int) -> None:
    before, after = attention(group, VIEWS[view]), attention(group, VIEWS[view])
    group_heads(after)
    assert not {"Expand", "Unsqueeze"} & {node.op_type for node in after.graph}
    for batch, rows in ((1, 1), (1, 6), (2, 3)):
        expected = outputs(before, group, batch, rows)
        np.testing.assert_allclose(outputs(after, group, batch, rows), expected, rtol=0, atol=1e-6)


def test_copies_in_another_order_stay() -> None:
    """All heads, and all of them again: the first ones share none with their neighbours."""
    model = attention(2, VIEWS["[0, 1, 3, 2]"], axis=1)
    group_heads(model)
    assert [node.op_type for node in model.graph].count("Expand") == 2
