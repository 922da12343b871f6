"""Small networks, their conversions, and how far these are off."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import rmsnorm_export as rx
from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.precision.result import Kept, Precision
from rmsnorm_export.runtime.session import load_session
from tests.tools.tables import table

ROWS = 16
TARGETS = ("portable", "onnx", "ort", "plain")
BODIES: dict[str, str] = table(__file__)


def parsed(body: str, io: str, weights: Mapping[str, Any], opset: int = 17) -> onnx.ModelProto:
    """A model with these stored tensors; ``io`` are its inputs and outputs."""
    body = re.sub(r"NORM (\w+) (\w+)", _norm, body)
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : {opset}]> g {io} {{ {body} }}'
    )
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


def _norm(named: re.Match[str]) -> str:
    return BODIES["norm"].replace("P_in", named[2]).replace("P_", f"{named[1]}_")


def weight(*shape: int, seed: int = 0, size: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * size / np.sqrt(shape[0])).astype(np.float32)


def network(stream: float = 1.0) -> onnx.ModelProto:
    """Two residual blocks with norms and attention; ``stream`` scales what is added first."""
    own = {"first": weight(1, ROWS), "stream": np.float32(stream), "least": np.float32(1e-6)}
    own |= {f"w{name}": weight(ROWS, ROWS, seed=i) for i, name in enumerate("qouy")}
    own["scale"] = np.linspace(0.5, 1.5, ROWS, dtype=np.float32)
    return parsed(BODIES["blocks"], f"(float[n, {ROWS}] x) => (float[n, {ROWS}] y)", own)


def converted(model: onnx.ModelProto, **options: Any) -> tuple[ir.Model, Precision, bytes]:
    """The new model, what is told of it, and its bytes."""
    result = rx.optimize(model, **{"dtype": "f16", **options})
    precision = result.report.precision
    assert precision is not None
    assert precision.compared
    return result.model, precision, result.to_bytes()


def run(model: bytes | onnx.ModelProto, feeds: Mapping[str, Any], *, optimize: bool = True) -> Any:
    content = model if isinstance(model, bytes) else model.SerializeToString()
    return load_session(content, optimize=optimize).run(None, dict(feeds))


def x_of(*shape: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(7).standard_normal(shape).astype(np.float32)}


def step_by_step(content: bytes, feeds: Mapping[str, Any]) -> Any:
    """The outputs where each result is rounded, as ONNX Runtime's CPU provider does not."""
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(onnx.load_from_string(content)).run(None, dict(feeds))


def share_off(model: onnx.ModelProto, content: bytes, feeds: Mapping[str, Any]) -> float:
    """The largest difference of the outputs, which are finite, as a share of the largest."""
    shares, source = [], run(model, feeds)
    pairs = [(source, run(content, feeds, optimize=optimize)) for optimize in (False, True)]
    if b"SimplifiedLayerNormalization" not in content:  # which the reference lacks
        pairs.append((step_by_step(model.SerializeToString(), feeds), step_by_step(content, feeds)))
    for expected, outputs in pairs:
        for before, after in zip(expected, outputs, strict=True):
            assert np.isfinite(after).all()
            off = np.abs(before.astype(np.float64) - after.astype(np.float64)).max()
            shares.append(off / np.abs(before).max())
    return float(max(shares))


def types_of(model: ir.Model) -> dict[str, str]:
    """The element type of each stored tensor and each value with a type, by name."""
    values = (v for g in all_graphs(model) for v in (*g.initializers.values(), *_made(g)))
    return {str(v.name): "" if v.dtype is None else v.dtype.name for v in values}


def _made(graph: Any) -> list[ir.Value]:
    return [*graph.inputs, *(value for node in graph for value in node.outputs)]


def kept(precision: Precision, kind: str) -> dict[str, Kept]:
    return {one.node or one.op: one for one in precision.kept if one.kind == kind}


def operators(kept_nodes: Mapping[str, Kept]) -> list[str]:
    return sorted(one.op for one in kept_nodes.values())


def one_sum() -> onnx.ModelProto:
    """A residual sum that is 60,000 times the input, and its norm."""
    own = {"stream": np.float32(6e4), "least": np.float32(1e-6), "scale": np.ones(ROWS, np.float32)}
    own |= {"wh": weight(ROWS, ROWS), "wy": weight(ROWS, ROWS, seed=1)}
    return parsed(BODIES["one_sum"], f"(float[n, {ROWS}] x) => (float[n, {ROWS}] y)", own)
