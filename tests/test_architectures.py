"""Whole models: as many sites as norm calls in PyTorch, every site proved, logits that agree.

Tiny configurations with random weights (norm weights included) of the families in the corpus, in
f32 and f16. How many norms there are is counted in PyTorch, by hooking the calls.
"""

from __future__ import annotations

import functools

import numpy as np
import onnx
import pytest

pytest.importorskip(
    "torch", reason="exports come from PyTorch: pip install 'rmsnorm-export[torch]'"
)
pytest.importorskip("transformers", reason="needs the architectures: pip install transformers")
pytest.importorskip("onnxruntime", reason="pip install 'rmsnorm-export[ort]'")


import rmsnorm_export as rx
from rmsnorm_export.runtime.session import load_session, run_session
from tests.sample import sampled
from toolbox.corpus.arch_table import ENTRIES
from toolbox.corpus.architectures import TYPES, export_architecture
from toolbox.corpus.exporters import Export

pytestmark = [pytest.mark.export, pytest.mark.slow]

CASES = [(name, dtype) for name in ENTRIES for dtype in TYPES]
# One of each sort of norm or of place for it, in float32 and in float16 in turn: other tests of
# architectures take some of these, so that each is exported once.
QUICK = ("llama", "gemma3", "mamba2", "imagegpt", "t5_encoder", "gpt_oss", "nanochat")
SAMPLE = {(name, TYPES[i % len(TYPES)]) for i, name in enumerate(QUICK)}
IN_FLOAT32 = {name for name, dtype in SAMPLE if dtype == "float32"}
COMPUTES_IN_HALF = {"imagegpt"}
WITHOUT_MODULE = {"qwen3_next": 1}
"""Queries of linear attention over their length, times a factor: an RMSNorm that no hook counts."""
TARGETS = ("portable", "onnx", "ort")

# Relative to the largest logit. f32: some 50 operators deep, each a few 2**-24, and cancellation in
# random weights. f16: ONNX Runtime keeps f32 between operators in other places once a norm is one
# node, so whole chains round differently.
TOLERANCE = {"float32": 2e-5, "float16": 1e-2}


exported = functools.cache(export_architecture)


def path_of(name: str, dtype: str) -> str:
    made = exported(name, dtype)
    if made.path is None:
        pytest.skip(f"no exporter can: {made.reason}; nothing enables it with this torch")
    return str(made.path)


def logits(model: str | bytes, made: Export, *, optimized: bool = True) -> np.ndarray:
    session = load_session(model, optimize=optimized, threads=1)
    return next(iter(run_session(session, made.inputs()).values())).astype(np.float64)


@sampled("name, dtype", CASES, SAMPLE)
def test_every_norm_is_one_node(name: str, dtype: str) -> None:
    path, made = path_of(name, dtype), exported(name, dtype)
    before = logits(path, made, optimized=False)
    largest, expected = np.abs(before).max(), made.output().astype(np.float64)
    for target in TARGETS:
        result = rx.optimize(path, target=target, prove=True)
        report = result.report
        if target != "portable" and {r.reason for r in report.refused} == {"numerics"}:
            # Computed wholly in f16: these operators accumulate in f32, which has to be allowed.
            assert name in COMPUTES_IN_HALF
            result = rx.optimize(path, target=target, numerics="upcast", prove=True)
            report = result.report
        assert not report.unfused
        norms = made.norms + WITHOUT_MODULE.get(name, 0)
        assert len(report.fused) + len(report.kept) == norms, target
        assert all(site.proof is not None and site.proof.passed for site in report.fused)
        after = logits(result.to_bytes(), made)
        assert np.isfinite(after).all()
        assert np.abs(after - before).max() <= TOLERANCE[dtype] * largest, target
        if dtype == "float32":
            assert np.abs(after - expected).max() <= 1e-4 * np.abs(expected).max()


ROTARY = {
    "qwen3": 4, "qwen3_moe": 4, "qwen3_next": 2, "gemma3": 4, "gemma4": 4, "exaone4": 4,
    "muse_spark": 1, "olmo2": 0, "hunyuan": 0, "glm4": 0, "nanochat": 0,
}  # fmt: skip
"""Norms per head with a rotary embedding behind them in the tiny models: olmo2 norms all heads as
one row; hunyuan and nanochat turn first."""


@sampled("name, dtype", [(n, t) for n in ROTARY for t in TYPES], {("gemma3", "float16")})
def test_rotary_embeddings_are_in_the_nodes_of_their_norms(name: str, dtype: str) -> None:
    path, made = path_of(name, dtype), exported(name, dtype)
    before = logits(path, made, optimized=False)
    result = rx.optimize(path, fold_rotary=True, prove=True)
    report, plain = result.report, rx.optimize(path).report
    assert sum(site.rotary for site in report.fused) == ROTARY[name]
    assert not report.apart("rotary")
    assert all(site.proof is not None and site.proof.passed for site in report.fused)
    assert (report.nodes_after < plain.nodes_after) == bool(ROTARY[name])
    after = logits(result.to_bytes(), made)
    assert np.abs(after - before).max() <= TOLERANCE[dtype] * np.abs(before).max()


@sampled("name", ENTRIES, IN_FLOAT32)
def test_found_without_any_stored_shape(name: str) -> None:
    """Types and shapes are then inferred, by local rules or by ONNX."""
    model = onnx.load(path_of(name, "float32"))
    del model.graph.value_info[:]
    norms = exported(name, "float32").norms + WITHOUT_MODULE.get(name, 0)
    assert len(rx.inspect(model).fused) == norms
