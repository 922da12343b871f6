"""Gradients of the operator: those of the paper, for every variant.

For a row ``a`` of n elements, ``v = a / rms``, the scale ``g`` and ``y = v * g + b``::

    dL/db = sum over rows of dL/dy                        (arXiv 1910.07467, equation 7)
    dL/dg = sum over rows of dL/dy * v                    (equation 7)
    dL/da = (1 / rms) (I - a a^T / (n rms^2)) (g * dL/dy) (equations 8 and 9)

With h = g * dL/dy the last line is ``(h - u * sum(h * a) / (n rms)) / rms``, where ``u = a / root``
and ``root`` is the root mean square as the derivative of the square root sees it: ``rms`` itself,
or ``rms - epsilon`` when epsilon is added outside; in a row that is clamped u = 0. A partial
norm has u = 0 beyond the first k elements and divides the sum by k; a grouped norm has all of it
per group. The casts count as identities. A rotary embedding is turned back first.

Only inputs are saved for the backward pass; 1 / rms costs one reduction and is taken again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.torch.operator.eager import (
    count,
    flat,
    forward,
    in_groups,
    in_pairs,
    part_of,
    quarter_turn,
    reduced_axes,
    trailing,
    turned,
)
from rmsnorm_export.torch.operator.plan import NormPlan
from rmsnorm_export.torch.operator.signature import OPERANDS


def gradients(
    plan: NormPlan,
    needed: Collection[str],
    grad_y: Tensor,
    x: Tensor,
    gate: Tensor | None,
    scale: Tensor | None,
    bias: Tensor | None,
) -> dict[str, Tensor | None]:
    """Gradients of a norm, in float64 for a float64 stash type, else in float32.

    Differentiable operators only, so that gradients of gradients follow from autograd.

    Returns:
        By name, each in the type and shape of its tensor; None for what is not in ``needed``.
    """
    spec = plan.spec
    if spec.last_axis != -1:
        like_x = (grad_y, x, gate)
        dy, rows, gates = (None if v is None else v.movedim(spec.axis, -1) for v in like_x)
        assert dy is not None
        assert rows is not None
        found = gradients(trailing(plan), needed, dy, rows, gates, flat(scale), flat(bias))
        places = {"x": x, "gate": gate, "scale": scale, "bias": bias}
        return {
            name: value.movedim(-1, spec.axis)
            if name in ("x", "gate") and value is not None
            else value.reshape(like.shape)
            if value is not None and like is not None
            else None
            for (name, value), like in zip(found.items(), places.values(), strict=True)
        }
    row = x.contiguous().to(plan.wide)
    dy = grad_y.contiguous().to(plan.wide)
    activation = slope = None
    a = row
    if gate is not None:
        activation, slope = _gate_and_slope(spec, gate.contiguous().to(plan.wide))
        if spec.gate_first:
            a = row * activation
    factor = None if scale is None else _per_row(plan, scale, row) + plan.offset
    rms, root = _statistics(plan, a)
    inverse = rms.reciprocal()

    d_gate = None
    if activation is not None and slope is not None and not spec.gate_first:
        if "gate" in needed:
            ungated = _rescaled(spec, a, inverse)
            ungated = ungated if factor is None else ungated * factor
            if bias is not None:
                ungated = ungated + _per_row(plan, bias, row)
            d_gate = dy * ungated * slope
        dy = dy * activation
    d_bias = _over_rows(spec, dy, bias) if "bias" in needed else None
    d_scale = None
    if "scale" in needed:
        d_scale = _over_rows(spec, dy * _rescaled(spec, a, inverse), scale)
    d_x = None
    if "x" in needed or ("gate" in needed and spec.gate_first):
        d_x = _through_norm(spec, dy if factor is None else dy * factor, a, inverse, root)
        if activation is not None and slope is not None and spec.gate_first:
            d_gate = d_x * row * slope if "gate" in needed else None
            d_x = d_x * activation
    return {
        "x": d_x.to(x.dtype) if d_x is not None and "x" in needed else None,
        "gate": d_gate.to(gate.dtype) if d_gate is not None and gate is not None else None,
        "scale": d_scale,
        "bias": d_bias,
    }


def _statistics(plan: NormPlan, a: Tensor) -> tuple[Tensor, Tensor]:
    """rms and root of every row or group, with one element in the place of its elements."""
    spec = plan.spec
    part = part_of(spec, in_groups(spec, a))
    # One pass, no tensor of squares; its derivative at a row of zeros is 0.
    norm = torch.linalg.vector_norm(part, dim=reduced_axes(spec), keepdim=True)
    size = count(spec, part)
    if spec.epsilon_outside:
        root = norm / size**0.5
        return root + plan.epsilon, root
    if spec.epsilon_clamp:
        root = norm / size**0.5
        return root.clamp_min(plan.epsilon), root.where(root >= plan.epsilon, math.inf)
    rms = (norm.square() / size + plan.epsilon).sqrt()
    return rms, rms


def _through_norm(spec: NormSpec, h: Tensor, a: Tensor, inverse: Tensor, root: Tensor) -> Tensor:
    """``(h - u * sum(h * a) / (k rms)) / rms`` for every row or group; ``inverse``: 1 / rms."""
    shape = h.shape
    h, a = in_groups(spec, h), in_groups(spec, a)
    mean = (h * a).sum(reduced_axes(spec), keepdim=True) / count(spec, h)
    if spec.epsilon_outside or spec.epsilon_clamp:
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
    return (in_groups(spec, a) * inverse).reshape(a.shape)


def _gate_and_slope(spec: NormSpec, z: Tensor) -> tuple[Tensor, Tensor]:
    """The activation of the gate and its derivative."""
    sigmoid = z.sigmoid()
    if spec.activation == "sigmoid":
        return sigmoid, sigmoid * (1 - sigmoid)
    return z * sigmoid, sigmoid * (1 + z * (1 - sigmoid))


def _per_row(plan: NormPlan, value: Tensor, row: Tensor) -> Tensor:
    return value.to(plan.wide).reshape(row.shape[plan.spec.axis :])


def _over_rows(spec: NormSpec, product: Tensor, like: Tensor | None) -> Tensor | None:
    """Sum over every axis that is not normalised."""
    if like is None:
        return None
    leading = list(range(product.ndim + spec.axis))
    total = product.sum(leading) if leading else product
    return total.reshape(like.shape).to(like.dtype)


def _of_tables(
    plan: NormPlan, grad: Tensor, y: Tensor, cos: Tensor, sin: Tensor
) -> dict[str, Tensor]:
    """Gradients of cos and sin; ``y``: the norm before it is turned, ``grad``: of the result."""
    size = plan.spec.rotary_dim or y.shape[-1]
    grad, y = (value[..., :size].to(plan.wide) for value in (grad, y))
    found = {}
    for name, table, factor in (("cos", cos, y), ("sin", sin, quarter_turn(plan.spec, y))):
        product = grad * factor
        if table.shape[-1] != size:
            first, second = in_pairs(plan.spec, product)
            product = first + second
        found[name] = product.sum_to_size(table.shape).to(table.dtype)
    return found


def save(ctx: Any, plan: NormPlan, total: Tensor, operands: Mapping[str, Tensor | None]) -> None:
    """Keep for ``backward``: the normalised tensor and the other operands, nothing computed."""
    ctx.plan = plan
    others = ("gate", "scale", "bias", "cos", "sin")
    ctx.save_for_backward(total, *(operands.get(name) for name in others))
    # A residual sum that the loss does not use has no gradient rather than one of zeros.
    ctx.set_materialize_grads(False)


def backward(
    ctx: Any, needs: Sequence[bool], grad_y: Tensor | None, grad_sum: Tensor | None
) -> tuple[Tensor | None, ...]:
    """``gradients`` from what was saved, plus the gradient of the residual sum.

    ``needs``: of each operand in order, whether its gradient is needed; the dispatcher leaves out
    trailing operands that are None.
    """
    names = OPERANDS[ctx.plan.spec.kind][: len(needs)]
    needed = {name for name, flag in zip(names, needs, strict=True) if flag}
    if "residual" in needed:
        needed.add("x")
    result: dict[str, Tensor | None] = {}
    if grad_y is not None:
        *saved, cos, sin = ctx.saved_tensors
        if cos is not None:
            if needed & {"cos", "sin"}:
                x, _, scale, bias = saved
                y, _ = forward(ctx.plan, x, scale, bias)
                result.update(_of_tables(ctx.plan, grad_y, y, cos, sin))
            wide = (value.to(ctx.plan.wide) for value in (grad_y, cos, sin))
            grad_y = turned(ctx.plan.spec, *wide, back=True)
        result.update(gradients(ctx.plan, needed, grad_y, *saved))
    if "x" in needed and grad_sum is not None:
        d_y = result.get("x")
        result["x"] = grad_sum if d_y is None else d_y + grad_sum
    result["residual"] = result.get("x")
    return tuple(result.get(name) for name in names)


class ComposedNorm(torch.autograd.Function):
    """``eager.forward`` with these gradients; a compiler can see through it.

    It takes a plan and the operands in the order of the operator; it returns what that returns.
    """

    @staticmethod
    def forward(ctx: Any, plan: NormPlan, *operands: Tensor | None) -> Any:
        named: dict[str, Any] = dict(zip(OPERANDS[plan.spec.kind], operands, strict=False))
        y, total = forward(plan, **named)
        save(ctx, plan, total, named)
        return (y, total) if "residual" in named else y

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None, grad_sum: Tensor | None = None) -> Any:
        return None, *backward(ctx, ctx.needs_input_grad[1:], grad_y, grad_sum)
