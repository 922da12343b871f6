"""What other tools leave of norms is found, or told as a norm with the reason, and computes what it
did: optimizers, converters to half types and to other opsets, quantizers."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import pytest

import rmsnorm_export as rx
from rmsnorm_export.runtime.session import load_session, run_session
from tests.recognize.converted import CONVERTERS, FORMULAS, SHAPE, Alone, exported

QUANTIZED = "onnxruntime, quantize_static, all operators"
"""The steps of the norms, too: no operator repeats these roundings, and none is to."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("converted") / "norms.onnx"
    exported(path)
    return path


def outputs(model: bytes, size: float = 1.0) -> np.ndarray:
    session = load_session(model, threads=1)
    half = onnx.load_from_string(model).graph.input[0].type.tensor_type.elem_type == 10
    rows = size * np.random.default_rng(1).standard_normal(SHAPE)
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
        assert set(told) <= ({"numerics"} if "float16" in name or name == QUANTIZED else set())
        assert found == len(FORMULAS) or numerics == "reordered"
        if name == QUANTIZED:
            continue  # below: it is to compute something else
        loose = 3e-2 if "float16" in name or "quantize" in name else 1e-4
        after, before = outputs(result.to_bytes()), outputs(path.read_bytes())
        np.testing.assert_allclose(after, before, rtol=loose, atol=loose)


@pytest.mark.export
def test_norms_that_are_no_longer_quantized_are_nearer_to_the_float_model(
    tmp_path: pathlib.Path,
) -> None:
    """Left out with permission alone, and proved. Rows of the calibrated size have the error of the
    quantized output, which is 8 bits in both files; a smaller or a larger row has less."""
    source, path = tmp_path / "source.onnx", tmp_path / "quantized.onnx"
    exported(source, Alone)
    CONVERTERS[QUANTIZED](str(source), str(path))
    assert not rx.optimize(path).report.fused
    result = rx.optimize(path, numerics="upcast", prove=True)
    shared = 1  # the first two differ in their scale
    assert [site.numerics for site in result.report.fused] == ["upcast"] * (len(FORMULAS) - shared)
    assert all("quantized" in " ".join(site.notes) for site in result.report.fused)
    for size, most in ((0.1, 0.1), (1.0, 1.01), (4.0, 0.2)):
        floats = outputs(source.read_bytes(), size)
        after, before = (
            np.square(outputs(model, size) - floats).mean((1, 2, 3))
            for model in (result.to_bytes(), path.read_bytes())
        )
        assert (after <= 1.01 * before).all()
        assert after.sum() < most * before.sum()


def test_what_is_made_a_float_by_another_scale_is_not_what_was_quantized() -> None:
    """Twice the mean square is no rounding of it."""
    body = """
        square = Mul(x, x)
        mean = ReduceMean<axes = [-1]>(square)
        codes = QuantizeLinear(mean, unit, zero)
        back = DequantizeLinear(codes, SCALE, zero)
        stable = Add(back, epsilon)
        root = Sqrt(stable)
        y = Div(x, root)
    """
    head = """<ir_version: 8, opset_import: ["": 17]> norms (float[B, 8] x) => (float[B, 8] y)
        <float unit = {0.5}, float other = {1.0}, uint8 zero = {0}, float epsilon = {1e-5}>"""
    fused = []
    for scale in ("unit", "other"):
        model = onnx.parser.parse_model(head + "{" + body.replace("SCALE", scale) + "}")
        report = rx.optimize(model, numerics="upcast").report
        fused.append(len(report.fused))
        assert [r.reason for r in report.refused] == ["quantized"] * (not report.fused)
    assert fused == [1, 0]
