"""Models and trees for the packaging tests."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, numpy_helper

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("tritonclient") is None,
    reason="reads Triton's definitions: pip install '.[triton]'",
)
N = 40

Dims = Sequence[int | str | None]


def parsed(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    """A graph as text, with weights."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 23]> g {text}')
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in weights.items())
    return model


def model_of(
    body: str, dims: Dims, dtype: int = TensorProto.FLOAT, **weights: np.ndarray
) -> onnx.ModelProto:
    """``body`` from x to y, both of one type and shape."""
    sizes = ",".join("?" if size is None else str(size) for size in dims)
    kind = TensorProto.DataType.Name(dtype).lower() + (f"[{sizes}]" if dims else "")
    return parsed(f"({kind} x) => ({kind} y) {{ {body} }}", **weights)


def norm(lead: Dims = ("batch",), scale: float = 1.0) -> onnx.ModelProto:
    """One RMSNormalization of x [*lead, 40]."""
    weight = (np.linspace(0.5, 1.5, N) * scale).astype(np.float32)
    return model_of("y = RMSNormalization<epsilon = 0.00001>(x, w)", (*lead, N), w=weight)


def decoder() -> onnx.ModelProto:
    """ids [batch, length] into a table of 11 rows, then a norm: logits [batch, length, 40]."""
    return parsed(
        f"(int64[batch,length] ids) => (float[batch,length,{N}] logits)"
        "{ h = Gather(table, ids) logits = RMSNormalization(h, w) }",
        table=np.random.default_rng(0).standard_normal((11, N), np.float32),
        w=np.ones(N, np.float32),
    )


def identity(dtype: int, dims: Dims = ("batch", 3)) -> onnx.ModelProto:
    return model_of("y = Identity(x)", dims, dtype)


def batch_mean() -> onnx.ModelProto:
    """Every answer holds the mean over the batch: shapes look like a batch and are none."""
    body = "m = ReduceMean<keepdims = 1>(x, axes) y = Sub(x, m)"
    return model_of(body, ("batch", N), axes=np.array([0], np.int64))


def save_external(model: onnx.ModelProto, path: Path, location: str) -> Path:
    """``model`` with every weight in ``location``."""
    (path.parent / location).parent.mkdir(parents=True, exist_ok=True)
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
