"""Architectures of ``transformers`` by TorchScript, which the architectures' own corpus leaves out.

Their common exporter there is TorchDynamo (see ``architectures``).
"""

from __future__ import annotations

import functools

from tests.tools.corpus.packages.table import TORCH, Made, Model

_NAMES = (
    "llama", "qwen3", "gemma3", "mamba2", "olmo2", "t5_encoder", "nemotron_h", "helium",
    "gpt_oss", "exaone4",
)  # fmt: skip


def models() -> tuple[Model, ...]:
    return tuple(
        Model(name, functools.partial(_make, name), exports=TORCH[:2],
              light=name == "t5_encoder", dynamic=(0, 1))
        for name in _NAMES
    )  # fmt: skip


def _make(name: str) -> Made:
    from tests.tools.corpus import architectures

    model, (tokens,) = architectures.architecture(name).make()
    return model, {"x": tokens}
