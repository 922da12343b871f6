"""Five architectures of the transformers package with random weights, and their export to ONNX."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toolbox.corpus.arch_table import Entry
from toolbox.corpus.architectures import count_norms, make_entry
from toolbox.corpus.exporters import export_module
from toolbox.corpus.tables import tables

SEQUENCE, OPSET = 64, 18
_TABLES = tables(Path(__file__).with_suffix(".toml"))
ARCHITECTURES = {name: Entry(**table) for name, table in _TABLES.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Exported:
    """An exported model with what PyTorch itself computed.

    Attributes:
        module: what was exported.
        path: the ONNX file.
        tokens: int64 [1, SEQUENCE].
        logits: of PyTorch, [1, SEQUENCE, vocabulary].
        norm_calls: calls of RMSNorm modules in one forward pass.
    """

    module: Any
    path: Path
    tokens: np.ndarray
    logits: np.ndarray
    norm_calls: int


def type_of(name: str) -> str:
    """Return the type of a model's weights."""
    return "float16" if name.endswith("f16") else "float32"


def export(name: str, folder: Path, layers: int) -> Exported:
    """Build, run and export one architecture into ``folder``."""
    entry = ARCHITECTURES[name]
    settings = {**entry.settings, "num_hidden_layers": layers}
    entry = dataclasses.replace(entry, settings=settings)
    model, inputs = make_entry(entry, type_of(name), (1, SEQUENCE))
    (tokens,) = inputs.values()
    with torch.no_grad():
        logits = model(tokens)
    path = folder / f"{name.lower().replace(' ', '_')}.onnx"
    export_module(model, inputs, path, f"dynamo{OPSET}", ())
    calls = sum(count_norms(model, tokens).values())
    return Exported(model, path, tokens.numpy(), logits.numpy(), calls)
