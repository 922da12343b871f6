"""RMSNorm as a module, for every variant."""

from __future__ import annotations

import math
import typing
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.operands import check_offset, check_row
from rmsnorm_export.op.spec import Kind, RowAttributes
from rmsnorm_export.torch.operator.ops import call
from rmsnorm_export.torch.operator.plan import make_spec
from rmsnorm_export.torch.operator.signature import OPERANDS, check_attributes

if TYPE_CHECKING:
    from typing_extensions import Unpack


_ATTRIBUTES = tuple(typing.get_type_hints(RowAttributes))
"""The attributes that a module takes beside epsilon: its shape says the axis."""


class RMSNorm(torch.nn.Module):
    """Root mean square layer normalisation: ``y = x / sqrt(mean(x ** 2) + epsilon) * weight``.

    The defaults are the norm of LLaMA. The variants::

        RMSNorm(n)                                          LLaMA, Mistral, Qwen, T5
        RMSNorm(n, epsilon=0, bias=True)                    the paper, with its bias
        RMSNorm(n, epsilon_outside=True)                    x / (rms(x) + epsilon)
        RMSNorm(n, scale_offset=1, scale_before_cast=True)  Gemma: scale 1 + weight
        RMSNorm(n, scale_before_cast=True)                  torch.nn.RMSNorm, OLMo, GPT-OSS
        RMSNorm(n, round_rstd=True)                         T5 in half precision
        RMSNorm(n, weight=False)                            no scale
        RMSNorm(n, p=0.0625)                                pRMSNorm: mean of the first ceil(n * p)
        RMSNorm(n, group_size=64)                           Mamba-2: a root mean square per group
        RMSNorm((h, w))                                     the last two axes
        RMSNorm(n, kind="GatedRMSNorm")                     forward(x, gate)
        RMSNorm(n, kind="SkipRMSNorm")                      forward(x, residual) -> y, sum
        RMSNorm(n, kind="RotaryRMSNorm")                    forward(x, cos, sin)

    ``weight`` and ``bias`` are parameters of the shape of the row, or None, so that the usual state
    dicts load. Numerics, types, autocast, compilation: see ``rmsnorm_export.torch.operator.ops``.

    Args:
        normalized_shape: shape of a row, or the number of its elements.
        weight: whether there is a scale.
        bias: whether there is a bias.
        kind: the operator: ``RMSNorm``, ``SkipRMSNorm``, ``GatedRMSNorm`` or ``RotaryRMSNorm``.
        p: share of the row that the mean square is taken from, 0 < p <= 1; or ``partial_size``.
        device, dtype: of the parameters.
        **attributes: those of ``rmsnorm_export.NormSpec``, where T is the type of the rows.

    Raises:
        UsageError: attributes that do not fit the row or one another, an unknown attribute.

    Source: Zhang & Sennrich 2019, arXiv 1910.07467.
    """

    weight: torch.nn.Parameter | None
    bias: torch.nn.Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        epsilon: float = 1e-5,
        *,
        weight: bool = True,
        bias: bool = False,
        kind: Kind = "RMSNorm",
        p: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **attributes: Unpack[RowAttributes],
    ) -> None:
        check_attributes("RMSNorm", attributes, ("epsilon", *_ATTRIBUTES))
        shape = _row_shape(normalized_shape)
        if p is not None:
            size = attributes.get("partial_size", 0)
            attributes["partial_size"] = _partial_size(p, size, shape)
        spec = make_spec(kind, epsilon=epsilon, axis=-len(shape), **attributes)
        super().__init__()
        check_row(spec, math.prod(shape))
        check_offset(spec, weight or None)
        self.spec = spec
        self.normalized_shape = shape
        for name, wanted in (("weight", weight), ("bias", bias)):
            made = torch.empty(shape, device=device, dtype=dtype) if wanted else None
            self.register_parameter(name, None if made is None else torch.nn.Parameter(made))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A scale of one (``weight`` is 1 - scale_offset) and a bias of zero."""
        with torch.no_grad():
            if self.weight is not None:
                self.weight.fill_(1.0 - self.spec.scale_offset)
            if self.bias is not None:
                self.bias.zero_()

    def forward(self, x: Tensor, other: Tensor | None = None, sin: Tensor | None = None) -> Any:
        """The norm of ``x``.

        Args:
            x: ``[..., *normalized_shape]``.
            other: the gate of a ``GatedRMSNorm``, the residual of a ``SkipRMSNorm``, cos of a
                ``RotaryRMSNorm``.
            sin: of a ``RotaryRMSNorm``.

        Returns:
            ``y`` of the shape and type of ``x``; for ``SkipRMSNorm`` the pair ``(y, sum)``.

        Raises:
            UsageError: operands that do not fit the module or one another.
        """
        shape = self.normalized_shape
        if tuple(x.shape[-len(shape) :]) != shape:
            raise UsageError(
                "The tensor x does not end in the normalised shape.",
                found=f"shape {tuple(x.shape)}, normalized_shape {shape}",
                fix="make the module with the shape of the rows of x",
            )
        names = OPERANDS[self.spec.kind][1:-2]
        others = [value for value in (other, sin) if value is not None]
        if len(others) > len(names):
            raise UsageError(
                f"{self.spec.kind} takes {1 + len(names)} tensors.",
                found=f"{1 + len(others)} tensors",
                fix="make the module with the kind of operator that takes them",
            )
        return call(self.spec, x, self.weight, self.bias, **dict(zip(names, others, strict=False)))

    def extra_repr(self) -> str:
        """``(64,), epsilon=1e-05`` and whatever is not as in the ordinary norm."""
        ordinary = {"kind": "RMSNorm", "weight": True, "bias": False}
        own = {"kind": self.spec.kind, **self.spec.non_default()}
        own |= {"weight": self.weight is not None, "bias": self.bias is not None}
        words = [f"{name}={own[name]}" for name in own if own[name] != ordinary.get(name)]
        return ", ".join([f"{self.normalized_shape}, epsilon={self.spec.epsilon:g}", *words])


def _row_shape(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or not all(isinstance(size, int) and size > 0 for size in shape):
        raise UsageError(
            "The argument normalized_shape must be one or more positive numbers.",
            found=repr(normalized_shape),
            fix="pass the number of elements of a row, or its shape",
        )
    return shape


def _partial_size(p: float, partial_size: int, shape: tuple[int, ...]) -> int:
    """``k = ceil(n * p)``, the paper's section 3.2; 0 for the whole row."""
    if partial_size or not 0 < p <= 1:
        raise UsageError(
            "The argument p must be above 0 and at most 1, and excludes partial_size.",
            found=f"p={p}, partial_size={partial_size}",
            fix="pass p=0.0625 for the first 6.25 % of the row, or partial_size alone",
        )
    n = math.prod(shape)
    # Of the number as it is written: in floats 30 * 0.1 is above 3.
    size = math.ceil(n * Fraction(str(p)))
    return 0 if size == n else size
