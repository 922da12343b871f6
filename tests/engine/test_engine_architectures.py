"""Whole architectures as they were exported, and optimized: each parses and builds without a GPU.

One of each sort, for every target.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason='needs PyTorch: pip install "rmsnorm-export[torch]"')
pytest.importorskip("transformers", reason="needs the architectures: pip install transformers")

import rmsnorm_export as rx
from rmsnorm_export.tensorrt.engine.build import build_engine
from tests.sample import sampled
from tests.tools.corpus.arch_table import ENTRIES
from tests.tools.corpus.architectures import export_architecture

from .conftest import needs_rtx

pytestmark = [needs_rtx, pytest.mark.export, pytest.mark.slow]

CASES = [
    ("llama", "float32", ("raw", "portable")),
    ("gpt_oss", "float16", ("raw", "onnx")),
    ("imagegpt", "float16", ("raw", "portable")),
    ("mamba2", "float32", ("raw", "onnx")),
    ("t5_encoder", "float32", ("raw", "portable")),
]
"""Of each sort of norm one that tests/test_architectures.py exports, too."""
THOROUGH = (
    "llama", "qwen3", "gemma", "olmo2", "phi3", "glm4", "gpt_oss", "nanochat", "aimv2_vision",
)  # fmt: skip
TOKENS = {"input_ids": ((1, 1), (2, 7), (4, 64))}
PIXELS = {"pixel_values": ((1, 3, 16, 16), (2, 3, 16, 16), (4, 3, 16, 16))}


@sampled(
    "name, dtype, forms",
    [*CASES, *((name, "float16", ("raw", "onnx", "portable")) for name in THOROUGH)],
    CASES,
)
def test_every_form_builds(name: str, dtype: str, forms: tuple[str, ...], tmp_path: Path) -> None:
    export = export_architecture(name, dtype)
    assert export.path is not None, export.reason
    shapes = PIXELS if ENTRIES[name].kind == "pixels" else TOKENS
    kernels = []
    for form in forms:
        path = export.path
        if form != "raw":
            path = tmp_path / f"{form}.onnx"
            # upcast: a norm that the source computes in a half type is one node, too
            result = rx.optimize(export.path, target=form, numerics="upcast")  # type: ignore[arg-type]
            result.save(path, weights="embed")
        engine = tmp_path / f"{form}.engine"
        record = build_engine(path, engine, backend="tensorrt-rtx", shapes=shapes).record
        assert len(record.norms) == export.norms, form
        assert {norm.how for norm in record.norms} <= {"fused", "unfused"}, form
        assert {norm.form for norm in record.norms} == {"chain" if form == "raw" else "node"}, form
        in_half = any("layernorm" in message.lower() for message in record.messages)
        assert form == "raw" or not in_half  # no new node computes in a half type
        kernels.append(sum(norm.kernels or 0 for norm in record.norms))
    assert max(kernels) == kernels[0]  # a norm never costs more kernels than spelled out
