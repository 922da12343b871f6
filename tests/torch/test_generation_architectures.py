"""Decoders of many architectures: every norm, and PyTorch's own tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("onnxscript", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("transformers.exporters", reason="pip install 'transformers>=5.20'")

import torch
import transformers

import rmsnorm_export as rx
from rmsnorm_export.compare.generation import verify_generation
from rmsnorm_export.torch.generation.components import own_types_of_caches, sample_inputs
from tests.tools.corpus.decoders import DECODERS
from tests.tools.corpus.decoders import decoder as decoder_of

pytestmark = [pytest.mark.export, pytest.mark.slow]


@pytest.mark.thorough
@pytest.mark.parametrize("static", [None, 48], ids=["dynamic", "static"])
@pytest.mark.parametrize("kind", DECODERS)
def test_architectures_write_what_pytorch_writes(
    kind: str, static: int | None, tmp_path: Path
) -> None:
    """All norms, and 32 greedy tokens, of prefill and decode."""
    if kind == "mamba2" and static is not None:
        pytest.skip("Mamba-2 has no keys and values, whose size could be fixed")
    model = decoder_of(kind)
    made = rx.export_generation(model, tmp_path / "made", static_cache=static)
    for report in made.reports.values():
        assert report.unfused == ()
        assert report.fused
    outcome = verify_generation(
        model, made.path, sample_inputs(model, {}), tokens=32, static_cache=static
    )
    assert outcome.passed, outcome.found
    assert outcome.notes[0] == "64 of 64 greedy tokens are the same"


def test_a_cache_goes_into_a_trace_as_it_is() -> None:
    """Mamba's states are float32 beside half weights: decode takes what prefill gives."""
    from transformers.exporters.utils import prepare_for_export

    model = decoder_of("mamba2", torch.float16)
    written = model(**sample_inputs(model, {}), use_cache=True)
    given = {"cache_params": written.cache_params, "extra": torch.zeros(1)}
    with own_types_of_caches():
        _, inputs, _ = prepare_for_export(model, given)
    layer = inputs["cache_params"].layers[0]
    assert layer.recurrent_states[0].dtype == torch.float32
    assert layer.conv_states[0].dtype == torch.float16
    assert inputs["extra"].dtype == torch.float16


@pytest.mark.thorough
def test_states_of_mamba_stay_float32_beside_half_weights(tmp_path: Path) -> None:
    model = decoder_of("mamba2", torch.float16)
    made = rx.export_generation(model, tmp_path / "made", None)
    outcome = verify_generation(model, made.path, sample_inputs(model, {}), tokens=32)
    assert outcome.passed, outcome.found


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3_text", "phi3"])
def test_fusions_of_architectures_write_what_pytorch_writes(kind: str, tmp_path: Path) -> None:
    """Heads of 16, which the attention could rotate itself, in a batch with padding."""
    model = decoder_of(kind, hidden_size=64, head_dim=16)
    made = rx.export_generation(model, tmp_path / "made", fusions="cpu")
    for report in made.reports.values():
        assert report.unfused == ()
        assert report.fusions is not None
        assert report.fusions.operators["GroupQueryAttention"] == (0, 2)
    weights = sum(p.numel() * p.element_size() for p in model.parameters() if p.ndim > 1)
    stored = sum(path.stat().st_size for path in made.path.glob("*.data"))
    assert stored <= 1.05 * weights
    outcome = verify_generation(model, made.path, sample_inputs(model, {}), tokens=32)
    assert outcome.passed, outcome.found
    assert outcome.notes[0] == "64 of 64 greedy tokens are the same"


_TEXT = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
}  # fmt: skip
_VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    "image_size": 8, "patch_size": 4,
}  # fmt: skip
_SEEING = {
    "Llava": ("clip_vision_model", "llama", {"image_seq_length": 4}),
    "PaliGemma": ("siglip_vision_model", "gemma", {"projection_dim": 32}),
    "Idefics3": ("idefics3_vision", "llama", {"scale_factor": 1}),
    "SmolVLM": ("smolvlm_vision", "llama", {"scale_factor": 1}),
    "Gemma3": ("siglip_vision_model", "gemma3_text", {"mm_tokens_per_image": 4}),
}


@pytest.mark.parametrize(
    "kind",
    [one if one == "Llava" else pytest.param(one, marks=pytest.mark.thorough) for one in _SEEING],
)
def test_a_model_that_sees_is_refused_without_its_encoder(kind: str, tmp_path: Path) -> None:
    """transformers 5.23 gives their language models alone; a folder of that takes no image."""
    vision, text, more = _SEEING[kind]
    config = getattr(transformers, f"{kind}Config")(
        vision_config={"model_type": vision, **_VISION},
        text_config={"model_type": text, **_TEXT},
        image_token_id=63,
        **more,
    )
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    ids, image = torch.tensor([[63] * 4 + [5]]), torch.ones(1, 3, 8, 8)
    inputs = {"input_ids": ids, "pixel_values": image[None] if "scale_factor" in more else image}
    if kind == "Gemma3":
        inputs["token_type_ids"] = (ids == 63).long()
    with pytest.raises(rx.InputError, match="would be missing"):
        rx.export_generation(model, tmp_path / "made", inputs=inputs)
    assert list(tmp_path.iterdir()) == []
