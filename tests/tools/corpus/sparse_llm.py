"""A decoder of any size whose weights are holes in one sparse file: large, yet nothing on disk."""

from __future__ import annotations

import math
from pathlib import Path

import onnx

# f32 inside, rounded to bf16, then scaled: the LLaMA order.
_NORM = """
  "{name}.wide" = Cast <to = 1> ("{x}")
  "{name}.square" = Pow ("{name}.wide", two)
  "{name}.mean" = ReduceMean <keepdims = 1> ("{name}.square", axes)
  "{name}.stable" = Add ("{name}.mean", epsilon)
  "{name}.root" = Sqrt ("{name}.stable")
  "{name}.inverse" = Reciprocal ("{name}.root")
  "{name}.normal" = Mul ("{name}.wide", "{name}.inverse")
  "{name}.narrow" = Cast <to = 16> ("{name}.normal")
  "{name}" = Mul ("{name}.weight", "{name}.narrow")"""

_ATTENTION = """
  "{at}.q" = MatMul ("{at}.input_norm", "{at}.q.weight")
  "{at}.o" = MatMul ("{at}.q", "{at}.o.weight")
  "{at}.middle" = Add ("{x}", "{at}.o")"""

_FEED_FORWARD = """
  "{at}.gate" = MatMul ("{at}.post_norm", "{at}.gate.weight")
  "{at}.up" = MatMul ("{at}.post_norm", "{at}.up.weight")
  "{at}.sigmoid" = Sigmoid ("{at}.gate")
  "{at}.silu" = Mul ("{at}.gate", "{at}.sigmoid")
  "{at}.product" = Mul ("{at}.silu", "{at}.up")
  "{at}.down" = MatMul ("{at}.product", "{at}.down.weight")
  "{at}.out" = Add ("{at}.middle", "{at}.down")"""


def make_sparse_llm(
    folder: Path, layers: int = 126, hidden: int = 16384, intermediate: int = 53248
) -> Path:
    """Write a bf16 decoder with ``2 * layers + 1`` RMSNorms in the TorchDynamo spelling.

    The defaults have the layers and widths of a 405-billion-parameter model; its 795 GB of external
    weights are one file of ``truncate``, gains included, at increasing offsets.

    Returns:
        The path of the model file.
    """
    text, x, shapes = "", "x", {"norm.weight": [hidden]}
    for index in range(layers):
        at = f"layers.{index}"
        text += _NORM.format(name=f"{at}.input_norm", x=x) + _ATTENTION.format(at=at, x=x)
        text += _NORM.format(name=f"{at}.post_norm", x=f"{at}.middle") + _FEED_FORWARD.format(at=at)
        x = f"{at}.out"
        shapes |= {f"{at}.{name}.weight": [hidden] for name in ("input_norm", "post_norm")}
        shapes |= {f"{at}.{name}.weight": [hidden, hidden] for name in ("q", "o")}
        shapes |= {f"{at}.{name}.weight": [hidden, intermediate] for name in ("gate", "up")}
        shapes |= {f"{at}.down.weight": [intermediate, hidden]}
    row = f"bfloat16[batch, sequence, {hidden}]"
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 18]> decoder ({row} x) => ({row} norm)'
        "<float two = {2}, int64[1] axes = {-1}, float epsilon = {0.00001}>"
        f"{{ {text} {_NORM.format(name='norm', x=x)} }}"
    )
    offset = 0
    for name, dims in shapes.items():
        tensor = model.graph.initializer.add(name=name, data_type=16, dims=dims, data_location=1)
        place = {"location": "llm.data", "offset": offset, "length": 2 * math.prod(dims)}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        offset += 2 * math.prod(dims)
    with (folder / "llm.data").open("wb") as file:
        file.truncate(offset)
    for node in model.graph.node:
        node.name = node.output[0]
    onnx.save(onnx.shape_inference.infer_shapes(model), folder / "llm.onnx")
    return folder / "llm.onnx"
