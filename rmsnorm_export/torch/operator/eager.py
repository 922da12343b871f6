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
    """The formula of ``rmsnorm_export.op.spec`` on checked operands.

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
        like_x = (x, residual, gate)
        x, residual, gate = (None if v is None else v.movedim(spec.axis, -1) for v in like_x)  # type: ignore[assignment]
        done = forward(
            trailing(plan), x, flat(scale), flat(bias), residual=residual, gate=gate, reuse=reuse
        )
        y, total = (value.movedim(-1, spec.axis).contiguous() for value in done)
        return y, total
    total = x.contiguous()
    if residual is not None:
        total = total + residual.contiguous()
    row = total.to(plan.stash)
    numerator = total
    activation = None
    if gate is not None:
        activation = _activated_gate(spec, gate.contiguous().to(plan.stash))
        if spec.gate_first:
            row = row * activation
            numerator = row.to(plan.out)
    factor = None if scale is None else _scale_factor(plan, scale, row)
    y = _normalise(plan, row, numerator, factor, reuse).to(plan.product)
    if factor is not None and not spec.association:
        y = y.mul_(factor) if reuse else y * factor
    if bias is not None:
        addend = bias.to(plan.product).reshape(row.shape[spec.axis :])
        y = y.add_(addend) if reuse else y + addend
    if activation is not None and not spec.gate_first:
        y = y.to(plan.stash) * activation
    y = y.to(plan.out)
    if cos is not None and sin is not None:
        y = turned(spec, y, cos, sin).contiguous()
    return y, total


def turned(spec: NormSpec, y: Tensor, cos: Tensor, sin: Tensor, *, back: bool = False) -> Tensor:
    """The norm ``y`` with its rotary embedding, in the type of the tables; as ``y`` at the end.

    ``back``: turned by the transpose of the embedding, as gradients are.
    """
    size = spec.rotary_dim or y.shape[-1]
    part = y[..., :size].to(cos.dtype)
    cos, sin = (of_elements(spec, table, size) for table in (cos, sin))
    rotated = -quarter_turn(spec, part * sin) if back else quarter_turn(spec, part) * sin
    result = (part * cos + rotated).to(y.dtype)
    return result if size == y.shape[-1] else torch.cat([result, y[..., size:]], -1)


def of_elements(spec: NormSpec, table: Tensor, size: int) -> Tensor:
    """A table with one entry for each of ``size`` elements."""
    if table.shape[-1] == size:
        return table
    return _joined(spec, table, table)


def quarter_turn(spec: NormSpec, part: Tensor) -> Tensor:
    """The row in which each pair (a, b) is (-b, a)."""
    first, second = in_pairs(spec, part)
    return _joined(spec, -second, first)


def in_pairs(spec: NormSpec, part: Tensor) -> tuple[Tensor, ...]:
    """The first and the second element of every pair."""
    if spec.rotary_interleaved:
        return part[..., ::2], part[..., 1::2]
    return part.chunk(2, -1)


def _joined(spec: NormSpec, first: Tensor, second: Tensor) -> Tensor:
    return torch.stack([first, second], -1 if spec.rotary_interleaved else -2).flatten(-2)


def trailing(plan: NormPlan) -> NormPlan:
    """The plan for rows that have been moved to the last axis."""
    return dataclasses.replace(plan, spec=plan.spec.trailing())


def flat(value: Tensor | None) -> Tensor | None:
    """A scale or bias as a row."""
    return None if value is None else value.reshape(-1)


def _normalise(
    plan: NormPlan, row: Tensor, numerator: Tensor, factor: Tensor | None, reuse: bool
) -> Tensor:
    """``v`` of the formula, a new tensor; with an ``association`` the scale is in it already."""
    spec = plan.spec
    shape = row.shape
    row, numerator = in_groups(spec, row), in_groups(spec, numerator)
    squares = part_of(spec, row).square()
    rms = _rms(plan, squares, row, reuse)
    if factor is not None and spec.association == 2:
        row = numerator = row * factor
    if spec.round_rstd:
        reciprocal = rms.reciprocal().to(plan.out)
        if factor is not None and spec.association == 1:
            return numerator * (reciprocal * factor)
        return (numerator * reciprocal).reshape(shape)
    if reuse and squares.shape == row.shape:
        return torch.div(row, rms, out=squares).reshape(shape)
    return (row / rms).reshape(shape)


def _rms(plan: NormPlan, squares: Tensor, row: Tensor, reuse: bool) -> Tensor:
    """Root mean square of every row or group, stabilised by epsilon, in the stash type."""
    spec = plan.spec
    axes = reduced_axes(spec)
    total = squares.sum(axes, keepdim=True, dtype=plan.wide)
    # Divided, not taken by torch.mean: that multiplies by a rounded 1 / n on CUDA.
    mean = (total / count(spec, row)).to(plan.stash)
    if spec.epsilon_outside:
        return _root(mean, reuse) + plan.epsilon
    if spec.epsilon_clamp:
        return _root(mean, reuse).clamp_min(plan.epsilon)
    return _root(mean + plan.epsilon, reuse)


def _root(value: Tensor, library: bool) -> Tensor:
    """The square root, correctly rounded; on a CPU in float64 to an ulp.

    ``library``: it is computed by PyTorch's own kernel, not by code that a compiler makes.
    """
    # On a CPU that kernel is MKL's, an ulp off for one number in 140; once it is rounded from
    # float64 to float32 that is no longer seen.
    if library and value.device.type == "cpu" and value.dtype == torch.float32:
        return value.double().sqrt().to(torch.float32)
    return value.sqrt()


def _scale_factor(plan: NormPlan, scale: Tensor, row: Tensor) -> Tensor:
    """``scale_offset + scale`` in the type of the product, in the shape of the normalised axes."""
    factor = scale.to(plan.product).reshape(row.shape[plan.spec.axis :])
    return factor + plan.offset if plan.offset else factor


def _activated_gate(spec: NormSpec, gate: Tensor) -> Tensor:
    sigmoid = gate.sigmoid()
    # Not torch's silu: the spec rounds the sigmoid first.
    return sigmoid if spec.activation == "sigmoid" else gate * sigmoid


def in_groups(spec: NormSpec, row: Tensor) -> Tensor:
    """The row cut into its groups, where it has any: one more axis."""
    if not spec.group_size:
        return row
    return row.reshape(*row.shape[:-1], row.shape[-1] // spec.group_size, spec.group_size)


def reduced_axes(spec: NormSpec) -> list[int]:
    """The axes of a row; a grouped row has been cut before."""
    return list(spec.row_axes())


def part_of(spec: NormSpec, row: Tensor) -> Tensor:
    """The elements that the mean square is taken from."""
    return row[..., : spec.partial_size] if spec.partial_size else row


def count(spec: NormSpec, row: Tensor) -> int:
    """How many those are."""
    return spec.partial_size or math.prod(row.shape[spec.axis :])
