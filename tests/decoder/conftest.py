"""A decoder that several modules look at: exported once in a process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rmsnorm_export.cli.main import main


def by_command(folder: Path, model: Any, *options: str) -> Path:
    """The folder that the command writes for a config.json; its report is beside it."""
    config = model.config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    arguments = ["export", folder / "config.json", "--task", "generation", "-o", folder / "made"]
    arguments += ["--verify", "--require", "all", "--report", folder / "r.json", *options]
    assert main([str(argument) for argument in arguments]) == 0
    return folder / "made"


@pytest.fixture(scope="session")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LLaMA's, with proofs, compared with PyTorch."""
    from toolbox.corpus.decoders import decoder as decoder_of

    return by_command(tmp_path_factory.mktemp("decoder"), decoder_of("llama"), "--prove")
