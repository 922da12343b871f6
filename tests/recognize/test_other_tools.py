"""What other tools leave of norms is found, or told as a norm with the reason, and computes what it
did: optimizers, converters to half types and to other opsets, quantizers."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import pytest

import rmsnorm_export as rx
from rmsnorm_export.runtime.session import load_session, run_session
from tests.recognize.converted import CONVERTERS, FORMULAS, SHAPE, exported

QUANTIZED = "onnxruntime, quantize_static, all operators"
"""The steps of the norms, too: no operator repeats these roundings."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("converted") / "norms.onnx"
    exported(path)
    return path


def outputs(model: bytes) -> np.ndarray:
    session = load_session(model, threads=1)
    half = onnx.load_from_string(model).graph.input[0].type.tensor_type.elem_type == 10
    rows = np.random.default_rng(1).standard_normal(SHAPE)
    feeds = {"x": rows.astype(np.float16 if half else np.float32)}
    (output,) = run_session(session, feeds).values()
    return output.astype(np.float64)


@pytest.mark.export
@pytest.mark.parametrize("name", CONVERTERS)
def test_every_norm_is_found_or_told(name: str, source: pathlib.Path) -> None:
    path = source.with_name("converted.onnx")
    CONVERTERS[name](str(source), str(path))
    for numerics in ("reordered", "upcast"):
        result = rx.optimize(path, numerics=numerics)
        found = len(result.report.fused) + len(result.report.kept)
        told = [r.reason for r in result.report.refused]
        assert all(r.kind == "norm" for r in result.report.refused)
        assert found + len(told) == len(FORMULAS)
        if name == QUANTIZED:
            assert set(told) == {"quantized"}
            continue
        assert set(told) <= ({"numerics"} if "float16" in name else set())
        assert found == len(FORMULAS) or numerics == "reordered"
        loose = 3e-2 if "float16" in name or "quantize" in name else 1e-4
        after, before = outputs(result.to_bytes()), outputs(path.read_bytes())
        np.testing.assert_allclose(after, before, rtol=loose, atol=loose)
