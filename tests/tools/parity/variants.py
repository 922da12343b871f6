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
from toolbox.corpus import norm_classes

EPSILON = 1e-6
DTYPES = {**norm_classes.DTYPES, "float64": torch.float64}
ELEMENT_TYPES = {"float32": FLOAT, "float16": FLOAT16, "bfloat16": BFLOAT16, "float64": DOUBLE}
HALF = ("float16", "bfloat16")

_SHAPES = {1: (1, 1), 111: (3, 37), 199: (199, 1), 4104: (8, 513)}
_GROUPS = {1: 1, 111: 37, 199: 199, 4104: 513}


@dataclasses.dataclass(frozen=True, slots=True)
class Operands:
    """What one call takes: rows, gain, bias, gate or residual; and what the code asks of them."""

    x: Tensor
    weight: Any
    bias: Any
    other: Any
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
        eager: the authors' code.
        options: of ``rmsnorm_export.torch.RMSNorm``, besides shape, epsilon, weight and bias.
        epsilon: of both.
        weight, bias: whether there is one.
        second: what the second input is.
        dtypes: in which it is something of its own.
    """

    name: str
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


def _rsqrt(wide: Tensor) -> Tensor:
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON)


def _paper(o: Operands) -> Tensor:
    """bzhangGo/rmsnorm."""
    norm_x = o.x.norm(2, dim=-1, keepdim=True)
    rms_x = norm_x * o.x.shape[-1] ** (-1.0 / 2)
    return o.weight * (o.x / rms_x) + o.bias


def _partial(o: Operands) -> Tensor:
    """bzhangGo/rmsnorm, p = 6.25 %."""
    size = math.ceil(o.x.shape[-1] * 0.0625)
    partial_x, _ = torch.split(o.x, [size, o.x.shape[-1] - size], dim=-1)
    rms_x = partial_x.norm(2, dim=-1, keepdim=True) * size ** (-1.0 / 2)
    return o.weight * (o.x / (rms_x + 1e-8))


def _outside(o: Operands) -> Tensor:
    """Textbooks."""
    rms = o.wide.pow(2).mean(-1, keepdim=True).sqrt()
    return o.weight * (o.wide / (rms + EPSILON)).to(o.x.dtype)


def _unit_offset(o: Operands) -> Tensor:
    """transformers, Gemma."""
    return (_rsqrt(o.wide) * (1.0 + _wide(o.weight))).type_as(o.x)


def _llama(o: Operands) -> Tensor:
    """transformers, LLaMA."""
    return o.weight * _rsqrt(o.wide).to(o.x.dtype)


def _torch_nn(o: Operands) -> Tensor:
    """torch.nn.RMSNorm."""
    return functional.rms_norm(o.x, o.shape, o.weight, EPSILON)


def _round_rstd(o: Operands) -> Tensor:
    """transformers, DeepSeek-V4, with a gain."""
    inverse = torch.rsqrt(o.wide.square().mean(-1, keepdim=True) + EPSILON)
    return (o.x * inverse.to(o.x.dtype)) * o.weight


def _grouped(o: Operands) -> Tensor:
    """transformers, Mamba-2 without its gate."""
    groups = o.wide.unflatten(-1, (-1, _GROUPS[o.x.shape[-1]]))
    return o.weight * _rsqrt(groups).flatten(-2).to(o.x.dtype)


def _weightless(o: Operands) -> Tensor:
    """transformers, NanoChat."""
    return _rsqrt(o.wide).type_as(o.x)


def _bias(o: Operands) -> Tensor:
    """transformers, xLSTM."""
    return o.weight * _rsqrt(o.wide).to(o.x.dtype) + o.bias


def _gated(o: Operands) -> Tensor:
    """transformers, Qwen3-Next."""
    y = o.weight * _rsqrt(o.wide).to(o.x.dtype)
    return (y * functional.silu(_wide(o.other))).to(o.x.dtype)


def _gate_first(o: Operands) -> Tensor:
    """transformers, Mamba-2."""
    row = o.wide * functional.silu(_wide(o.other))
    return o.weight * _rsqrt(row).to(o.x.dtype)


def _skip(o: Operands) -> tuple[Tensor, Tensor]:
    """transformers, a block of LLaMA."""
    total = o.x + o.other
    return o.weight * _rsqrt(_wide(total)).to(o.x.dtype), total


def _stash_half(o: Operands) -> Tensor:
    """transformers, ImageGPT."""
    root = torch.sqrt(torch.mean(torch.square(o.x), axis=-1, keepdim=True) + EPSILON)
    return o.x / root * o.weight


_GATE = {"kind": "GatedRMSNorm"}
_FIRST = {**_GATE, "gate_first": True}
_GEMMA = {"scale_offset": 1.0, "scale_before_cast": True}
_PART = {"partial_size": 0.0625, "epsilon_outside": True}

VARIANTS = (
    Variant("paper", _paper, epsilon=0.0, bias=True),
    Variant("epsilon outside", _outside, {"epsilon_outside": True}),
    Variant("unit offset", _unit_offset, _GEMMA),
    Variant("LLaMA order", _llama),
    Variant("Gemma order", _torch_nn, {"scale_before_cast": True}),
    Variant("round rstd", _round_rstd, {"round_rstd": True}),
    Variant("partial", _partial, _PART, epsilon=1e-8),
    Variant("grouped", _grouped, {"group_size": 1}),
    Variant("weightless", _weightless, weight=False),
    Variant("bias", _bias, bias=True),
    Variant("several axes", _torch_nn, {"scale_before_cast": True}),
    Variant("gated after", _gated, _GATE, second="gate"),
    Variant("gate first", _gate_first, _FIRST, second="gate"),
    Variant("skip", _skip, {"kind": "SkipRMSNorm"}, second="residual"),
    Variant("stash half", _stash_half, dtypes=HALF),
)
