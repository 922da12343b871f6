"""Small modules with norms: written by hand in each order of rounding, and ``torch.nn.RMSNorm``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

N = 64


class Llama(nn.Module):
    """Round to the type of x, then scale in it."""

    def __init__(self, n: int = N) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, n))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class Builtin(nn.RMSNorm):
    """``torch.nn.RMSNorm`` with a weight that is not one."""

    def __init__(self, n: int = N) -> None:
        super().__init__(n, eps=1e-6)
        with torch.no_grad():
            self.weight.copy_(torch.linspace(0.5, 1.5, n))


KINDS: dict[str, type[nn.Module]] = {
    "llama": Llama,
    "builtin": Builtin,
}


class Block(nn.Module):
    """Pre-norm: ``x + linear(norm(x))``."""

    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.input_layernorm = norm()
        self.linear = nn.Linear(N, N)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(self.input_layernorm(x))


class Model(nn.Module):
    """An embedding, two blocks, a norm and a head that shares the embedding's weight."""

    def __init__(self, norm: type[nn.Module] = Llama) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, N)
        self.layers = nn.ModuleList([Block(norm), Block(norm)])
        self.norm = norm()
        self.head = nn.Linear(N, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return {"logits": self.head(self.norm(x)), "hidden": x}


def make(module: type[nn.Module], dtype: torch.dtype, *args: Any) -> nn.Module:
    """A module with fixed random weights, in one type."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return module(*args).to(dtype)


def ids(rows: int = 2, columns: int = 5, seed: int = 0) -> Tensor:
    """Random token numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 50, (rows, columns), generator=generator)
