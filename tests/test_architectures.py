"""Whole models: as many sites as norm calls in PyTorch, every site proved, logits that agree.

Tiny configurations with random weights (norm weights included) of the families in the corpus, in
f32 and f16. How many norms there are is counted in PyTorch, by hooking the calls.
"""

from __future__ import annotations

import functools
import pathlib
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
import torch
import transformers

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import Target
from tests.sample import sampled
from tests.tools.corpus.architectures import TYPES, ArchExport, architecture, architectures
from tests.tools.corpus.architectures import export_architecture as export

pytestmark = [pytest.mark.export, pytest.mark.slow]

CASES = [(a.name, dtype) for a in architectures() for dtype in TYPES]
NAMES = [a.name for a in architectures()]
# One of each sort of norm or of place for it, in float32 and in float16 in turn.
QUICK = (
    "llama",
    "gemma3",
    "mamba2",
    "imagegpt",
    "nanochat",
    "t5_encoder",
    "gpt_oss",
    "llama4",
)
SAMPLE = {(name, TYPES[i % len(TYPES)]) for i, name in enumerate(QUICK)}
IN_FLOAT32 = {name for name, dtype in SAMPLE if dtype == "float32"}
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
    assert set(QUICK) < set(NAMES)
    assert len({name for name, _ in CASES}) >= 25


@sampled("name, dtype", CASES, SAMPLE)
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


ROTARY = {
    "qwen3": 4, "qwen3_moe": 4, "qwen3_next": 2, "gemma3": 4, "gemma4": 4, "exaone4": 4,
    "muse_spark": 1, "olmo2": 0, "hunyuan": 0, "glm4": 0, "llama4": 0, "nanochat": 0,
}  # fmt: skip
"""Norms per head with a rotary embedding behind them in the tiny models: olmo2 norms all heads as
one row; hunyuan, llama4 and nanochat turn first."""


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


@sampled("name", NAMES, IN_FLOAT32)
def test_found_without_any_stored_shape(name: str) -> None:
    """Types and shapes are then inferred, by local rules or by ONNX."""
    model = onnx.load(path_of(name, "float32"))
    del model.graph.value_info[:]
    assert len(rx.inspect(model).fused) == exported(name, "float32").expected_norms


@sampled("name", NAMES, IN_FLOAT32)
def test_logits_are_those_of_pytorch(name: str) -> None:
    made = exported(name, "float32")
    path = path_of(name, "float32")
    after = logits(rx.optimize(path).to_bytes(), made)
    expected = made.logits().astype(np.float64)
    assert np.abs(after - expected).max() <= 1e-4 * np.abs(expected).max()


def folded_by_onnx_runtime(path: str) -> int:
    """Residuals that ONNX Runtime's optimizer of transformers folds; 0 where it fails."""
    from onnxruntime.transformers.optimizer import optimize_model

    try:
        optimized = optimize_model(path, model_type="gpt2", opt_level=0)
    except Exception:  # it gives up on a fourth of the corpus, in as many ways
        return 0
    folded: int = sum(
        node.op_type == "SkipSimplifiedLayerNormalization" for node in optimized.model.graph.node
    )
    return folded


@sampled("name", NAMES, IN_FLOAT32)
def test_no_fewer_residuals_than_onnx_runtime(name: str) -> None:
    path = path_of(name, "float32")
    report = rx.inspect(path, target="ort", numerics="upcast")
    assert report.folded >= folded_by_onnx_runtime(path)
    assert all(kept.found and kept.hint for kept in report.unfolded)


class WithPast(torch.nn.Module):
    """A decoder as Optimum exports it: keys and values of the past are inputs and outputs."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, *past: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        cache = transformers.DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        out = self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache)
        kept = (kv for layer in out.past_key_values.layers for kv in (layer.keys, layer.values))
        return (out.logits, *kept)


@pytest.mark.parametrize("target", ["portable", "ort"])
def test_every_residual_of_a_decoder_with_past(
    target: Target, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = decoder_with_past(tmp_path_factory.getbasetemp())
    report = rx.optimize(path, target=target, prove=True).report
    assert report.headline() == "5 of 5 RMSNorms, 4 of 4 residuals are one node"


@functools.cache
def decoder_with_past(folder: pathlib.Path) -> str:
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, attn_implementation="eager",
    )  # fmt: skip
    model = WithPast(transformers.LlamaForCausalLM(config).eval())
    past = [torch.randn(2, 2, 5, 8) for _ in range(4)]
    names = [f"past.{i}" for i in range(4)]
    axes = {name: {0: "batch", 2: "past"} for name in names}
    axes |= {"input_ids": {0: "batch", 1: "sequence"}}
    axes |= {"attention_mask": {0: "batch", 1: "past + sequence"}}
    path = str(folder / "with_past.onnx")
    torch.onnx.export(
        model, (torch.randint(0, 97, (2, 3)), torch.ones(2, 8, dtype=torch.int64), *past), path,
        input_names=["input_ids", "attention_mask", *names], dynamic_axes=axes,
        opset_version=17, dynamo=False,
    )  # fmt: skip
    return path
