"""State space models of ``mambapy``."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tests.tools.corpus.packages.table import Made, Model

_WAYS: dict[str, dict[str, Any]] = {
    "mamba": {},
    "mamba-inner-norms": {"inner_layernorms": True},
    "mamba-mup": {"mup": True, "mup_base_width": 16},
}


def models() -> tuple[Model, ...]:
    # Its scan is a Python loop, which a trace unrolls: the length is that of the example.
    return tuple(Model(name, functools.partial(_make, way), light=True, dynamic=(0,))
                 for name, way in _WAYS.items())  # fmt: skip


def _make(way: dict[str, Any]) -> Made:
    from mambapy.mamba import Mamba, MambaConfig, RMSNorm

    class Language(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(101, 32)
            self.layers = Mamba(MambaConfig(d_model=32, n_layers=2, **{"pscan": False, **way}))
            self.norm = RMSNorm(32)
            self.head = torch.nn.Linear(32, 101)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.norm(self.layers(self.embedding(tokens))))

    return Language(), {"tokens": torch.randint(3, 64, (2, 8))}
