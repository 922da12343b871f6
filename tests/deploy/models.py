"""Models and trees for the packaging tests."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("tritonclient") is None,
    reason="reads Triton's definitions: pip install '.[triton]'",
)
N = 40

Dims = Sequence[int | str | None]


def value(name: str, dtype: int, dims: Dims | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, dims)


def graph_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: dict[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(v, k) for k, v in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def norm_model(lead: Dims = ("batch",), scale: float = 1.0) -> onnx.ModelProto:
    """One RMSNormalization of x [*lead, 40]."""
    node = helper.make_node("RMSNormalization", ["x", "w"], ["y"], name="norm", epsilon=1e-5)
    weight = (np.linspace(0.5, 1.5, N) * scale).astype(np.float32)
    return graph_model(
        [node],
        [value("x", TensorProto.FLOAT, [*lead, N])],
        [value("y", TensorProto.FLOAT, [*lead, N])],
        {"w": weight},
    )


def decoder_model() -> onnx.ModelProto:
    """ids [batch, length] into a table of 11 rows, then a norm: logits [batch, length, 40]."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["h"]),
        helper.make_node("RMSNormalization", ["h", "w"], ["logits"], name="norm"),
    ]
    rng = np.random.default_rng(0)
    return graph_model(
        nodes,
        [value("ids", TensorProto.INT64, ["batch", "length"])],
        [value("logits", TensorProto.FLOAT, ["batch", "length", N])],
        {"table": rng.standard_normal((11, N), np.float32), "w": np.ones(N, np.float32)},
    )


def identity_model(dtype: int, dims: Dims | None = ("batch", 3)) -> onnx.ModelProto:
    node = helper.make_node("Identity", ["x"], ["y"], name="same")
    return graph_model([node], [value("x", dtype, dims)], [value("y", dtype, dims)])


def batch_mean_model() -> onnx.ModelProto:
    """Every answer holds the mean over the batch: shapes look like a batch and are none."""
    nodes = [
        helper.make_node("ReduceMean", ["x", "axes"], ["m"], keepdims=1),
        helper.make_node("Sub", ["x", "m"], ["y"]),
    ]
    shape = ["batch", N]
    return graph_model(
        nodes,
        [value("x", TensorProto.FLOAT, shape)],
        [value("y", TensorProto.FLOAT, shape)],
        {"axes": np.array([0], np.int64)},
    )


def save_external(model: onnx.ModelProto, path: Path, location: str) -> Path:
    """``model`` with every weight in ``location``."""
    path.parent.mkdir(exist_ok=True)
    (path.parent / location).parent.mkdir(exist_ok=True)
    onnx.save_model(model, path, save_as_external_data=True, location=location, size_threshold=0)
    return path


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder``, hidden ones included, with its content."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else b"folder"
        for path in sorted(folder.rglob("*"))
    }


def read_config(folder: Path) -> Any:
    """``config.pbtxt`` as Triton's own definition reads it; its package would import grpc."""
    from google.protobuf import text_format

    (place,) = importlib.util.find_spec("tritonclient").submodule_search_locations  # type: ignore[union-attr, misc]
    spec = importlib.util.spec_from_file_location(
        "model_config", f"{place}/grpc/model_config_pb2.py"
    )
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    with warnings.catch_warnings():  # "one major version older than the runtime" is fine
        warnings.simplefilter("ignore")
        spec.loader.exec_module(module)  # type: ignore[union-attr]
    return text_format.Parse((folder / "config.pbtxt").read_text(), module.ModelConfig())
