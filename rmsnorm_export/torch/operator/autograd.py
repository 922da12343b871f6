"""Gradients of the operator: those of the paper, for every variant.

For a row ``a`` of n elements, ``v = a / rms``, the gain ``g`` and ``y = v * g + b``::

    dL/db = sum over rows of dL/dy                        (arXiv 1910.07467, equation 7)
    dL/dg = sum over rows of dL/dy * v                    (equation 7)
    dL/da = (1 / rms) (I - a a^T / (n rms^2)) (g * dL/dy) (equations 8 and 9)

With h = g * dL/dy the last line is ``(h - u * sum(h * a) / (n rms)) / rms``, where ``u = a / root``
and ``root`` is the root mean square as the derivative of the square root sees it: ``rms`` itself,
or ``rms - epsilon`` when epsilon is added outside. A partial norm has u = 0 beyond the first k
elements and divides the sum by k; a grouped norm has all of it per group. The casts count as
identities.

Only inputs are saved for the backward pass; 1 / rms costs one reduction and is taken again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.torch.operator.eager import count, forward, part_of, reduced_axes
from rmsnorm_export.torch.operator.plan import Plan

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""Of the normalised tensor (x, or x + residual), the gate, the scale and the bias."""


def gradients(
    plan: Plan,
    needed: tuple[bool, bool, bool, bool],
    grad_y: Tensor,
    x: Tensor,
    gate: Tensor | None,
    scale: Tensor | None,
    bias: Tensor | None,
) -> Gradients:
    """Gradients of a norm, in float64 for a float64 stash type, else in float32.

    Differentiable operators only, so that gradients of gradients follow from autograd.

    Args:
        plan: of the spec, for the type of ``x``.
        needed: of the normalised tensor, gate, scale, bias: whether its gradient is wanted.
        grad_y: of ``y``.
        x: what was normalised, before a gate.
        gate, scale, bias: as given to the norm.

    Returns:
        The gradients, None where not needed, each in the type and shape of its tensor.
    """
    spec = plan.spec
    of_x, of_gate, of_scale, of_bias = needed
    row = x.contiguous().to(plan.grad)
    dy = grad_y.contiguous().to(plan.grad)
    activation = slope = None
    a = row
    if gate is not None:
        activation, slope = _activation(spec, gate.contiguous().to(plan.grad))
        if spec.gate_first:
            a = row * activation
    gain = None if scale is None else _per_row(plan, scale, row) + plan.offset
    rms, root = _statistics(plan, a)
    inverse = rms.reciprocal()

    d_gate = None
    if activation is not None and slope is not None and not spec.gate_first:
        if of_gate:
            ungated = _rescaled(spec, a, inverse)
            ungated = ungated if gain is None else ungated * gain
            if bias is not None:
                ungated = ungated + _per_row(plan, bias, row)
            d_gate = dy * ungated * slope
        dy = dy * activation
    d_bias = _over_rows(spec, dy, bias) if of_bias else None
    d_scale = _over_rows(spec, dy * _rescaled(spec, a, inverse), scale) if of_scale else None
    d_x = None
    if of_x or (of_gate and spec.gate_first):
        d_x = _through_norm(spec, dy if gain is None else dy * gain, a, inverse, root)
        if activation is not None and slope is not None and spec.gate_first:
            d_gate = d_x * row * slope if of_gate else None
            d_x = d_x * activation
    return (
        d_x.to(x.dtype) if d_x is not None and of_x else None,
        d_gate.to(gate.dtype) if d_gate is not None and gate is not None else None,
        d_scale,
        d_bias,
    )


def _statistics(plan: Plan, a: Tensor) -> tuple[Tensor, Tensor]:
    """rms and root of every row or group, in the shape of the cut row with one element."""
    spec = plan.spec
    part = part_of(spec, _cut(spec, a))
    # One pass, no tensor of squares; its derivative at a row of zeros is 0.
    norm = torch.linalg.vector_norm(part, dim=reduced_axes(spec), keepdim=True)
    size = count(spec, part)
    if spec.epsilon_outside:
        root = norm / size**0.5
        return root + plan.epsilon, root
    rms = (norm.square() / size + plan.epsilon).sqrt()
    return rms, rms


def _through_norm(spec: NormSpec, h: Tensor, a: Tensor, inverse: Tensor, root: Tensor) -> Tensor:
    """``(h - u * sum(h * a) / (k rms)) / rms`` for every row or group; ``inverse``: 1 / rms."""
    shape = h.shape
    h, a = _cut(spec, h), _cut(spec, a)
    mean = (h * a).sum(reduced_axes(spec), keepdim=True) / count(spec, h)
    if spec.epsilon_outside:
        # In a row of zeros a / root is 0.
        u = part_of(spec, a) / torch.where(root == 0, 1.0, root)
    else:
        u = part_of(spec, a) * inverse
    # In this order: two factors 1 / rms at once would overflow for tiny rows.
    correction = u * (inverse * mean)
    if spec.partial_size:
        correction = torch.nn.functional.pad(correction, (0, shape[-1] - spec.partial_size))
    return ((h - correction) * inverse).reshape(shape)


def _rescaled(spec: NormSpec, a: Tensor, inverse: Tensor) -> Tensor:
    """``v = a / rms``."""
    return (_cut(spec, a) * inverse).reshape(a.shape)


def _activation(spec: NormSpec, z: Tensor) -> tuple[Tensor, Tensor]:
    """The activation of the gate and its derivative."""
    sigmoid = z.sigmoid()
    if spec.activation == "sigmoid":
        return sigmoid, sigmoid * (1 - sigmoid)
    return z * sigmoid, sigmoid * (1 + z * (1 - sigmoid))


def _cut(spec: NormSpec, row: Tensor) -> Tensor:
    if not spec.group_size:
        return row
    return row.reshape(*row.shape[:-1], row.shape[-1] // spec.group_size, spec.group_size)


def _per_row(plan: Plan, value: Tensor, row: Tensor) -> Tensor:
    return value.to(plan.grad).reshape(row.shape[plan.spec.axis :])


def _over_rows(spec: NormSpec, product: Tensor, like: Tensor | None) -> Tensor | None:
    """Sum over every axis that is not normalised."""
    if like is None:
        return None
    leading = list(range(product.ndim + spec.axis))
    total = product.sum(leading) if leading else product
    return total.reshape(like.shape).to(like.dtype)


def save(
    ctx: Any,
    plan: Plan,
    total: Tensor,
    gate: Tensor | None,
    scale: Tensor | None,
    bias: Tensor | None,
) -> None:
    """Keep for ``backward``: the normalised tensor and the other operands, nothing computed."""
    ctx.plan = plan
    ctx.save_for_backward(total, gate, scale, bias)
    # A residual sum that the loss does not use has no gradient rather than one of zeros.
    ctx.set_materialize_grads(False)


def backward(
    ctx: Any, needed: tuple[bool, bool, bool, bool], grad_y: Tensor | None, grad_sum: Tensor | None
) -> Gradients:
    """``gradients`` from what was saved, plus the gradient of the residual sum."""
    total, gate, scale, bias = ctx.saved_tensors
    if grad_y is None:
        return (grad_sum if needed[0] else None), None, None, None
    found = gradients(ctx.plan, needed, grad_y, total, gate, scale, bias)
    if found[0] is None or grad_sum is None:
        return found
    return found[0] + grad_sum, *found[1:]


class ComposedNorm(torch.autograd.Function):
    """``eager.forward`` with these gradients, one output; a compiler can see through it."""

    @staticmethod
    def forward(
        ctx: Any,
        plan: Plan,
        x: Tensor,
        gate: Tensor | None,
        scale: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        save(ctx, plan, x, gate, scale, bias)
        return forward(plan, x, scale, bias, gate=gate)[0]

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None) -> Any:
        _, of_x, of_gate, of_scale, of_bias = ctx.needs_input_grad
        return None, *backward(ctx, (of_x, of_gate, of_scale, of_bias), grad_y, None)


class ComposedSkipNorm(torch.autograd.Function):
    """As ``ComposedNorm``, for a sum: ``(y, x + residual)``."""

    @staticmethod
    def forward(
        ctx: Any,
        plan: Plan,
        x: Tensor,
        residual: Tensor,
        scale: Tensor | None,
        bias: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        y, total = forward(plan, x, scale, bias, residual=residual)
        save(ctx, plan, total, None, scale, bias)
        return y, total

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None, grad_sum: Tensor | None) -> Any:
        _, of_x, of_residual, of_scale, of_bias = ctx.needs_input_grad
        needed = (of_x or of_residual, False, of_scale, of_bias)
        d_total, _, d_scale, d_bias = backward(ctx, needed, grad_y, grad_sum)
        return None, d_total, d_total, d_scale, d_bias
