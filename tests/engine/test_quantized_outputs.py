"""A norm whose output is quantized is one kernel of TensorRT-RTX, in every form of the file.

So the rewrite leaves QuantizeLinear where it is unless it is told otherwise: the compiler takes it
into the kernel of the norm, written out, as RMSNormalization, behind a function and inside of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

import rmsnorm_export as rx
from rmsnorm_export.tensorrt.engine.build import build_engine

from .conftest import needs_rtx

pytestmark = needs_rtx

NORM = """
 h = Add(x, r)
 c = Cast<to = 1>(h)
 sq = Pow(c, two)
 m = ReduceMean<keepdims = 1>(sq, axes)
 e = Add(m, eps)
 s = Sqrt(e)
 n = Div(c, s)
 t = Cast<to = 10>(n)
 y = Mul(t, w)
"""
STATIC = "q = QuantizeLinear(y, qs, qz)\n out = DequantizeLinear(q, qs, qz)"
ROWS = """
 f = Cast<to = 1>(y)
 a = Abs(f)
 top = ReduceMax<keepdims = 1>(a, axes)
 rs = Div(top, largest)
 d = Div(f, rs)
 i = Round(d)
 k = Clip(i, smallest, largest)
 q = Cast<to = 3>(k)
"""
BEHIND = {
    TensorProto.INT8: (STATIC, "float16[B,S,256] out", "node_q", ".codes"),
    TensorProto.FLOAT8E4M3FN: (STATIC, "float16[B,S,256] out", "node_q", ".codes"),
    None: (ROWS, "int8[B,S,256] q, float[B,S,1] rs", "node_rs", ".step"),
}
"""By the type of the codes; None: int8, a step for each row."""


def model(codes: int | None) -> onnx.ModelProto:
    body, outputs, *_ = BEHIND[codes]
    made = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 19]>\n'
        f"g (float16[B,S,256] x, float16[B,S,256] r) => ({outputs}, float16[B,S,256] h)\n"
        "<float two = {2}, float eps = {0.00001}, int64[1] axes = {-1}, float largest = {127},"
        f" float smallest = {{-127}}>\n{{ {NORM}\n{body} }}"
    )
    made.graph.initializer.extend(
        [
            numpy_helper.from_array(np.ones(256, np.float16), "w"),
            numpy_helper.from_array(np.array(0.05, np.float16), "qs"),
            helper.make_tensor("qz", codes or TensorProto.INT8, [], b"\0", raw=True),
        ]
    )
    for node in made.graph.node:
        node.name = f"node_{node.output[0]}"
    return made


@pytest.mark.parametrize("form", ["raw", "onnx", "portable", "folded"])
@pytest.mark.parametrize("codes", BEHIND)
def test_it_is_in_the_kernel_of_the_norm(codes: int | None, form: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(codes), path)
    if form != "raw":
        folded = form == "folded"
        result = rx.optimize(path, target=None if folded else form, fold_quantize=folded)
        assert len(result.report.fused) == 1
        path = tmp_path / f"{form}.onnx"
        result.save(path)
    sizes = ((1, 1, 256), (1, 64, 256), (4, 64, 256))
    record = build_engine(path, tmp_path / "e.engine", shapes={"x": sizes, "r": sizes}).record
    (only,) = record.norms
    assert (only.how, only.kernels) == ("fused", 1), only.reason
    (kernel,) = (layer for layer in record.layers if layer.name in only.names)
    *_, last, inner = BEHIND[codes]
    assert any(node == last or inner in node for node in kernel.nodes)
