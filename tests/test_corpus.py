"""The corpus itself: what the scan finds, and what the numbers say of it."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxscript")

import torch
import transformers

from toolbox.corpus import build, classify, exporters, norm_classes
from toolbox.corpus.scan import scan


def test_every_class_named_rmsnorm_is_a_candidate() -> None:
    root = pathlib.Path(transformers.__file__).parent
    pattern = re.compile(r"^\s*class (\w*(?:RMS|Rms)[Nn]orm\w*)\(", re.MULTILINE)
    named = {
        (path.stem, name)
        for path in root.glob("models/*/modeling_*.py")
        for name in pattern.findall(path.read_text())
    }
    candidates = {(c.module.rsplit(".", 1)[1], c.name) for c in scan()}
    # the modulation of a norm, which holds two linear layers and no norm
    assert named - candidates == {("modeling_voxtral_realtime", "VoxtralRealtimeTextAdaRmsNorm")}
    assert len(named) > 200


VARIANTS = {
    "LlamaRMSNorm": classify.Variant(),
    "GemmaRMSNorm": classify.Variant(gain="1+w"),
    "DeepseekV4UnweightedRMSNorm": classify.Variant(gain="none"),
    "MambaRMSNormGated": classify.Variant(gate="silu before", group_size=build.GROUP),
    "Qwen3NextRMSNormGated": classify.Variant(gate="silu after"),
    "RMSNorm-two-axes": classify.Variant(axes=2),
}
OTHERS = ("CohereLayerNorm", "NoNorm", "HYV4UnweightedRMSNorm", "PocketTTSTimestepNorm")


def test_every_body_is_decided_and_some_are_known() -> None:
    classes = norm_classes.norm_classes()
    by_key = {norm.key: norm for norm in classes}
    assert all(norm.shape for norm in classes)
    assert len(by_key) == len(classes)
    assert {key: by_key[key].variant for key in VARIANTS} == VARIANTS
    assert not any(by_key[key].is_rmsnorm for key in OTHERS)


@pytest.mark.parametrize(
    ("key", "dtype", "reason"), [("LlamaRMSNorm", "bfloat16", ""), ("RMSNorm", "float32", "aten::")]
)
def test_an_export_holds_what_pytorch_gave_or_why_there_is_none(
    key: str, dtype: str, reason: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RMSNORM_EXPORT_CACHE", str(tmp_path))
    norm = next(norm for norm in norm_classes.norm_classes() if norm.key == key)
    export = exporters.export_norm(norm, dtype, "torchscript17")
    assert (export.path is None) == bool(reason)
    assert reason in export.reason
    module, args = norm.make(dtype)
    with torch.no_grad():
        expected = module(*args).float().numpy()
    assert np.array_equal(export.output().astype(np.float32), expected)
