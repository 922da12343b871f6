"""Decoders that several modules look at: traced and exported once in a process."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import rmsnorm_export as rx
from rmsnorm_export.cli.main import main
from rmsnorm_export.system.packages import is_installed

Folder = tuple[Any, Path]
"""A model and its export."""


def model_of(kind: str, **changes: Any) -> Any:
    """A model with heads that attention rotates itself, whose likely tokens are far apart."""
    from bench.consumers import speak_clearly
    from toolbox.corpus.decoders import DECODERS, decoder

    own = DECODERS[kind].keys() & {"d_model", "d_kv", "kv_lora_rank"}
    sizes = {} if own else {"hidden_size": 64, "head_dim": 16}
    return speak_clearly(decoder(kind, **{**sizes, **changes}))


def _decides(module: Any, feeds: Mapping[str, Any]) -> Iterator[object]:
    """Yield what a trace follows from: the exporter, the module with its weights, its inputs."""
    import torch
    from transformers.exporters.exporter_onnx import OnnxExporter
    from transformers.exporters.utils import get_leaf_tensors

    from rmsnorm_export.decoder.caches import cache_in

    of_a_place = {"architectures", "dtype", "transformers_version", "_name_or_path"}
    sizes = {k: v for k, v in module.config.to_dict().items() if k not in of_a_place}
    yield from (OnnxExporter.export_program, type(module))
    yield json.dumps(sizes, sort_keys=True, default=str)
    for name, weight in module.state_dict().items():
        content = weight.reshape(-1).view(torch.uint8).numpy().tobytes()
        yield from (name, weight.shape, weight.dtype, hashlib.sha256(content).digest())
    for path, tensor in get_leaf_tensors(dict(feeds)).items():
        yield from (path, tensor.shape, tensor.dtype)
    yield from (type(layer) for layer in getattr(cache_in(feeds), "layers", ()))


@pytest.fixture(scope="session", autouse=True)
def graphs_are_traced_once() -> Iterator[None]:
    """Of a model that is exported again, by other names or with fusions, the trace is kept.

    It takes most of an export.
    """
    if not is_installed("torch"):
        yield
        return
    from rmsnorm_export.decoder import components

    begin, kept = components._begin, {}

    def begin_or_keep(name: str, module: Any, feeds: dict[str, Any], options: Any) -> Any:
        how = (name, options.multi_token, options.static_cache, options.opset)
        key = (*how, *_decides(module, feeds))
        wait = None if key in kept else begin(name, module, feeds, options)

        def answer() -> Any:
            whole = kept[key] if wait is None else kept.setdefault(key, wait())
            own = {"model": whole.model.clone(), "metadata": copy.deepcopy(whole.metadata)}
            return dataclasses.replace(whole, **own)

        return answer

    with mock.patch.object(components, "_begin", begin_or_keep):
        yield


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
    model, place = model_of("llama"), tmp_path_factory.mktemp("one") / "made"
    place.mkdir()
    (place / "notes.txt").write_text("mine")
    rx.export_generation(model, place, names="optimum", target="ort", force=True)
    return model, place


@pytest.fixture(scope="session")
def static(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """One layer of LLaMA's with a cache for 16 tokens."""
    model = model_of("llama", num_hidden_layers=1)
    place = tmp_path_factory.mktemp("static") / "made"
    rx.export_generation(model, place, static_cache=16)
    return model, place
