"""Whole models: as many sites as norm calls in PyTorch, every site proved, logits that agree.

Tiny configurations with random weights (norm weights included) of the families in the corpus, in
f32 and f16. How many norms there are is counted in PyTorch, by hooking the calls.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip(
    "torch", reason="exports come from PyTorch: pip install 'rmsnorm-export[torch]'"
)
pytest.importorskip("transformers", reason="needs the architectures: pip install transformers")
pytest.importorskip("onnxruntime", reason="pip install 'rmsnorm-export[ort]'")

import onnxruntime as ort

import rmsnorm_export as rx
from scripts.corpus.architectures import TYPES, ArchExport, architecture, architectures
from scripts.corpus.architectures import export_architecture as export

pytestmark = [pytest.mark.export, pytest.mark.slow]

CASES = [(a.name, dtype) for a in architectures() for dtype in TYPES]
COMPUTES_IN_HALF = {"imagegpt"}
TARGETS = ("portable", "onnx", "ort")

# Relative to the largest logit. f32: some 50 operators deep, each a few 2**-24, and cancellation in
# random weights. f16: ONNX Runtime keeps f32 between operators in other places once a norm is one
# node, so whole chains round differently.
TOLERANCE = {"float32": 2e-5, "float16": 1e-2}


@functools.cache
def exported(name: str, dtype: str) -> ArchExport:
    return export(architecture(name), dtype)


def path_of(name: str, dtype: str) -> str:
    made = exported(name, dtype)
    if made.path is None:
        pytest.skip(f"no exporter can: {made.reason}; nothing enables it with this torch")
    return str(made.path)


def session(model: str | bytes, *, optimized: bool) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def logits(model: str | bytes, made: ArchExport, *, optimized: bool = True) -> np.ndarray:
    found = session(model, optimized=optimized).run(None, made.inputs())[0]
    return np.asarray(found, np.float64)


def test_there_are_enough() -> None:
    assert len({name for name, _ in CASES}) >= 25


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_every_norm_is_one_node(name: str, dtype: str) -> None:
    path, made = path_of(name, dtype), exported(name, dtype)
    before = logits(path, made, optimized=False)
    largest = np.abs(before).max()
    for target in TARGETS:
        result = rx.optimize(path, target=target, prove=True)
        report = result.report
        if target != "portable" and {r.reason for r in report.refused} == {"numerics"}:
            # Computed wholly in f16: these operators accumulate in f32, which has to be allowed.
            assert name in COMPUTES_IN_HALF
            result = rx.optimize(path, target=target, numerics="upcast", prove=True)
            report = result.report
        unfused = report.unfused
        assert not unfused
        assert len(report.fused) + len(report.kept) == made.expected_norms, target
        assert all(site.proof is not None and site.proof.passed for site in report.fused)
        after = logits(result.to_bytes(), made)
        assert np.isfinite(after).all()
        assert np.abs(after - before).max() <= TOLERANCE[dtype] * largest, target


@pytest.mark.parametrize("name", [a.name for a in architectures()])
def test_found_without_any_stored_shape(name: str) -> None:
    """Types and shapes are then inferred, by local rules or by ONNX."""
    model = onnx.load(path_of(name, "float32"))
    del model.graph.value_info[:]
    assert len(rx.inspect(model).fused) == exported(name, "float32").expected_norms


@pytest.mark.parametrize("name", [a.name for a in architectures()])
def test_logits_are_those_of_pytorch(name: str) -> None:
    made = exported(name, "float32")
    path = path_of(name, "float32")
    after = logits(rx.optimize(path).to_bytes(), made)
    expected = made.logits().astype(np.float64)
    assert np.abs(after - expected).max() <= 1e-4 * np.abs(expected).max()
