"""Architectures by the command line, from folders as ``save_pretrained`` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers.exporters.metadata", reason="pip install 'transformers>=5.23'")

from rmsnorm_export.cli.main import main
from tests.tools.corpus.decoders import COMPOSED, composed

pytestmark = [pytest.mark.export, pytest.mark.slow]

QUICK = {"gpt_oss", "llava", "whisper"}
"""Without SDPA, one that sees, one that hears."""


def exported(kind: str, folder: Path, *options: str) -> dict[str, Any]:
    """The report of an export whose tokens are compared."""
    composed(kind).save_pretrained(folder / "saved")
    arguments = ["export", f"{folder}/saved", "--task", "generation", "-o", f"{folder}/made"]
    arguments += ["--verify", "--prove", "--report", f"{folder}/report.json", *options]
    assert main(arguments) == 0
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind in QUICK else [pytest.mark.thorough])
        for kind in COMPOSED
        if kind != "qwen2_vl"  # the sizes of its images are no part of its config
    ],
)
def test_a_saved_model_generates_the_same_tokens(kind: str, tmp_path: Path) -> None:
    report = exported(kind, tmp_path)
    sees = "vision_config" in COMPOSED[kind][1]
    first = ["image_encoder"] if sees else ["encoder"] if kind in ("bart", "whisper") else []
    assert [*report["reports"]] == [*first, "prefill", "decode"]
    refused = [site for one in report["reports"].values() for site in one["refused"]]
    assert [site for site in refused if site["kind"] == "norm"] == []
    assert "64 of 64 greedy tokens are the same" in report["verification"]["notes"]
    assert main(["verify", f"{tmp_path}/saved", f"{tmp_path}/made", "--generate", "3"]) == 0


@pytest.mark.parametrize("kind", ["lfm2", pytest.param("bamba", marks=pytest.mark.thorough)])
def test_states_beside_keys_begin_as_zeros_in_one_graph(kind: str, tmp_path: Path) -> None:
    report = exported(kind, tmp_path, "--multi-token")
    assert "64 of 64 greedy tokens are the same" in report["verification"]["notes"]


@pytest.mark.thorough
def test_a_prompt_that_one_graph_does_not_take_is_no_difference(tmp_path: Path) -> None:
    """Mamba's scan is traced for as many tokens as it is given."""
    composed("mamba2").save_pretrained(tmp_path / "saved")
    arguments = ["export", f"{tmp_path}/saved", "--task", "generation", "-o", f"{tmp_path}/made"]
    assert main([*arguments, "--multi-token", "--verify"]) == 7


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["llava", "gemma3", "qwen2_vl"])
def test_a_language_model_alone_takes_text(kind: str, tmp_path: Path) -> None:
    report = exported(kind, tmp_path, "--part", "language-model")
    assert [*report["reports"]] == ["prefill", "decode"]
    assert main(["verify", f"{tmp_path}/saved", f"{tmp_path}/made", "--generate", "3"]) == 0


@pytest.mark.thorough
def test_a_language_model_alone_has_the_names_of_optimum(tmp_path: Path) -> None:
    composed("qwen2_vl").save_pretrained(tmp_path / "saved")
    arguments = ["export", f"{tmp_path}/saved", "--task", "generation", "-o", f"{tmp_path}/made"]
    assert main([*arguments, "--part", "language-model", "--names", "optimum"]) == 0
    assert (tmp_path / "made/model.onnx").exists()
