"""The operator in ATen operators, with every rounding step that the spec declares."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.torch.operator.plan import NormPlan


def forward(
    plan: NormPlan,
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    reuse: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute the formula of ``rmsnorm_export.op.spec`` on checked operands.

    Bitwise what ``reference_exact`` gives, except that the sum of squares is taken in the order of
    the device; that a sigmoid, or a square root in float64, is as accurate as the device's; and
    that PyTorch casts float64 to a half type by way of float32.

    Args:
        reuse: write into own intermediates instead of making new ones, as the operator's kernel
            does; not for autograd, nor for a compiler to see through.

    Returns:
        ``y`` and the tensor that was normalised (``x``, or the sum with the residual); contiguous.
    """
    spec = plan.spec
    if spec.last_axis != -1:
        residual, gate = (None if v is None else v.movedim(spec.axis, -1) for v in (residual, gate))
        scale, bias = (None if v is None else v.reshape(-1) for v in (scale, bias))
        trailing = dataclasses.replace(plan, spec=spec.trailing())
        rows = x.movedim(spec.axis, -1)
        results = forward(trailing, rows, scale, bias, residual=residual, gate=gate, reuse=reuse)
        y, total = (value.movedim(-1, spec.axis).contiguous() for value in results)
        return y, total
    total = x.contiguous()
    if residual is not None:
        total = total + residual.contiguous()
    row = total.to(plan.stash)
    numerator = total
    activation = None
    if gate is not None:
        gate = gate.contiguous().to(plan.stash)
        # Not torch's silu: the spec rounds the sigmoid first.
        activation = gate.sigmoid() if spec.activation == "sigmoid" else gate * gate.sigmoid()
        if spec.gate_first:
            row = row * activation
            numerator = row.to(plan.out)
    factor = None if scale is None else _scale_factor(plan, scale, row)
    y = _normalise(plan, row, numerator, factor, reuse).to(plan.product)
    if factor is not None and not (spec.association or spec.scale_rstd):
        y = y.mul_(factor) if reuse else y * factor
    if bias is not None:
        y = y + bias.to(plan.product).reshape(row.shape[spec.axis :])
    if activation is not None and not spec.gate_first:
        y = y.to(plan.stash) * activation
    y = y.to(plan.out)
    if cos is not None and sin is not None:
        y = _rotated(spec, y, cos, sin).contiguous()
    return y, total


def _rotated(spec: NormSpec, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the norm ``y`` in the type of the tables; the result is of that of ``y``."""
    size = spec.rotary_dim or y.shape[-1]
    part = y[..., :size].to(cos.dtype)
    if cos.shape[-1] != size:
        cos, sin = (_joined(spec, table, table) for table in (cos, sin))
    pairs = (part[..., ::2], part[..., 1::2]) if spec.rotary_interleaved else part.chunk(2, -1)
    result = (part * cos + _joined(spec, -pairs[1], pairs[0]) * sin).to(y.dtype)
    return result if size == y.shape[-1] else torch.cat([result, y[..., size:]], -1)


def _joined(spec: NormSpec, first: Tensor, second: Tensor) -> Tensor:
    return torch.stack([first, second], -1 if spec.rotary_interleaved else -2).flatten(-2)


def _normalise(
    plan: NormPlan, row: Tensor, numerator: Tensor, factor: Tensor | None, reuse: bool
) -> Tensor:
    """Return ``v`` of the formula; with an ``association`` or ``scale_rstd`` the scale is in it."""
    spec = plan.spec
    shape = row.shape
    if spec.group_size:
        row, numerator = (v.reshape(*shape[:-1], -1, spec.group_size) for v in (row, numerator))
    part = row[..., : spec.partial_size] if spec.partial_size else row
    squares = (part.to(plan.wide) if spec.unit_length else part).square()
    rms = _rms(plan, squares, row)
    if factor is not None and spec.association == 2:
        row = numerator = row * factor
    if not spec.round_rstd:
        out = squares if reuse and squares.shape == row.shape else None
        return torch.div(row, rms, out=out).reshape(shape)
    reciprocal = rms.reciprocal()
    if factor is not None and spec.scale_rstd:
        return numerator * (reciprocal * factor).to(plan.out)
    reciprocal = reciprocal.to(plan.out)
    if factor is not None and spec.association == 1:
        return numerator * (reciprocal * factor)
    return (numerator * reciprocal).reshape(shape)


def _rms(plan: NormPlan, squares: Tensor, row: Tensor) -> Tensor:
    """Return the root mean square of every row or group, stabilised, in the stash type."""
    spec = plan.spec
    total = squares.sum(list(spec.row_axes()), keepdim=True, dtype=plan.wide)
    if spec.unit_length:
        length, most = _root(total).to(plan.stash), torch.finfo(plan.stash).max
        if spec.epsilon_outside:
            return length + plan.epsilon
        return length.clamp(plan.epsilon, most if spec.unit_length == 2 else None)
    # Divided, not taken by torch.mean: that multiplies by a rounded 1 / n on CUDA.
    count = spec.partial_size or math.prod(row.shape[spec.axis :])
    mean = (total / count).to(plan.stash)
    if spec.epsilon_outside:
        return _root(mean) + plan.epsilon
    if spec.epsilon_clamp:
        return _root(mean).clamp_min(plan.epsilon)
    return _root(mean + plan.epsilon)


def _root(value: Tensor) -> Tensor:
    """Return the square root, correctly rounded; on a CPU in float64 to an ulp."""
    wide = value
    if value.device.type == "cpu" and value.dtype == torch.float32:
        # MKL's is an ulp off for one number in 140, which is not seen after another rounding.
        wide = value.double()
    if value.requires_grad:
        # A row of zeros has no slope; without this it would be infinite, times 0.
        zero = wide == 0
        wide = wide.masked_fill(zero, 1.0).sqrt().masked_fill(zero, 0.0)
    else:
        wide = wide.sqrt()
    return wide.to(value.dtype)


def _scale_factor(plan: NormPlan, scale: Tensor, row: Tensor) -> Tensor:
    """Return ``scale_offset + scale`` in the product's type and the normalised axes' shape."""
    dtype = plan.stash if plan.spec.scale_rstd else plan.product
    factor = scale.to(dtype)
    if not plan.spec.scale_varies:
        factor = factor.reshape(row.shape[plan.spec.axis :])
    return factor + plan.offset if plan.offset else factor
