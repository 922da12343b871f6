"""Files that went through other tools: what they do to ours, and what we make of theirs."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import TARGETS, Target
from rmsnorm_export.runtime.session import open_session
from scripts.runtimes import tools
from scripts.runtimes.models import BOUNDS, block, expected, feed


def _stream(opset: int = 18) -> onnx.ModelProto:
    """The block with a residual stream: each sum is read by the norm and by the next sum."""
    model = block(TensorProto.FLOAT, opset)
    sums = [n for n in model.graph.node if n.op_type == "Add" and "MatMul" in n.input[1]]
    for before, after in itertools.pairwise(sums):
        after.input[0] = before.output[0]
    return model


def _saved(model: bytes, path: Path, level: str) -> onnx.ModelProto:
    """What ONNX Runtime writes after its optimizations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


def _off(model: onnx.ModelProto | bytes, wanted: np.ndarray, *, optimize: bool = True) -> float:
    data = model if isinstance(model, bytes) else model.SerializeToString()
    found = open_session(data, optimize=optimize, threads=1).run(None, {"input": feed()})[0]
    return float(np.abs(found - wanted).max())


@pytest.mark.parametrize("level", ["ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED"])
@pytest.mark.parametrize("target", list(TARGETS))
def test_what_onnx_runtime_saved_is_optimized_again(
    level: str, target: Target, tmp_path: Path
) -> None:
    raw = _stream()
    saved = _saved(rx.optimize(raw).to_bytes(), tmp_path / "saved.onnx", level)
    again = rx.optimize(saved, target=target)
    assert not again.report.unfused
    assert _off(again.to_bytes(), expected(raw)) <= BOUNDS["float32"]
    assert _off(again.to_bytes(), expected(raw), optimize=False) <= BOUNDS["float32"]


def test_names_of_inlined_functions_do_not_come_back(tmp_path: Path) -> None:
    """ONNX Runtime makes them when it inlines; it does not load a file that has them already."""
    raw = block(TensorProto.FLOAT, 18)
    saved = _saved(rx.optimize(raw).to_bytes(), tmp_path / "saved.onnx", "ORT_ENABLE_BASIC")
    made = {name for node in saved.graph.node for name in node.output}
    made = {name for name in made | {t.name for t in saved.graph.initializer} if "inlfunc" in name}
    assert len(made) > 10
    for name in made:
        kept = block(TensorProto.FLOAT, 18)
        for node in kept.graph.node:
            for names in (node.input, node.output):
                names[:] = [name if old == "MatMul_0" else old for old in names]
        assert _off(rx.optimize(kept).to_bytes(), expected(raw)) <= BOUNDS["float32"]


def test_names_at_the_ends_of_a_graph_are_kept() -> None:
    raw = _stream()
    raw.graph.node[-1].output[0] = raw.graph.output[0].name = "_inlfunc_output"
    result = rx.optimize(raw)
    assert [value.name for value in result.model.graph.outputs] == ["_inlfunc_output"]


def _converted(model: bytes) -> onnx.ModelProto:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    converted: onnx.ModelProto = convert_float_to_float16(
        onnx.load_from_string(model), keep_io_types=True
    )
    return converted


@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize("target", list(TARGETS))
def test_a_float32_file_can_be_converted_to_float16(target: Target, opset: int) -> None:
    """The nodes are converted and functions are not: the body takes both types."""
    raw = block(TensorProto.FLOAT, opset)
    half = _converted(rx.optimize(raw, target=target).to_bytes())
    assert any(t.data_type == TensorProto.FLOAT16 for t in half.graph.initializer)
    for optimize in (True, False):
        assert _off(half, expected(raw), optimize=optimize) <= BOUNDS["float16"]


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_what_was_converted_before_is_fused_under_the_class_that_holds(target: Target) -> None:
    """The converter puts the squares into float16: no node of these targets repeats that."""
    half = _converted(block(TensorProto.FLOAT, 18).SerializeToString())
    (refusal,) = {(r.reason, r.hint) for r in rx.optimize(half, target=target).report.unfused}
    assert refusal == ("numerics", "allow --numerics upcast")
    result = rx.optimize(half, target=target, numerics="upcast", prove=True)
    assert [site.numerics for site in result.report.fused] == ["upcast"] * 3
    assert all(s.proof is not None and s.proof.passed for s in result.report.fused)


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_what_was_converted_after_ours_is_fused_as_float16(target: Target) -> None:
    """Our body still computes the row in float32."""
    half = _converted(rx.optimize(block(TensorProto.FLOAT, 18)).to_bytes())
    result = rx.optimize(half, target=target, prove=True)
    assert [site.numerics for site in result.report.fused] == ["reordered"] * 3
    assert all(s.proof is not None and s.proof.passed for s in result.report.fused)


@pytest.mark.thorough
def test_the_page_says_what_the_tools_do() -> None:
    written = tools.PAGE.read_text(encoding="utf-8").splitlines()
    now = [line for line in tools.page().splitlines() if line.startswith("|")]
    assert len(now) > 10
    assert [line for line in now if line not in written] == []
