"""Models for the engine tests, and the reason to skip those that build."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rmsnorm_export.system.packages import is_installed
from rmsnorm_export.tensorrt.engine.backends import RTX

RTX_INSTALLED = is_installed("tensorrt_rtx") and is_installed("polygraphy")
needs_rtx = pytest.mark.skipif(
    not RTX_INSTALLED, reason=f"builds engines with TensorRT-RTX and Polygraphy: {RTX.pip}"
)

N = 40


def model_of(
    *nodes: onnx.NodeProto,
    x: int = TensorProto.FLOAT,
    y: int | None = None,
    opset: int = 23,
    n: int = N,
    functions: tuple[onnx.FunctionProto, ...] = (),
) -> onnx.ModelProto:
    """``nodes`` from x [rows, n] to y; weights ``w`` of the type of x and ``w32`` of f32."""
    dtype = helper.tensor_dtype_to_np_dtype(x)
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", x, ["rows", n])],
        [helper.make_tensor_value_info("y", x if y is None else y, ["rows", n])],
        [
            numpy_helper.from_array(np.linspace(0.5, 1.5, n).astype(dtype), "w"),
            numpy_helper.from_array(np.linspace(0.5, 1.5, n).astype(np.float32), "w32"),
        ],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("other", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)


def norm(x: str = "x", y: str = "y", scale: str = "w", name: str = "norm") -> onnx.NodeProto:
    """An RMSNormalization."""
    return helper.make_node("RMSNormalization", [x, scale], [y], name=name, epsilon=1e-5)


SHAPES = f"x=1x{N},4x{N},128x{N}"


@pytest.fixture
def one_norm(tmp_path: Path) -> Path:
    """A file with one RMSNormalization."""
    path = tmp_path / "one.onnx"
    onnx.save(model_of(norm()), path)
    return path


@pytest.fixture
def tensorrt_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package ``tensorrt`` that is TensorRT-RTX under another name.

    It shows that the code for TensorRT runs against an interface of that shape, no more.
    """
    folder = tmp_path / "site" / "tensorrt"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(
        "import tensorrt_rtx as _rtx\n"
        "globals().update({k: getattr(_rtx, k) for k in dir(_rtx) if not k.startswith('__')})\n"
        "__version__ = '11.4.0.1'\n"
    )
    monkeypatch.syspath_prepend(str(folder.parent))
    sys.modules.pop("tensorrt", None)
    return folder
