"""The module of diffusion.toml: a small diffusion transformer.

Image patches and text go through attention together, each with weights of its own. What a network
makes of the time step scales and shifts every normalised row (AdaLN) and gates what is added.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

CHANNELS, TEXT, HEADS, WAVES = 4, 24, 4, 8


class Stream(nn.Module):
    """The weights of a block for one of the two kinds of tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.modulation = nn.Linear(width, 6 * width)
        self.norm_attention = nn.RMSNorm(width, eps=1e-6, elementwise_affine=False)
        self.norm_mlp = nn.RMSNorm(width, eps=1e-6, elementwise_affine=False)
        self.norm_q = nn.RMSNorm(width // HEADS, eps=1e-6)
        self.norm_k = nn.RMSNorm(width // HEADS, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def project(self, x: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [batch, tokens, heads, n]."""
        x = self.norm_attention(x) * (1 + scale) + shift
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).unbind(-3)
        return self.norm_q(q), self.norm_k(k), v

    def finish(self, x: Tensor, mixed: Tensor, parts: list[Tensor]) -> Tensor:
        """Add attention and MLP, each through its gate."""
        x = x + parts[2] * self.out(mixed)
        y = self.norm_mlp(x) * (1 + parts[3]) + parts[4]
        return x + parts[5] * self.down(functional.gelu(self.up(y), approximate="tanh"))


class Block(nn.Module):
    """Joint attention of image and text."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.image, self.text = Stream(width), Stream(width)

    def forward(self, image: Tensor, text: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        parts = [
            list(stream.modulation(functional.silu(time))[:, None].chunk(6, dim=-1))
            for stream in (self.image, self.text)
        ]
        first = self.image.project(image, parts[0][0], parts[0][1])
        second = self.text.project(text, parts[1][0], parts[1][1])
        q, k, v = (torch.cat(pair, 1).transpose(1, 2) for pair in zip(first, second, strict=True))
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        count = image.shape[1]
        image = self.image.finish(image, mixed[:, :count], parts[0])
        return image, self.text.finish(text, mixed[:, count:], parts[1])


class Denoiser(nn.Module):
    """The noise in ``image`` [batch, 4, h, w], given ``text`` [batch, tokens, 24] and ``time``."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(CHANNELS, width, 2, stride=2)
        self.norm_text = nn.RMSNorm(TEXT, eps=1e-6)
        self.embed_text, self.embed_time = nn.Linear(TEXT, width), nn.Linear(2 * WAVES, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.modulation = nn.Linear(width, 2 * width)
        self.norm_out = nn.RMSNorm(width, eps=1e-6, elementwise_affine=False)
        self.out = nn.Linear(width, 4 * CHANNELS)

    def forward(self, image: Tensor, text: Tensor, time: Tensor) -> Tensor:
        rows, columns = image.shape[2] // 2, image.shape[3] // 2
        x = self.patches(image).flatten(2).transpose(1, 2)
        y = self.embed_text(self.norm_text(text))
        angles = time[:, None].float() * 2.0 ** -torch.arange(WAVES, device=time.device)
        waves = torch.cat((angles.cos(), angles.sin()), dim=-1).to(image.dtype)
        t = self.embed_time(waves)
        for block in self.blocks:
            x, y = block(x, y, t)
        scale, shift = self.modulation(functional.silu(t))[:, None].chunk(2, dim=-1)
        x = self.out(self.norm_out(x) * (1 + scale) + shift)
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
