"""Models and trees for the packaging tests."""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, numpy_helper

import rmsnorm_export as rx
from rmsnorm_export.deploy.result import RECORD, read_record
from tests.cli.conftest import model

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


# Pipeline files for the tests, and what must hold of a folder after whatever happened to a run.

FACTORY = """
import torch

def make(n=40, depth=2):
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(n, n), torch.nn.RMSNorm(n)) for _ in range(depth)]
    return torch.nn.Sequential(*layers)
"""

TABLES = {
    "model": '[model]\npath = "three.onnx"',
    "export": '[export]\nsource = "factory:make"\nshapes = "input=float32[batch=1..8,40]"',
    "optimize": '[optimize]\nrequire = "all"',
    "proved": '[optimize]\nrequire = "all"\nprove = true',
    "build": '[build]\nbackend = "tensorrt-rtx"\nshapes = "x=1x40,4x40,8x40"',
    "verify": "[verify]",
    "bench": '[bench]\ntarget = ["portable"]\nseconds = 0.02\nshapes = "x=4x40"\nthreads = 1',
    "package": "[package]\nmax_batch = 8",
}


def write(folder: Path, *tables: str, name: str = "net") -> Path:
    """A pipeline file with these tables, text or of ``TABLES``, beside a model and a factory."""
    if not (folder / "three.onnx").exists():
        onnx.save(model(3), folder / "three.onnx")
        (folder / "factory.py").write_text(FACTORY)
    path = folder / "pipeline.toml"
    texts = [TABLES.get(table, table) for table in tables]
    path.write_text("\n".join([f'[pipeline]\nname = "{name}"\nfolder = "out"', *texts, ""]))
    return path


def states(deployment: rx.Deployment) -> dict[str, str]:
    """Step -> state."""
    return {step.name: step.state for step in deployment.steps}


def ran(deployment: rx.Deployment) -> list[str]:
    """The steps that ran."""
    return [step.name for step in deployment.steps if step.state == "done"]


def assert_consistent(folder: Path) -> None:
    """Every step is there whole or not at all."""
    for step in folder.iterdir():
        if not step.is_dir() or step.name.startswith(".") or step.name == "repository":
            continue
        record = read_record(step)
        assert record is not None, f"{step.name} has no record"
        assert record.name == step.name
        own = {name for name in record.outputs if not name.startswith("..")}
        if step.name != "package":  # the repository may be a step further than the record
            assert own == {*record.outputs}
            assert all((step / name).is_file() for name in own)
        own |= {RECORD, *(Path(name).parent.as_posix() for name in own)}
        assert {p.relative_to(step).as_posix() for p in step.rglob("*")} <= own


def document(folder: Path) -> dict[str, Any]:
    """``deploy.json``."""
    loaded: dict[str, Any] = json.loads((folder / "deploy.json").read_text())
    return loaded
