"""The step behind an export by optimum: the folder that it writes, loaded by optimum again."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

pytestmark = [pytest.mark.thorough, pytest.mark.export]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reason = "optimum-onnx is not installed: pip install '.[optimum]'"
    pytest.importorskip("optimum", reason=reason)
    exporters = pytest.importorskip("optimum.exporters.onnx", reason=reason)
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 97}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(num_hidden_layers=2, max_position_embeddings=64, **sizes, **heads)
    folder = tmp_path_factory.mktemp("optimum")
    exporters.onnx_export_from_model(
        LlamaForCausalLM(config).eval(), folder, task="text-generation-with-past", opset=18
    )
    return folder


def test_the_folder_of_an_export_generates_the_same_tokens(exported: Path) -> None:
    import torch
    from optimum.onnxruntime import ORTModelForCausalLM

    from rmsnorm_export.integrations.optimum import fuse

    def tokens() -> list[int]:
        model = ORTModelForCausalLM.from_pretrained(exported)
        ids = torch.arange(5, 13).reshape(1, 8)
        done = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)
        return list(done[0].tolist())

    before, files = tokens(), sorted(path.name for path in exported.iterdir())
    made = fuse(exported, target="ort", prove=True)
    (report,) = made.reports.values()
    assert len(report.fused) == 5
    ops = [node.op_type for node in onnx.load(exported / "model.onnx").graph.node]
    assert ops.count("SkipSimplifiedLayerNormalization") == 4
    assert sorted(path.name for path in exported.iterdir()) == files
    assert tokens() == before
