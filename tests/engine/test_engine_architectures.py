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
from rmsnorm_export.tensorrt.engine.result import EngineRecord
from tests.sample import sampled
from tests.tools.corpus.architectures import architecture, export_architecture

from .conftest import needs_rtx

pytestmark = [needs_rtx, pytest.mark.export, pytest.mark.slow]

FORMS = ("raw", "onnx", "portable")
CASES = [
    ("llama", "float32"),
    ("llama", "float16"),
    ("qwen3", "float16"),
    ("gemma", "float16"),
    ("olmo2", "float16"),
    ("phi3", "float16"),
    ("glm4", "float16"),
    ("gpt_oss", "float16"),
    ("nanochat", "float16"),
    ("imagegpt", "float16"),
    ("aimv2_vision", "float16"),
    ("mamba2", "float32"),
    ("t5_encoder", "float32"),
]
# Of each sort of norm one that tests/test_architectures.py exports, too.
SAMPLE = [
    ("llama", "float32", ("raw", "portable")),
    ("gpt_oss", "float16", ("raw", "onnx")),
    ("imagegpt", "float16", ("raw", "portable")),
    ("mamba2", "float32", ("raw", "onnx")),
    ("t5_encoder", "float32", ("raw", "portable")),
]
TOKENS = {"input_ids": ((1, 1), (2, 7), (4, 64))}
PIXELS = {"pixel_values": ((1, 3, 16, 16), (2, 3, 16, 16), (4, 3, 16, 16))}


def test_enough_architectures() -> None:
    assert len({name for name, _ in CASES}) >= 10


@sampled("name, dtype, forms", [*SAMPLE, *((*case, FORMS) for case in CASES)], SAMPLE)
def test_every_form_builds(name: str, dtype: str, forms: tuple[str, ...], tmp_path: Path) -> None:
    """The two targets in turn, each in both types; thorough: both for every architecture."""
    export = export_architecture(architecture(name), dtype)
    assert export.path is not None, export.reason
    records: dict[str, EngineRecord] = {}
    for form in forms:
        path = export.path
        if form != "raw":
            path = tmp_path / f"{form}.onnx"
            # upcast: a norm that the source computes in a half type is one node, too
            result = rx.optimize(export.path, target=form, numerics="upcast")  # type: ignore[arg-type]
            result.save(path, weights="embed")
        shapes = PIXELS if export.architecture.kind == "pixels" else TOKENS
        engine = tmp_path / f"{form}.engine"
        records[form] = build_engine(path, engine, backend="tensorrt-rtx", shapes=shapes).record
    for form, record in records.items():
        assert len(record.norms) == export.expected_norms, form
        assert {norm.how for norm in record.norms} <= {"fused", "unfused"}, form
        assert {norm.form for norm in record.norms} == {"chain" if form == "raw" else "node"}, form
        assert record.layers_from != "none"
    raw = _kernels(records["raw"])
    for form in forms[1:]:
        assert not _in_half(records[form])
        assert _kernels(records[form]) <= raw  # a norm never costs more kernels than spelled out
    if name == "imagegpt":  # the warning is there to be seen: its norms are computed in f16
        assert _in_half(records["raw"])


def _in_half(record: EngineRecord) -> bool:
    """Tell whether the backend warns of norms that are computed in a half type."""
    return any("layernorm" in message.lower() for message in record.messages)


def _kernels(record: EngineRecord) -> int:
    return sum(norm.kernels or 0 for norm in record.norms)
