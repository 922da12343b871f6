"""Caches of fixed size: written where the new rows go, and in place where the caller binds so."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from rmsnorm_export.decoder.grouped import group_heads
from rmsnorm_export.decoder.rows import write_rows
from tests.tools.tables import table

ROOM, HEADS, WIDTH = 11, 3, 5
CACHE, NEW = f"float[batch, {HEADS}, {ROOM}, {WIDTH}]", f"float[batch, {HEADS}, tokens, {WIDTH}]"
WRITE = """
  {0}t = Transpose <perm = [2, 0, 1, 3]> ({1}_{0})
  {0}r = Transpose <perm = [2, 0, 1, 3]> (new_{0})
  {0}m = ScatterND ({0}t, column, {0}r)
  output_{0} = Transpose <perm = {2}> ({0}m)
"""


def decode(*, cached: bool = True, back: str = "[1, 2, 0, 3]") -> ir.Model:
    """As ``index_copy_`` of two tensors is exported; without ``cached`` into an empty cache."""
    names, source = ("keys", "values"), "input" if cached else "empty"
    body = "steps = Range (zero, count, one) places = Add (steps, start)\n"
    body += "column = Unsqueeze (places, last)\n"
    for name in names:
        body += f"empty_{name} = Mul (input_{name}, nothing)\n" if not cached else ""
        body += WRITE.format(name, source, back)
    inputs = ", ".join(f"{CACHE} input_{n}, {NEW} new_{n}" for n in names)
    outputs = ", ".join(f"float[a, b, c, d] output_{name}" for name in names)
    shapes = "int64[tokens, 1] column"
    shapes += "" if cached else "".join(f", {CACHE} empty_{name}" for name in names)
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g ({inputs}, int64 start, int64 count) => ({outputs})
    <int64 zero = {{0}}, int64 one = {{1}}, int64[1] last = {{-1}}, float nothing = {{0}}, {shapes}>
    {{ {body} }}"""
    return ir.from_onnx_text(text)


def session(model: ir.Model) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())


def feeds(tokens: int, start: int) -> dict[str, np.ndarray]:
    rng, sizes = np.random.default_rng(tokens), {"input": ROOM, "new": tokens}
    given = {
        f"{kind}_{name}": rng.standard_normal((2, HEADS, size, WIDTH), np.float32)
        for name in ("keys", "values")
        for kind, size in sizes.items()
    }
    return given | {"start": np.array(start), "count": np.array(tokens)}


@pytest.mark.parametrize("cached", [True, False])
def test_a_cache_is_written_without_being_turned(cached: bool) -> None:
    """Any number of tokens at any place."""
    before, after = decode(cached=cached), decode(cached=cached)
    assert write_rows(after) == 2
    onnx.checker.check_model(ir.to_proto(after), full_check=True)
    assert not any(node.op_type == "Transpose" for node in after.graph)
    raw, ours = session(before), session(after)
    for tokens, start in ((1, 0), (1, ROOM - 1), (4, 3), (ROOM, 0)):
        given = feeds(tokens, start)
        for one, other in zip(raw.run(None, given), ours.run(None, given), strict=True):
            np.testing.assert_array_equal(one, other)


def test_one_buffer_is_input_and_output() -> None:
    model = decode()
    write_rows(model)
    running, given = session(model), feeds(2, 4)
    expected = running.run(None, given)
    binding = running.io_binding()
    held = {name: onnxruntime.OrtValue.ortvalue_from_numpy(one) for name, one in given.items()}
    for name, value in held.items():
        binding.bind_ortvalue_input(name, value)
    for name in ("keys", "values"):
        binding.bind_ortvalue_output(f"output_{name}", held[f"input_{name}"])
    running.run_with_iobinding(binding)
    for name, one in zip(("keys", "values"), expected, strict=True):
        np.testing.assert_array_equal(held[f"input_{name}"].numpy(), one)


def test_what_is_no_write_into_a_cache_stays() -> None:
    model = decode(back="[1, 0, 2, 3]")
    text = ir.to_proto(model).SerializeToString()
    assert write_rows(model) == 0
    assert ir.to_proto(model).SerializeToString() == text


# Heads that share keys: multiplied by these as they are, with the numbers that copies give.

SHARED, PLACES = 3, 7
VIEWS = {
    "[0, 1, 3, 2]": "turned = Transpose <perm = [0, 1, 3, 2]> (keys)",
    "through three axes": """
      flat = Reshape (keys, flat_sizes)
      back = Transpose <perm = [0, 2, 1]> (flat)
      turned = Reshape (back, turned_sizes)""",
}


def attention(group: int, view: str, axis: int = 2) -> ir.Model:
    """As transformers repeats keys and values, and PyTorch's exporters turn them."""
    heads = SHARED * group
    copied = f"{SHARED}, {group}" if axis == 2 else f"{group}, {SHARED}"
    words = {"HEADS": heads, "COPIED": copied, "AXIS": axis, "VIEW": view}
    text = table(__file__)["shared"]
    for word, value in words.items():
        text = text.replace(word, str(value))
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
