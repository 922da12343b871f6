"""Decoders that several modules look at: exported once in a process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rmsnorm_export as rx
from rmsnorm_export.cli.main import main

Folder = tuple[Any, Path]
"""A model and its export."""


def served(sessions: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """What the client of the examples asks a server for, and the inputs of its models."""
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    inputs = {
        name: {
            one.name: (kinds[one.type], [s if isinstance(s, int) else -1 for s in one.shape])
            for one in session.get_inputs()
        }
        for name, session in sessions.items()
    }

    def infer(name: str, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = sessions[name].get_outputs()  # of optimum's names, too
        names = [one.name.replace("present", "output.past_key_values") for one in outputs]
        return dict(zip(names, sessions[name].run(None, feeds), strict=True))

    return infer, inputs


@pytest.fixture(scope="session")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LLaMA's of a config.json, with proofs, compared with PyTorch; its report is beside it."""
    from toolbox.corpus.decoders import decoder as decoder_of

    folder = tmp_path_factory.mktemp("decoder")
    config = decoder_of("llama").config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    arguments = ["export", folder / "config.json", "--task", "generation", "-o", folder / "made"]
    arguments += ["--verify", "--prove", "--require", "all", "--report", folder / "r.json"]
    assert main([str(argument) for argument in arguments]) == 0
    return folder / "made"


@pytest.fixture(scope="session")
def one_graph(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """LLaMA's with the names of optimum, in a folder that was in use."""
    from toolbox.corpus.decoders import decoder as decoder_of

    model, place = decoder_of("llama"), tmp_path_factory.mktemp("one") / "made"
    place.mkdir()
    (place / "notes.txt").write_text("mine")
    rx.export_generation(model, place, names="optimum", target="ort", force=True)
    return model, place


@pytest.fixture(scope="session")
def static(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """One layer of LLaMA's with a cache for 16 tokens, and heads of 16, which can be fused."""
    from toolbox.corpus.decoders import decoder as decoder_of

    model = decoder_of("llama", num_hidden_layers=1, hidden_size=64, head_dim=16)
    place = tmp_path_factory.mktemp("static") / "made"
    rx.export_generation(model, place, static_cache=16)
    return model, place
