"""Architectures by the command line, from folders as ``save_pretrained`` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers.exporters.metadata", reason="pip install 'transformers>=5.23'")

import numpy as np
import torch
import transformers

import rmsnorm_export as rx
from rmsnorm_export.cli.main import main
from rmsnorm_export.decoder.encoders import inputs_of
from rmsnorm_export.decoder.generation import verify_generation
from rmsnorm_export.decoder.inputs import sample_inputs
from rmsnorm_export.runtime.session import load_session
from toolbox.corpus.decoders import DECODERS, decoder

pytestmark = [pytest.mark.export, pytest.mark.slow]

HELD = (
    *("llama", "mistral", "gemma4_text", "gpt_oss", "deepseek_v3", "qwen3_next", "mamba2"),
    *("bamba", "lfm2", "t5", "whisper", "qwen2_5_vl"),  # images of Qwen2.5-VL: 21 tokens
)
"""Of each sort of layer, state or encoder whose cache is of a fixed size, one."""
STATIC, FUSED, ONE = ("--static-cache", "52"), ("--fusions", "cpu"), ("--multi-token",)
WRITTEN: list[tuple[str, tuple[str, ...]]] = [
    *((kind, ()) for kind in DECODERS),
    *((kind, STATIC) for kind in HELD),
    *(("mamba2", ("--dtype", "f16")), ("gpt_oss", ONE)),
    *((kind, FUSED) for kind in ("llama", "qwen3", "gemma3_text", "phi3")),
]
QUICK = {("gpt_oss", ONE), ("llava", ()), ("t5", ())}
"""Without SDPA, one that sees, and one with an encoder of text."""


def exported(kind: str, folder: Path, *options: str) -> dict[str, Any]:
    """The report of an export whose tokens are compared; of attentions to be fused heads of 16."""
    sizes = {"hidden_size": 64, "head_dim": 16} if "--fusions" in options else {}
    decoder(kind, **sizes).save_pretrained(folder / "saved")
    arguments = ["export", f"{folder}/saved", "--task", "generation", "-o", f"{folder}/made"]
    arguments += ["--verify", "--prove", "--report", f"{folder}/report.json", *options]
    assert main(arguments) == 0
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.thorough])
        for case in WRITTEN
    ],
    ids=str,
)
def test_a_saved_model_generates_the_same_tokens(
    kind: str,
    options: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = exported(kind, tmp_path, *options)
    text = capsys.readouterr().out
    assert "decode.onnx.data (empty: its weights are in another file" in text or options != FUSED
    sees = "vision_config" in DECODERS[kind]
    encoded = ["encoder"] if kind in ("bart", "t5", "whisper") else []
    stages = ["decode"] if options == ONE else ["prefill", "decode"]
    assert [*report["reports"]] == [*(["image_encoder"] if sees else encoded), *stages]
    reports = report["reports"].values()
    refused = [site for one in reports for site in one["refused"]]
    assert [site for site in refused if site["kind"] == "norm"] == []
    assert any(one["fused"] for one in reports) or kind in ("bart", "whisper")  # without RMSNorm
    for one in reports if options == FUSED else ():
        assert one["fusions"]["operators"]["GroupQueryAttention"] == [0, 2]
    assert "64 of 64 greedy tokens are the same" in report["verification"]["notes"]
    assert main(["verify", f"{tmp_path}/saved", f"{tmp_path}/made", "--generate", "3"]) == 0


def test_a_model_that_hears_is_traced_with_sound_that_it_takes() -> None:
    model = decoder("whisper")
    inputs = sample_inputs(model, {})
    assert inputs["input_features"].shape == (2, 8, 100)
    assert model.generate(**inputs, max_new_tokens=4, min_new_tokens=4).shape == (2, 4)


@pytest.mark.parametrize("kind", ["bamba", pytest.param("lfm2", marks=pytest.mark.thorough)])
def test_states_beside_keys_begin_as_zeros_in_one_graph(kind: str, tmp_path: Path) -> None:
    report = exported(kind, tmp_path, "--multi-token")
    assert "64 of 64 greedy tokens are the same" in report["verification"]["notes"]
    assert report["reports"]["decode"]["notes"] == []
    if kind == "bamba":  # whose chunks have 8 tokens: whole ones, and one that is padded
        check_prompts(decoder(kind), tmp_path / "made/decode.onnx", (1, 7, 8, 9, 16, 33))


def check_prompts(model: Any, path: Path, lengths: tuple[int, ...]) -> None:
    session = load_session(path)
    for length in lengths:
        ids = torch.randint(0, 50, (2, length), generator=torch.Generator().manual_seed(length))
        feeds: dict[str, Any] = {"input_ids": ids.numpy()}
        feeds["attention_mask"] = np.ones((2, length), np.int64)
        feeds["position_ids"] = np.arange(length)[None].repeat(2, 0)
        for value in session.get_inputs():
            sizes = [{"batch": 2, "past": 0}.get(size, size) for size in value.shape]
            if value.name not in feeds:
                feeds[value.name] = np.zeros(sizes, np.float32)
        with torch.no_grad():
            expected = model(ids).logits.numpy()
        np.testing.assert_allclose(session.run(["logits"], feeds)[0], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "static_cache", "reason"),
    [
        ("mamba2", None, "attention_mask of Mamba2"),
        ("jamba", None, "2 to 2 tokens"),
        ("lfm2", 32, "attention_mask.conv of Lfm2"),
    ],
)
def test_what_cannot_be_one_graph_is_refused(
    kind: str, static_cache: int | None, reason: str, tmp_path: Path
) -> None:
    options: Any = {"multi_token": True, "static_cache": static_cache}
    with pytest.raises(rx.Error, match=reason):
        rx.export_generation(decoder(kind), tmp_path / "made", **options)
    assert not (tmp_path / "made").exists()


def test_a_type_is_advised_that_the_model_has_not(tmp_path: Path) -> None:
    """A dynamic rotary embedding branches on values in float32, too."""
    config = decoder("llama").config
    config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    with pytest.raises(rx.InputError, match="DataDependent") as caught:
        rx.export_generation(transformers.LlamaForCausalLM(config).eval(), tmp_path / "made")
    assert "--dtype" not in caught.value.fix


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["llava", "gemma3", "qwen2_vl"])
def test_a_language_model_alone_takes_text(kind: str, tmp_path: Path) -> None:
    report = exported(kind, tmp_path, "--part", "language-model")
    assert [*report["reports"]] == ["prefill", "decode"]
    assert main(["verify", f"{tmp_path}/saved", f"{tmp_path}/made", "--generate", "3"]) == 0


@pytest.mark.thorough
def test_a_language_model_alone_has_the_names_of_optimum(tmp_path: Path) -> None:
    decoder("llava").save_pretrained(tmp_path / "saved")
    arguments = ["export", f"{tmp_path}/saved", "--task", "generation", "-o", f"{tmp_path}/made"]
    assert main([*arguments, "--part", "language-model", "--names", "optimum"]) == 0
    assert (tmp_path / "made/model.onnx").exists()
    config = json.loads((tmp_path / "made/config.json").read_text())
    assert config["model_type"] == "llama"  # whose sizes optimum reads


@pytest.mark.thorough
def test_positions_of_several_axes_are_refused_for_optimum(tmp_path: Path) -> None:
    with pytest.raises(rx.UsageError, match="several axes"):
        rx.export_generation(
            decoder("qwen2_vl"), tmp_path / "made", names="optimum", part="language-model"
        )
    assert not (tmp_path / "made").exists()


def test_images_of_unlike_sizes_are_refused() -> None:
    """The attention that transformers exports cuts the patches into parts of one length."""
    encode, grids = decoder("qwen2_vl").get_encoder("image").forward, [[1, 4, 4], [1, 8, 4]]
    with pytest.raises(rx.InputError, match="one length") as caught:
        inputs_of(encode, torch.zeros(48, 96), grid_thw=torch.tensor(grids))
    assert "cu_seqlens: [16, 32]" in caught.value.found


@pytest.mark.thorough
def test_a_graph_of_patches_takes_images_of_another_size(tmp_path: Path) -> None:
    model = decoder("qwen2_vl")
    rx.export_generation(model, tmp_path / "made")
    ids = torch.tensor([[5, *[63] * 8, 6], [7, *[63] * 8, 8]])
    images = {"pixel_values": torch.randn(64, 96), "image_grid_thw": torch.tensor([[1, 8, 4]] * 2)}
    feeds = {"input_ids": ids, "mm_token_type_ids": (ids == 63).long(), **images}
    assert verify_generation(model, tmp_path / "made", feeds, tokens=8).passed
