"""Models for the engine tests, and the reason to skip those that build."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from rmsnorm_export.system.packages import is_installed
from rmsnorm_export.tensorrt.engine.backends import RTX

RTX_INSTALLED = is_installed("tensorrt_rtx") and is_installed("polygraphy")
needs_rtx = pytest.mark.skipif(
    not RTX_INSTALLED, reason=f"builds engines with TensorRT-RTX and Polygraphy: {RTX.pip}"
)

N = 40
SHAPES = f"x=1x{N},4x{N},128x{N}"
NORM = "[norm] y = RMSNormalization <epsilon = 0.00001> (x, w)"


def model_of(
    body: str = NORM,
    *,
    x: str = "float",
    y: str = "",
    n: int = N,
    inputs: tuple[str, ...] = ("x",),
    function: str = "",
) -> onnx.ModelProto:
    """From inputs [rows, n] of the type ``x`` to y; weights ``w`` of that type, ``w32`` of f32."""
    inputs_text = ", ".join(f'{x}[rows, {n}] "{name}"' for name in inputs)
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 23, "other" : 1, "rmsnorm_export" : 1]>'
        f" g ({inputs_text}) => ({y or x}[rows, {n}] y) {{ {body} }} {function}"
    )
    stored = helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    for name, dtype in (("w", stored), ("w32", np.float32)):
        weight = np.linspace(0.5, 1.5, n).astype(dtype)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    return model


@pytest.fixture
def one_norm(tmp_path: Path) -> Path:
    """A file with one RMSNormalization."""
    path = tmp_path / "one.onnx"
    onnx.save(model_of(), path)
    return path
