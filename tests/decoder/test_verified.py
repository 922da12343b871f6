"""A folder as its consumer reads it: what ``verify --generate`` compares, what ``package`` says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("transformers.exporters.metadata", reason="pip install 'transformers>=5.23'")

import torch

import rmsnorm_export as rx
from rmsnorm_export.cli.main import main
from rmsnorm_export.decoder.generation import verify_generation
from rmsnorm_export.errors import ExitCode
from toolbox.corpus.decoders import decoder as decoder_of

pytestmark = [pytest.mark.export, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For onnxruntime-genai; its graph concatenates new tokens to the cache."""
    place = tmp_path_factory.mktemp("genai") / "made"
    rx.export_generation(decoder_of("llama"), place, names="genai")
    return place


def test_one_buffer_of_a_graph_that_makes_two_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    config = json.loads((copy / "genai_config.json").read_text())
    config["search"]["past_present_share_buffer"] = True
    (copy / "genai_config.json").write_text(json.dumps(config))
    with pytest.raises(rx.InputError, match="in the buffer of"):
        rx.verify(decoder_of("llama"), copy, generate=3)


def test_the_one_graph_of_a_folder_has_the_name_that_is_given(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what was asked names the caches of all layers once."""
    command = ["package", str(folder), "-o", str(tmp_path / "models"), "--name", "small"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("packaged small, version 1")
    assert [entry.name for entry in (tmp_path / "models").iterdir()] == ["small"]
    (asked,) = (line for line in lines if line.startswith("asked: "))
    assert "past_key_values.{0-1}.key " in asked
    assert len(lines) < 8


@pytest.mark.parametrize("option", ["--verify", "--quantize=int4", "--for=onnxruntime"])
def test_what_bfloat16_cannot_have_is_said_before_the_export(option: str, tmp_path: Path) -> None:
    decoder_of("llama").save_pretrained(tmp_path / "source")
    command = ["export", str(tmp_path / "source"), "--task", "generation", "--dtype", "bf16"]
    command += ["-o", str(tmp_path / "made")]
    assert main([*command, option]) == ExitCode.USAGE
    assert not (tmp_path / "made").exists()


def test_a_static_cache_is_compared_on_rows_without_padding(tmp_path: Path) -> None:
    """``generate`` gives no mask then, and the graph takes one over all slots."""
    model = decoder_of("llama")
    rx.export_generation(model, tmp_path / "made", static_cache=16)
    ids = torch.tensor([[5, 9, 2], [7, 1, 3]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    steps: list[tuple[int, int]] = []
    outcome = verify_generation(
        model, tmp_path / "made", inputs, tokens=6,
        progress=lambda _, done, total: steps.append((done, total)),
    )  # fmt: skip
    assert outcome.passed
    assert outcome.notes[0] == "12 of 12 greedy tokens are the same"
    assert steps == [(done, 6) for done in range(1, 7)]
