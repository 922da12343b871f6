"""RMSNormalization with X and scale of two types, and with a scale that is no row of numbers."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import TARGETS

TYPES = {"float": (np.float32, 2e-6), "float16": (np.float16, 2e-3), "double": (np.float64, 2e-6),
         "bfloat16": (ml_dtypes.bfloat16, 2e-2)}  # fmt: skip
PAIRS = [*itertools.permutations(("float", "float16", "double"), 2), ("bfloat16", "float")]


def source(x: str, scale: str, shape: str) -> bytes:
    sizes = "2,3,8"
    text = f"""<ir_version: 10, opset_import: ["" : 23]>
g ({x}[{sizes}] x, {scale}{f"[{shape}]" if shape else ""} w) => ({scale}[{sizes}] y) {{
 y = RMSNormalization<axis = -1, epsilon = 0.00001>(x, w)
}}"""
    return onnx.parser.parse_model(text).SerializeToString()


def check(model: bytes, x: str, scale: str, shape: tuple[int, ...], target: str) -> list[str]:
    """The fused file against float64; its operators."""
    result = rx.optimize(model, target=target)  # type: ignore[arg-type]
    report = result.report
    assert (len(report.fused) + len(report.kept), report.unfused) == (1, ())
    rng = np.random.default_rng(0)
    a = rng.standard_normal((2, 3, 8)).astype(TYPES[x][0])
    w = np.asarray(rng.random(shape) + 0.5).astype(TYPES[scale][0])
    ops = [n.op_type for n in ir.to_proto(result.model).graph.node]
    if "bfloat16" in (x, scale):
        return ops  # ONNX Runtime's CPU provider has no kernel for the casts of inputs of NumPy
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(result.to_bytes(), options, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": a, "w": w})
    a64, w64 = a.astype(np.float64), w.astype(np.float64)
    wanted = a64 / np.sqrt(np.square(a64).mean(-1, keepdims=True) + 1e-5) * w64
    assert y.dtype == w.dtype
    bound = max(TYPES[x][1] if x == scale else 0, TYPES[scale][1])
    np.testing.assert_allclose(y.astype(np.float64), wanted, rtol=bound, atol=bound)
    return ops


@pytest.mark.parametrize(
    "target", [name for name, row in TARGETS.items() if row.form == "one node"]
)
@pytest.mark.parametrize(("x", "scale"), PAIRS)
def test_two_types(x: str, scale: str, target: str) -> None:
    ops = check(source(x, scale, "8"), x, scale, (8,), target)
    assert len([op for op in ops if op not in ("Cast", "Mul")]) == 1


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("x", ["float", "float16"])
@pytest.mark.parametrize("shape", [(2, 1, 8), (2, 3, 8), (3, 8)])
def test_scale_that_is_no_row(shape: tuple[int, ...], x: str, target: str) -> None:
    ops = check(source(x, x, ",".join(map(str, shape))), x, x, shape, target)
    assert "Mul" in ops


def test_both_at_once() -> None:
    ops = check(source("float16", "float", "2,1,8"), "float16", "float", (2, 1, 8), "onnx")
    assert ops.count("RMSNormalization") == ops.count("Mul") == 1


@pytest.mark.parametrize("shape", [(8,), (1, 1, 8)])
def test_what_runtimes_take_stays(shape: tuple[int, ...]) -> None:
    model = source("float16", "float16", ",".join(map(str, shape)))
    assert check(model, "float16", "float16", shape, "onnx") == ["RMSNormalization"]
