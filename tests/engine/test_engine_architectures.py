"""Whole architectures as they were exported, and optimized: each parses and builds without a GPU.

One of each sort, for every target.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason='needs PyTorch: pip install "rmsnorm-export[torch]"')
pytest.importorskip("transformers", reason="needs the architectures: pip install transformers")

import rmsnorm_export as rx
from rmsnorm_export.api import build_engine
from tests.sample import sampled
from toolbox.corpus.arch_table import ENTRIES
from toolbox.corpus.architectures import export_architecture

from .conftest import needs_rtx

pytestmark = [needs_rtx, pytest.mark.export, pytest.mark.slow]

CASES = [
    ("llama", "float32", "portable"),
    ("gpt_oss", "float16", "onnx"),
    ("imagegpt", "float16", "portable"),
    ("mamba2", "float32", "onnx"),
    ("t5_encoder", "float32", "portable"),
]
"""Of each sort of norm one that tests/test_architectures.py exports, too."""
THOROUGH = (
    "llama", "qwen3", "gemma", "olmo2", "phi3", "glm4", "gpt_oss", "nanochat", "aimv2_vision",
)  # fmt: skip
SHAPES = {
    "pixels": {"pixel_values": ((1, 3, 16, 16), (2, 3, 16, 16), (4, 3, 16, 16))},
    "tokens": {"input_ids": ((1, 1), (2, 7), (4, 64))},
}


@sampled(
    "name, dtype, target",
    dict.fromkeys([*CASES, *itertools.product(THOROUGH, ["float16"], ["onnx", "portable"])]),
    CASES,
)
def test_every_form_builds(name: str, dtype: str, target: Any, tmp_path: Path) -> None:
    export = export_architecture(name, dtype)
    assert export.path is not None, export.reason
    shapes = SHAPES["pixels" if ENTRIES[name].kind == "pixels" else "tokens"]
    rewritten, kernels = tmp_path / "rewritten.onnx", []
    # upcast: a norm that the source computes in a half type is one node, too
    rx.optimize(export.path, target=target, numerics="upcast").save(rewritten, weights="embed")
    for path, form in ((export.path, "chain"), (rewritten, "node")):
        engine = tmp_path / f"{form}.engine"
        record = build_engine(path, engine, backend="tensorrt-rtx", shapes=shapes).record
        assert len(record.norms) == export.norms, form
        assert {norm.how for norm in record.norms} <= {"fused", "unfused"}, form
        assert {norm.form for norm in record.norms} == {form}
        kernels.append(sum(norm.kernels or 0 for norm in record.norms))
    assert kernels[1] <= kernels[0]  # a norm never costs more kernels than spelled out
    # No new node computes in a half type.
    assert not any("layernorm" in message.lower() for message in record.messages)
