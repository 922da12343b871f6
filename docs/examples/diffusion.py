"""The module of diffusion.toml: a small diffusion transformer.

Image patches and text go through attention together. What a network makes of the time step scales
and shifts every normalised row (AdaLN) and gates what is added.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

CHANNELS, TEXT, HEADS, WAVES = 4, 24, 4, 8


class Block(nn.Module):
    """Attention over all tokens, and an MLP, each between a modulated norm and a gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.modulation = nn.Linear(width, 6 * width)
        self.norm_attention = nn.RMSNorm(width, eps=1e-6, elementwise_affine=False)
        self.norm_mlp = nn.RMSNorm(width, eps=1e-6, elementwise_affine=False)
        self.norm_q = nn.RMSNorm(width // HEADS, eps=1e-6)
        self.norm_k = nn.RMSNorm(width // HEADS, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        parts = self.modulation(functional.silu(time))[:, None].chunk(6, dim=-1)
        y = self.norm_attention(x) * (1 + parts[0]) + parts[1]
        heads = self.qkv(y).unflatten(-1, (3, HEADS, -1)).transpose(1, 3)
        q, k, v = heads.unbind(2)
        y = functional.scaled_dot_product_attention(self.norm_q(q), self.norm_k(k), v)
        x = x + parts[2] * self.out(y.transpose(1, 2).flatten(2))
        y = self.norm_mlp(x) * (1 + parts[3]) + parts[4]
        return x + parts[5] * self.down(functional.gelu(self.up(y), approximate="tanh"))


class Denoiser(nn.Module):
    """The noise in ``image`` [batch, 4, h, w], given ``text`` [batch, tokens, 24] and ``time``."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(CHANNELS, width, 2, stride=2)
        self.norm_text = nn.RMSNorm(TEXT, eps=1e-6)
        self.embed_text, self.embed_time = nn.Linear(TEXT, width), nn.Linear(2 * WAVES, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm_out = nn.RMSNorm(width, eps=1e-6)
        self.out = nn.Linear(width, 4 * CHANNELS)

    def forward(self, image: Tensor, text: Tensor, time: Tensor) -> Tensor:
        rows, columns = image.shape[2] // 2, image.shape[3] // 2
        patches = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((patches, self.embed_text(self.norm_text(text))), 1)
        angles = time[:, None].float() * 2.0 ** -torch.arange(WAVES, device=time.device)
        waves = torch.cat((angles.cos(), angles.sin()), dim=-1).to(image.dtype)
        t = self.embed_time(waves)
        for block in self.blocks:
            x = block(x, t)
        x = self.out(self.norm_out(x[:, : rows * columns]))
        x = x.unflatten(1, (rows, columns)).unflatten(-1, (CHANNELS, 2, 2))
        return x.permute(0, 3, 1, 4, 2, 5).reshape(image.shape)


def make(width: int = 64, depth: int = 2) -> nn.Module:
    """The module with random weights, the same ones every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Denoiser(width, depth)
        for module in model.modules():
            if isinstance(module, nn.RMSNorm) and module.weight is not None:
                nn.init.uniform_(module.weight, 0.5, 1.5)
    return model.eval()
