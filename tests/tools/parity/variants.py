"""The variants of the norm: PyTorch code as its authors wrote it, and our module for the same.

The authors' code is repeated here with one generalisation: where it says ``x.float()``, a float64
row stays float64 (as ``torch.nn.RMSNorm`` has it), so that float64 is a test of the formula.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16

EPSILON = 1e-6
SIZES = (1, 3, 64, 111, 199, 4096, 4104, 8192)
DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
ELEMENT_TYPES = {"float32": FLOAT, "float16": FLOAT16, "bfloat16": BFLOAT16, "float64": DOUBLE}
HALF = ("float16", "bfloat16")

_SHAPES = {1: (1, 1), 3: (3, 1), 64: (8, 8), 111: (3, 37), 199: (199, 1)} | {
    4096: (64, 64),
    4104: (8, 513),
    8192: (64, 128),
}
_GROUPS = {1: 1, 3: 3, 64: 16, 111: 37, 199: 199, 4096: 512, 4104: 513, 8192: 1024}


@dataclasses.dataclass(frozen=True, slots=True)
class Operands:
    """What one call takes: rows, gain, bias, gate or residual; and what the code asks of them."""

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    other: Tensor | None
    shape: tuple[int, ...]

    @property
    def wide(self) -> Tensor:
        """The rows in the type in which authors normalise: float32, or float64."""
        return _wide(self.x)


Eager = Callable[[Operands], Tensor | tuple[Tensor, Tensor]]


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """One variant.

    Attributes:
        name: readable and unique.
        origin: whose code ``eager`` is.
        eager: that code.
        options: of ``rmsnorm_export.torch.RMSNorm``, besides shape, epsilon, weight and bias.
        epsilon: of both.
        weight, bias: whether there is one.
        second: what the second input is.
        dtypes: in which it is something of its own.
    """

    name: str
    origin: str
    eager: Eager
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    epsilon: float = EPSILON
    weight: bool = True
    bias: bool = False
    second: Literal["", "gate", "residual"] = ""
    dtypes: tuple[str, ...] = tuple(DTYPES)

    def shape(self, n: int) -> tuple[int, ...]:
        """Of the normalised axes."""
        return _SHAPES[n] if self.name == "several axes" else (n,)

    def module_options(self, n: int, dtype: str) -> dict[str, Any]:
        """Every option of our module."""
        options = dict(self.options)
        if "group_size" in options:
            options["group_size"] = _GROUPS[n]
        if "partial_size" in options:
            options["partial_size"] = math.ceil(n * options["partial_size"])
        if self.name == "stash half":
            options["stash_type"] = ELEMENT_TYPES[dtype]
        elif dtype == "float64":
            options["stash_type"] = DOUBLE
        return {**options, "weight": self.weight, "bias": self.bias}


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _given(value: Tensor | None) -> Tensor:
    assert value is not None
    return value


def _rsqrt(wide: Tensor) -> Tensor:
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON)


def _paper(o: Operands) -> Tensor:
    norm_x = o.x.norm(2, dim=-1, keepdim=True)
    rms_x = norm_x * o.x.shape[-1] ** (-1.0 / 2)
    return _given(o.weight) * (o.x / rms_x) + _given(o.bias)


def _partial(o: Operands) -> Tensor:
    size = math.ceil(o.x.shape[-1] * 0.0625)
    partial_x, _ = torch.split(o.x, [size, o.x.shape[-1] - size], dim=-1)
    rms_x = partial_x.norm(2, dim=-1, keepdim=True) * size ** (-1.0 / 2)
    return _given(o.weight) * (o.x / (rms_x + 1e-8))


def _outside(o: Operands) -> Tensor:
    rms = o.wide.pow(2).mean(-1, keepdim=True).sqrt()
    return _given(o.weight) * (o.wide / (rms + EPSILON)).to(o.x.dtype)


def _unit_offset(o: Operands) -> Tensor:
    return (_rsqrt(o.wide) * (1.0 + _wide(_given(o.weight)))).type_as(o.x)


def _llama(o: Operands) -> Tensor:
    return _given(o.weight) * _rsqrt(o.wide).to(o.x.dtype)


def _torch_nn(o: Operands) -> Tensor:
    return functional.rms_norm(o.x, o.shape, o.weight, EPSILON)


def _round_rstd(o: Operands) -> Tensor:
    inverse = torch.rsqrt(o.wide.square().mean(-1, keepdim=True) + EPSILON)
    return (o.x * inverse.to(o.x.dtype)) * _given(o.weight)


def _grouped(o: Operands) -> Tensor:
    groups = o.wide.unflatten(-1, (-1, _GROUPS[o.x.shape[-1]]))
    return _given(o.weight) * _rsqrt(groups).flatten(-2).to(o.x.dtype)


def _weightless(o: Operands) -> Tensor:
    return _rsqrt(o.wide).type_as(o.x)


def _bias(o: Operands) -> Tensor:
    return _given(o.weight) * _rsqrt(o.wide).to(o.x.dtype) + _given(o.bias)


def _gated(o: Operands) -> Tensor:
    y = _given(o.weight) * _rsqrt(o.wide).to(o.x.dtype)
    return (y * functional.silu(_wide(_given(o.other)))).to(o.x.dtype)


def _gate_first(o: Operands) -> Tensor:
    row = o.wide * functional.silu(_wide(_given(o.other)))
    return _given(o.weight) * _rsqrt(row).to(o.x.dtype)


def _skip(o: Operands) -> tuple[Tensor, Tensor]:
    total = o.x + _given(o.other)
    return _given(o.weight) * _rsqrt(_wide(total)).to(o.x.dtype), total


def _stash_half(o: Operands) -> Tensor:
    root = torch.sqrt(torch.mean(torch.square(o.x), axis=-1, keepdim=True) + EPSILON)
    return o.x / root * _given(o.weight)


_GATE = {"kind": "GatedRMSNorm"}

VARIANTS = (
    Variant("paper", "bzhangGo/rmsnorm, eps = 0", _paper, epsilon=0.0, bias=True),
    Variant("epsilon outside", "textbook", _outside, {"epsilon_outside": True}),
    Variant(
        "unit offset",
        "transformers Gemma",
        _unit_offset,
        {"scale_offset": 1.0, "scale_before_cast": True},
    ),
    Variant("LLaMA order", "transformers LLaMA", _llama),
    Variant("Gemma order", "torch.nn.RMSNorm", _torch_nn, {"scale_before_cast": True}),
    Variant(
        "round rstd", "transformers DeepSeek-V4, with a gain", _round_rstd, {"round_rstd": True}
    ),
    Variant(
        "partial",
        "bzhangGo/rmsnorm, p = 6.25 %",
        _partial,
        {"partial_size": 0.0625, "epsilon_outside": True},
        epsilon=1e-8,
    ),
    Variant("grouped", "transformers Mamba-2, ungated", _grouped, {"group_size": 1}),
    Variant("weightless", "transformers NanoChat", _weightless, weight=False),
    Variant("bias", "transformers xLSTM", _bias, bias=True),
    Variant("several axes", "torch.nn.RMSNorm", _torch_nn, {"scale_before_cast": True}),
    Variant("gated after", "transformers Qwen3-Next", _gated, _GATE, second="gate"),
    Variant(
        "gate first",
        "transformers Mamba-2",
        _gate_first,
        {**_GATE, "gate_first": True},
        second="gate",
    ),
    Variant("skip", "transformers LLaMA, block", _skip, {"kind": "SkipRMSNorm"}, second="residual"),
    Variant("stash half", "transformers ImageGPT", _stash_half, dtypes=HALF),
)
