"""RMSNorm as a module, for every variant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.operands import check_row
from rmsnorm_export.op.spec import Kind
from rmsnorm_export.torch.operator.ops import call
from rmsnorm_export.torch.operator.plan import OPERANDS, make_spec


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
        RMSNorm(n, partial_size=k)                          pRMSNorm: mean of the first k
        RMSNorm(n, group_size=64)                           Mamba-2: a root mean square per group
        RMSNorm((h, w))                                     the last two axes
        RMSNorm(n, kind="GatedRMSNorm")                     forward(x, gate)
        RMSNorm(n, kind="SkipRMSNorm")                      forward(x, residual) -> y, sum
        RMSNorm(n, kind="RotaryRMSNorm")                    forward(x, cos, sin)

    ``weight`` and ``bias`` are parameters of the shape of the row, or None, so that the usual state
    dicts load. Numerics, types, autocast, compilation: see ``rmsnorm_export.torch.operator.ops``.

    Args:
        normalized_shape: shape of a row, or the number of its elements.
        weight: give it a scale.
        bias: give it a bias.
        kind: the operator: ``RMSNorm``, ``SkipRMSNorm``, ``GatedRMSNorm`` or ``RotaryRMSNorm``.
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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **attributes: Any,
    ) -> None:
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
        spec = make_spec(kind, epsilon=epsilon, axis=-len(shape), **attributes)
        super().__init__()
        check_row(spec, math.prod(shape), has_scale=weight)
        self.spec = spec
        self.normalized_shape = tuple(shape)
        for name, has in (("weight", weight), ("bias", bias)):
            values = torch.empty(tuple(shape), device=device, dtype=dtype) if has else None
            self.register_parameter(name, None if values is None else torch.nn.Parameter(values))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set a scale of one (``weight`` is 1 - scale_offset) and a bias of zero."""
        with torch.no_grad():
            if self.weight is not None:
                self.weight.fill_(1.0 - self.spec.scale_offset)
            if self.bias is not None:
                self.bias.zero_()

    def forward(self, x: Tensor, other: Tensor | None = None, sin: Tensor | None = None) -> Any:
        """Compute the norm of ``x``.

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
        names = OPERANDS[self.spec.kind][1:-2]
        if x.shape[-len(self.normalized_shape) :] != self.normalized_shape:
            raise UsageError(
                "The tensor x does not end in the normalised shape.",
                found=f"shape {tuple(x.shape)}, normalized_shape {self.normalized_shape}",
                fix="make the module with the shape of the rows of x",
            )
        others = [value for value in (other, sin) if value is not None]
        if len(others) != len(names):
            raise UsageError(
                f"{self.spec.kind} takes {1 + len(names)} tensors.",
                found=f"{1 + len(others)} tensors",
                fix=f"give x{''.join(f', {name}' for name in names)}",
            )
        more = dict(zip(names, others, strict=True))
        return call(self.spec, x, self.weight, self.bias, **more)

    def extra_repr(self) -> str:
        """Return ``(64,), epsilon=1e-05`` and whatever is not as in the ordinary norm."""
        more = {"kind": self.spec.kind, **self.spec.non_default()}
        more |= {"weight": self.weight is not None, "bias": self.bias is not None}
        usual = {"kind": "RMSNorm", "weight": True, "bias": False}
        words = [f"{name}={more[name]}" for name in more if more[name] != usual.get(name)]
        return ", ".join([f"{self.normalized_shape}, epsilon={self.spec.epsilon:g}", *words])
