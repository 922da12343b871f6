"""Other people's RMSNorm on a GPU, each behind one function, for the benchmark to time.

A peer that is not installed, or that cannot do an operation, says so instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from bench.gpu.work import EPSILON, QUANT_SCALE, Buffers, Work
from rmsnorm_export.system.packages import versions_of

PeerRun = Callable[[Buffers], Any]
"""Computes the norm once; returns y, or (y, ...)."""


class UnavailableError(Exception):
    """Why a peer takes no part."""


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """A contender: its name, and what makes the function that is timed for one work."""

    name: str
    make: Callable[[Work], PeerRun]


def _chain(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON)
    return weight * wide.to(x.dtype)


def _skip_chain(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + residual
    return _chain(total, weight), total


def _turned(y: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    y = y.view(cos.shape[0], -1, y.shape[-1])
    first, second = y.chunk(2, -1)
    across = torch.cat((-second, first), -1)
    return (y * cos[:, None] + across * sin[:, None]).view(-1, y.shape[-1])


def _rotary_chain(
    x: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    return _turned(_chain(x, weight), cos, sin)


def _fp8_chain(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (_chain(x, weight).float() / QUANT_SCALE).to(torch.float8_e4m3fn)


def _composed(work: Work, wrap: Callable[[Any], Any]) -> PeerRun:
    if work.op == "skip":
        skip = wrap(_skip_chain)
        return lambda b: skip(b.x, b.residual, b.weight)
    if work.op == "rotary":
        rotary = wrap(_rotary_chain)
        return lambda b: rotary(b.x, b.weight, b.cos, b.sin)
    norm = wrap(_fp8_chain if work.op == "fp8" else _chain)
    return lambda b: norm(b.x, b.weight)


def _unfused(work: Work) -> PeerRun:
    return _composed(work, lambda function: function)


def _compiled(work: Work) -> PeerRun:
    torch._dynamo.reset()  # every shape compiled for itself, not as another's dynamic variant
    return _composed(work, lambda function: torch.compile(function, dynamic=False))


def _lacking(work: Work) -> UnavailableError:
    return UnavailableError(
        "turns no norm in the same kernel" if work.op == "rotary" else "has no quantised output"
    )


def _torch(work: Work) -> PeerRun:
    norm = torch.nn.functional.rms_norm
    if work.op == "rotary":
        return lambda b: _turned(norm(b.x, (work.n,), b.weight, EPSILON), b.cos, b.sin)
    if work.op == "norm":
        return lambda b: norm(b.x, (work.n,), b.weight, EPSILON)
    if work.op == "skip":

        def both(b: Buffers) -> tuple[torch.Tensor, torch.Tensor]:
            total = b.x + b.residual
            return norm(total, (work.n,), b.weight, EPSILON), total

        return both
    raise _lacking(work)


def _liger(work: Work) -> PeerRun:
    try:
        from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    except ImportError as error:
        raise UnavailableError("not installed: pip install liger-kernel") from error
    if work.op == "norm":
        run = LigerRMSNormFunction.apply
        return lambda b: run(b.x, b.weight, EPSILON, 0.0, "llama", False)
    if work.op == "skip":
        both = LigerFusedAddRMSNormFunction.apply
        return lambda b: both(b.x, b.residual, b.weight, EPSILON, 0.0, "llama", False)
    raise _lacking(work)


def _quack(work: Work) -> PeerRun:
    try:
        from quack.rmsnorm import rmsnorm
    except ImportError as error:
        raise UnavailableError("not installed: pip install quack-kernels") from error
    if work.op == "norm":
        return lambda b: rmsnorm(b.x, b.weight, eps=EPSILON)
    if work.op == "skip":
        return lambda b: rmsnorm(b.x, b.weight, residual=b.residual, eps=EPSILON, prenorm=True)
    raise _lacking(work)


def _flashinfer(work: Work) -> PeerRun:
    try:
        from flashinfer import norm
    except ImportError as error:
        raise UnavailableError("not installed: pip install flashinfer-python") from error
    if work.dtype == "float32":
        raise UnavailableError("takes half types only")
    if work.op == "norm":
        return lambda b: norm.rmsnorm(b.x, b.weight, EPSILON, out=b.y)
    if work.op == "fp8":

        def quantised(b: Buffers) -> torch.Tensor:
            norm.rmsnorm_quant(b.y, b.x, b.weight, b.quant_scale, EPSILON)
            return b.y

        return quantised
    if work.op == "rotary":
        raise _lacking(work)
    raise UnavailableError("adds in place: repeated calls would not see the same input")


PEERS = (
    Peer("torch fused", _torch),
    Peer("torch.compile", _compiled),
    Peer("Liger", _liger),
    Peer("quack", _quack),
    Peer("flashinfer", _flashinfer),
    Peer("unfused", _unfused),
)


def peer_versions() -> dict[str, str]:
    """Of the packages that take part."""
    names = ("torch", "triton", "liger-kernel", "quack-kernels", "flashinfer-python")
    return dict.fromkeys(names, "not installed") | versions_of(names)
