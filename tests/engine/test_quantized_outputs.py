"""A norm whose output is quantized is one kernel of TensorRT-RTX, in every form of the file.

So the rewrite leaves QuantizeLinear where it is unless it is told otherwise: the compiler takes it
into the kernel of the norm, written out, as RMSNormalization, behind a function and inside of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

import rmsnorm_export as rx
from rmsnorm_export.api import build_engine
from tests.rewrite.test_quantized_outputs import model

from .conftest import needs_rtx

BEHIND = {
    "int8": ("node_q", ".codes"),
    "fp8": ("node_q", ".codes"),
    "int8_per_row": ("node_rs", ".step"),
}
"""What makes the codes -> a node behind the norm, and that node in a function."""


@needs_rtx
@pytest.mark.parametrize("form", ["raw", "onnx", "portable", "folded"])
@pytest.mark.parametrize("how", BEHIND)
def test_it_is_in_the_kernel_of_the_norm(how: str, form: Any, tmp_path: Path) -> None:
    proto, path = model("float16", how), tmp_path / "model.onnx"
    for node in proto.graph.node:
        node.name = f"node_{node.output[0]}"
    onnx.save(proto, path)
    if form != "raw":
        folded = form == "folded"
        result = rx.optimize(path, target=None if folded else form, fold_quantize=folded)
        assert len(result.report.fused) == 1
        path = tmp_path / f"{form}.onnx"
        result.save(path)
    record = build_engine(path, tmp_path / "e.engine", dims="B=1,1,4;S=1,64,64").record
    (only,) = record.norms
    assert (only.how, only.kernels) == ("fused", 1), only.reason
    (kernel,) = (layer for layer in record.layers if layer.name in only.names)
    last, inner = BEHIND[how]
    assert any(node == last or inner in node for node in kernel.nodes)
