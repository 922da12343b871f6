"""Queries, keys and values as one product: the numbers of three, where these are alike."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from rmsnorm_export.quantize.packed import pack_attentions

HEADS, SHARED, WIDTH, INPUTS = 4, 2, 16, 64
COLUMNS = {"q": HEADS * WIDTH, "k": SHARED * WIDTH, "v": SHARED * WIDTH}
ROTATED = """
  qr = com.microsoft.RotaryEmbedding <num_heads = 4> (q, places, cos, sin)
  kr = com.microsoft.RotaryEmbedding <num_heads = 2> (k, places, cos, sin)"""


def attention(*, rotated: bool, level_of_keys: int = 4) -> ir.Model:
    """Three products of blocks with zero points, and the attention that takes them."""
    products = "".join(
        f"{name} = com.microsoft.MatMulNBits <K = {INPUTS}, N = {columns}, bits = 4, "
        f"block_size = 32, accuracy_level = {level_of_keys if name == 'k' else 4}>"
        f"(x, {name}_codes, {name}_scales, {name}_zeros)\n"
        for name, columns in COLUMNS.items()
    )
    taken = "qr, kr" if rotated else "q, k"
    cache = f"float[1, {SHARED}, tokens, {WIDTH}]"
    text = f"""<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
    g (float[1, rows, {INPUTS}] x, int64[1, rows] places, {cache} pk, {cache} pv, int32[1] last,
       int32 total)
      => (float[1, rows, {HEADS * WIDTH}] y, {cache} keys, {cache} values) {{
      {products} {ROTATED if rotated else ""}
      y, keys, values = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2>
        ({taken}, v, pk, pv, last, total)
    }}"""
    model, rng = ir.from_onnx_text(text), np.random.default_rng(0)
    blocks = INPUTS // 32
    stored = {
        "cos": np.cos(rng.random((9, WIDTH // 2))),
        "sin": np.sin(rng.random((9, WIDTH // 2))),
    }
    for name, columns in COLUMNS.items():
        stored[f"{name}_codes"] = rng.integers(0, 256, (columns, blocks, 16))
        stored[f"{name}_zeros"] = rng.integers(0, 256, (columns, -(-blocks // 2)))
        stored[f"{name}_scales"] = rng.standard_normal((columns, blocks))
    uses = {value.name: value for node in model.graph for value in node.inputs if value is not None}
    for name in stored.keys() & uses.keys():
        whole = name.endswith(("codes", "zeros"))
        array = stored[name].astype(np.uint8 if whole else np.float32)
        uses[name].const_value = ir.tensor(array, name=name)
        model.graph.register_initializer(uses[name])
    return model


def outputs(model: ir.Model) -> list[np.ndarray]:
    rng, past = np.random.default_rng(1), 3
    cache = (1, SHARED, past, WIDTH)
    feeds = {
        "x": rng.standard_normal((1, 1, INPUTS), np.float32), "places": np.array([[past]]),
        "pk": rng.standard_normal(cache, np.float32), "pv": rng.standard_normal(cache, np.float32),
        "last": np.array([past], np.int32), "total": np.array(past + 1, np.int32),
    }  # fmt: skip
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    taken = {value.name for value in session.get_inputs()}
    return list(session.run(None, {name: one for name, one in feeds.items() if name in taken}))


@pytest.mark.parametrize("rotated", [False, True])
def test_one_product_gives_what_three_give(rotated: bool) -> None:
    before, after = attention(rotated=rotated), attention(rotated=rotated)
    pack_attentions(after)
    names = [node.op_type for node in after.graph]
    assert (names.count("MatMulNBits"), names.count("Split")) == (1, int(rotated))
    for one, other in zip(outputs(after), outputs(before), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_products_that_round_otherwise_stay() -> None:
    model = attention(rotated=False, level_of_keys=0)
    pack_attentions(model)
    assert [node.op_type for node in model.graph].count("MatMulNBits") == 3
