"""What the GPU benchmark times: one norm over rows of one length, with the bytes it has to move."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch

Op = Literal["norm", "skip", "fp8", "rotary"]
"""``norm``: y of x; ``skip``: y and x + residual; ``fp8``: y of x as E4M3 with a static scale;
``rotary``: y of x, turned by the angles of its token."""

HEADS = 32
"""Rows of a token, which have its angles (``rotary``)."""

EPSILON = 1e-6
QUANT_SCALE = 0.02  # 448 * 0.02 is beyond every y of the random inputs: nothing saturates


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """One line of the benchmark.

    Attributes:
        op: see ``Op``.
        rows, n: of x.
        dtype: of x, the residual, the weight and (unless ``fp8``) of y.
    """

    op: Op
    rows: int
    n: int
    dtype: str

    @property
    def torch_dtype(self) -> torch.dtype:
        found = getattr(torch, self.dtype)
        assert isinstance(found, torch.dtype)
        return found

    @property
    def tokens(self) -> int:
        """Rows of cos and sin (``rotary``)."""
        return max(1, self.rows // HEADS)

    @property
    def bytes(self) -> int:
        """Each input read once, each output written once."""
        size = self.torch_dtype.itemsize
        elements = self.rows * self.n
        written = 1 if self.op == "fp8" else size
        moved = elements * (size + written) + self.n * size
        more = {"skip": 2 * elements, "rotary": 2 * self.tokens * self.n}
        return moved + more.get(self.op, 0) * size


@dataclasses.dataclass(slots=True)
class Buffers:
    """Tensors of one call, on the GPU: ``residual`` and ``total`` for ``skip``, ``cos`` and ``sin``
    of [tokens, n] for ``rotary``."""

    x: torch.Tensor
    weight: torch.Tensor
    y: torch.Tensor
    quant_scale: torch.Tensor
    residual: torch.Tensor | None = None
    total: torch.Tensor | None = None
    cos: torch.Tensor | None = None
    sin: torch.Tensor | None = None


def buffers(work: Work, generator: torch.Generator) -> Buffers:
    """Random inputs and outputs full of NaN."""
    dtype, device = work.torch_dtype, generator.device

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=dtype, generator=generator)

    shape = (work.rows, work.n)
    out = torch.float8_e4m3fn if work.op == "fp8" else dtype
    y = torch.full(shape, float("nan"), device=device, dtype=torch.float32).to(out)
    made = Buffers(
        x=drawn(*shape),
        weight=drawn(work.n) * 0.2 + 1,
        y=y,
        quant_scale=torch.full((1,), QUANT_SCALE, device=device),
    )
    if work.op == "skip":
        made.residual = drawn(*shape)
        made.total = torch.full(shape, float("nan"), device=device, dtype=dtype)
    if work.op == "rotary":
        angles = drawn(work.tokens, work.n // 2).repeat(1, 2)  # halves, as models have them
        made.cos, made.sin = angles.cos(), angles.sin()
    return made


def worst_error(work: Work, used: Buffers, y: torch.Tensor, *, rows: int = 64) -> float:
    """Largest error of ``y`` in its first and last rows against float64, in ulps of its type.

    The rounding order is not judged: a result in LLaMA's and one in Gemma's order both pass with
    2 ulp, a wrong one is off by thousands.
    """
    picked = sorted({*range(min(rows, work.rows)), *range(max(0, work.rows - rows), work.rows)})
    x = used.x[picked]
    if used.residual is not None:
        x = x + used.residual[picked]
    wide = x.double()
    truth = wide / (wide.square().mean(-1, keepdim=True) + EPSILON).sqrt() * used.weight.double()
    found, size = y[picked], truth
    if used.cos is not None and used.sin is not None:
        token = torch.tensor(picked, device=x.device) // (work.rows // work.tokens)
        across = torch.cat((-truth[:, work.n // 2 :], truth[:, : work.n // 2]), -1)
        size = torch.hypot(truth, across)  # of two terms that may cancel
        truth = truth * used.cos[token].double() + across * used.sin[token].double()
    if work.op == "fp8":
        truth = size = truth / QUANT_SCALE
    bits = {torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}.get(found.dtype, 3)
    smallest = {torch.float16: -14, torch.float8_e4m3fn: -6}.get(found.dtype, -126)
    exponent = size.abs().clamp(min=2.0**smallest).log2().floor()
    error = (found.double() - truth).abs() / torch.exp2(exponent - bits)
    return float(error.max()) if bool(torch.isfinite(error).all()) else float("inf")
