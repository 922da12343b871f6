"""Weights in blocks: those of a GGUF keep their values, and an embedding shares the head's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import rmsnorm_export as rx
from rmsnorm_export.quantize.blocks import in_blocks
from rmsnorm_export.quantize.result import Quantize
from rmsnorm_export.runtime.session import load_session, run_session

pytest.importorskip("onnxscript")

TIED = """
<ir_version: 9, opset_import: ["": 20]>
g (int64[tokens] ids) => (float[tokens, 200] y, float[tokens, 128] x) {
  x = Gather(table, ids)
  turned = Transpose<perm = [1, 0]>(table)
  y = MatMul(x, turned)
}
"""


def as_gguf(name: str, rows: int, columns: int) -> Any:
    """Weights as they are read from a GGUF: by the definition of each of its types.

    Q4_0 and Q8_0: d * q, of 4 or 8 signed bits; Q4_1: d * q + m, of 4 bits; d and m are float16.
    """
    weight = np.random.default_rng(3).standard_normal((rows, columns // 32, 32)).astype("f")
    least, most = weight.min(-1, keepdims=True), weight.max(-1, keepdims=True)
    extreme = np.where(-least > most, least, most)
    step = {"Q4_0": extreme / -8, "Q4_1": (most - least) / 15, "Q8_0": abs(extreme) / 127}[name]
    d, m = (array.astype(np.float16).astype("f") for array in (step, least))
    if name == "Q4_1":
        return (d * np.clip(np.rint((weight - m) / d), 0, 15) + m).reshape(rows, columns)
    lowest, highest = {"Q4_0": (-8, 7), "Q8_0": (-127, 127)}[name]
    return (d * np.clip(np.rint(weight / d), lowest, highest)).reshape(rows, columns)


def product(weight: Any, opset: int = 20) -> onnx.ModelProto:
    """A product by a weight that is stored as PyTorch stores it."""
    text = f"""<ir_version: 9, opset_import: ["": {opset}]>
    g (float[tokens, {weight.shape[1]}] x) => (float[tokens, {weight.shape[0]}] y) {{
      y = Gemm<transB = 1>(x, weight, bias)
    }}"""
    model = onnx.parser.parse_model(text)
    stored = {"weight": weight, "bias": np.arange(len(weight), dtype="f")}
    for name, array in stored.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize(("name", "bits"), [("Q4_0", 4), ("Q8_0", 8)])
@pytest.mark.parametrize(("rows", "columns"), [(3, 32), (111, 192)])
def test_blocks_of_a_gguf_keep_their_values_bit_for_bit(
    name: str, bits: int, rows: int, columns: int
) -> None:
    weight = as_gguf(name, rows, columns)
    blocks = in_blocks(weight, bits, offsets=True)
    assert blocks.offsets is None
    assert np.array_equal(blocks.values().reshape(weight.shape), weight)


@pytest.mark.parametrize("unused", [0, 3])
def test_a_grid_that_begins_anywhere_keeps_its_codes(unused: int) -> None:
    """Q4_1; a K-quant need not use all codes."""
    weight = as_gguf("Q4_1", 65, 192)
    least = weight.reshape(65, 6, 32).min(-1, keepdims=True)
    step = (weight.reshape(65, 6, 32).max(-1, keepdims=True) - least) / 15
    if unused:
        kept = np.minimum(weight.reshape(65, 6, 32), least + (15 - unused) * step)
        weight = kept.reshape(weight.shape)
    blocks = in_blocks(weight, 4, offsets=True)
    assert blocks.offsets is not None
    assert np.abs(blocks.values().reshape(weight.shape) - weight).max() < 1e-5 * step.max()
    assert np.abs(blocks.offsets / blocks.scales).max() < 0.51


def test_weights_of_no_grid_are_rounded() -> None:
    weight = np.random.default_rng(0).standard_normal((65, 192)).astype("f")
    for bits, off in ((4, 0.4), (8, 0.03)):
        blocks = in_blocks(weight, bits, offsets=True)
        assert blocks.offsets is None
        assert 0 < np.abs(blocks.values().reshape(weight.shape) - weight).max() < off


@pytest.mark.parametrize(
    ("columns", "is_ranked", "opset"),
    [(64, True, 20), (1056, True, 7), (1056, False, 20), (64, False, 12)],
)
def test_offsets_stand_in_the_product(columns: int, is_ranked: bool, opset: int) -> None:
    """As many blocks as fill no block of offsets, and more; ONNX Runtime rounds x to 8 bits."""
    weight = as_gguf("Q4_1", 72, columns)
    source = product(weight, opset)
    if not is_ranked:
        source.graph.input[0].type.tensor_type.ClearField("shape")
    result = rx.optimize(source, quantize="int4")
    x = np.random.default_rng(1).standard_normal((5, columns)).astype("f")
    y = run_session(load_session(result.to_bytes()), {"x": x})["y"]
    exact = x @ weight.T + np.arange(72)
    rounded = in_blocks(weight, 4, offsets=False).values().reshape(weight.shape)
    loss, other = (np.sqrt(np.mean(d**2)) for d in (y - exact, x @ (rounded - weight).T))
    assert 0 < loss < other / 3


@pytest.mark.parametrize("kind", ["int4", "int8"])
@pytest.mark.parametrize("copied", [False, True])
def test_an_embedding_shares_the_blocks_of_the_head(kind: Quantize, copied: bool) -> None:
    table = np.random.default_rng(0).standard_normal((200, 128)).astype("f")
    model = onnx.parser.parse_model(TIED)
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    if copied:  # as some exporters store a head: once more, turned
        del model.graph.node[1]
        model.graph.initializer.append(numpy_helper.from_array(table.T.copy(), "turned"))
    result = rx.optimize(model, quantize=kind)
    quantized = result.report.quantized
    assert quantized is not None
    assert quantized.bytes_after < {"int4": 0.16, "int8": 0.28}[kind] * table.nbytes
    names = [node.op_type for node in result.model.graph]
    assert names == ["Reshape", "GatherBlockQuantized", "MatMulNBits"]
    outputs = run_session(load_session(result.to_bytes()), {"ids": np.array([0, 7, 199])})
    blocks = in_blocks(table, int(kind[3:]), offsets=False)
    assert np.array_equal(outputs["x"], blocks.values().reshape(table.shape)[[0, 7, 199]])


def test_products_in_a_row_read_each_other() -> None:
    """Of grids that begin anywhere, with sums of what the product before computes."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 20]>
    g (float[tokens, 64] x) => (float[tokens, 64] y) {
      a = MatMul(x, first)
      b = MatMul(a, second)
      y = MatMul(b, first)
    }""")
    for name in ("first", "second"):
        weight = as_gguf("Q4_1", 64, 64).T.copy()
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    result = rx.optimize(model, quantize="int4")
    names = [node.op_type for node in result.model.graph]
    assert (names.count("MatMulNBits"), names.count("ReduceSum")) == (3, 3)
    assert result.report.quantized is not None
    assert result.report.quantized.problem == ""
