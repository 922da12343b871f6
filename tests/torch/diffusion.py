"""A small diffusion transformer, its norms all ``torch.nn.RMSNorm``.

As in Stable Diffusion 3 and Flux: image patches and text go through attention together, each with
weights of its own; queries and keys are normalised per head; the norm in front of a block has no
weight, its result is scaled and shifted by what a network makes of the time step (AdaLN).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, TEXT = 64, 4, 24


def modulate(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """One scale and shift per sample: no weight of a norm."""
    return x * (1 + scale[:, None]) + shift[:, None]


class Stream(nn.Module):
    """What the image and the text each have of their own in a block."""

    def __init__(self) -> None:
        super().__init__()
        self.modulation = nn.Linear(WIDTH, 6 * WIDTH)
        self.norm1 = nn.RMSNorm(WIDTH, eps=1e-6, elementwise_affine=False)
        self.norm2 = nn.RMSNorm(WIDTH, eps=1e-6, elementwise_affine=False)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.norm_q = nn.RMSNorm(WIDTH // HEADS, eps=1e-6)
        self.norm_k = nn.RMSNorm(WIDTH // HEADS, eps=1e-6)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU("tanh"), nn.Linear(2 * WIDTH, WIDTH)
        )

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).unbind(-3)
        return self.norm_q(q), self.norm_k(k), v


class Block(nn.Module):
    """Joint attention, then an MLP for each stream, both added with a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.image = Stream()
        self.text = Stream()

    def forward(self, image: Tensor, text: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        streams = ((self.image, image), (self.text, text))
        parts = [part.modulation(functional.silu(time)).chunk(6, dim=-1) for part, _ in streams]
        inputs = [
            part.heads(modulate(part.norm1(x), s[0], s[1]))
            for (part, x), s in zip(streams, parts, strict=True)
        ]
        q, k, v = (torch.cat(both, dim=1).transpose(1, 2) for both in zip(*inputs, strict=True))
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        pieces = (mixed[:, : image.shape[1]], mixed[:, image.shape[1] :])
        results = []
        for (part, x), s, piece in zip(streams, parts, pieces, strict=True):
            x = x + s[2][:, None] * part.out(piece)
            x = x + s[5][:, None] * part.mlp(modulate(part.norm2(x), s[3], s[4]))
            results.append(x)
        return results[0], results[1]


class DiffusionTransformer(nn.Module):
    """The noise in ``image`` [batch, 4, 8, 8], given ``text`` [batch, tokens, 24] and ``time``."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, WIDTH, 2, stride=2)
        self.norm_text = nn.RMSNorm(TEXT)
        self.embed_text = nn.Linear(TEXT, WIDTH)
        self.embed_time = nn.Linear(16, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.modulation = nn.Linear(WIDTH, 2 * WIDTH)
        self.norm_out = nn.RMSNorm(WIDTH, eps=1e-6, elementwise_affine=False)
        self.out = nn.Linear(WIDTH, 16)

    def forward(self, image: Tensor, text: Tensor, time: Tensor) -> Tensor:
        rows, columns = image.shape[2] // 2, image.shape[3] // 2
        x = self.patches(image).flatten(2).transpose(1, 2)
        y = self.embed_text(self.norm_text(text))
        angles = time[:, None].float() * 2.0 ** -torch.arange(8, device=time.device)
        waves = torch.cat((angles.cos(), angles.sin()), dim=-1)
        t = self.embed_time(waves.to(image.dtype))
        for block in self.blocks:
            x, y = block(x, y, t)
        scale, shift = self.modulation(functional.silu(t + y.mean(dim=1))).chunk(2, dim=-1)
        x = self.out(modulate(self.norm_out(x), scale, shift))
        x = x.unflatten(1, (rows, columns)).unflatten(-1, (4, 2, 2))
        return x.permute(0, 3, 1, 4, 2, 5).reshape(image.shape)


def make(dtype: torch.dtype) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The model with fixed random weights, those of its norms included, and an example."""
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = DiffusionTransformer().to(dtype).eval()
    for module in model.modules():
        if isinstance(module, nn.RMSNorm) and module.weight is not None:
            noise = torch.rand(module.weight.shape, generator=generator) + 0.5
            module.weight.data.copy_(noise)
    image = torch.randn((2, 4, 8, 8), generator=generator).to(dtype)
    text = torch.randn((2, 5, TEXT), generator=generator).to(dtype)
    return model, (image, text, torch.tensor([3.0, 40.0], dtype=dtype))
