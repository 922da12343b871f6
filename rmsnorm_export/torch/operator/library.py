"""Registers the operators ``torch.ops.rmsnorm_export.*``: schema, kernel, shapes, gradients.

The kernel is registered for every backend: it is made of ATen operators. An operator is one opaque
call for autograd, for ``torch.compile`` and for ``torch.export``, and runs in the type of its
input: autocast does not convert it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.operands import Operand, check_operands
from rmsnorm_export.op.spec import DOMAIN, Kind
from rmsnorm_export.torch.dtypes import ELEMENT_TYPES
from rmsnorm_export.torch.operator.eager import forward
from rmsnorm_export.torch.operator.plan import (
    NAMES,
    OPERANDS,
    NormPlan,
    make_plan,
    make_spec,
    schema,
    widened,
)

Operands = dict[str, Any]


def prepare(
    kind: Kind, operands: tuple[Any, ...], attributes: dict[str, Any]
) -> tuple[NormPlan, Operands]:
    """Return the plan and the checked operands of a call; omitted ones are at their default.

    Shapes may be real, fake or symbolic: a size that is not known while a graph is traced becomes a
    condition of the graph.

    Raises:
        UsageError: arguments that do not fit the operator or one another.
    """
    named = dict(zip(OPERANDS[kind], operands, strict=False))
    spec, x = make_spec(kind, **attributes), named["x"]
    plan = make_plan(spec, x.dtype)
    described: dict[str, Operand] = {}
    for name, value in named.items():
        if value is not None:
            make_plan(spec, value.dtype)  # which has none for another type
            described[name] = ELEMENT_TYPES[value.dtype], value.shape
            if value.device != x.device:
                raise UsageError(
                    f"{name} is on another device than x.",
                    found=f"{name} on {value.device}, x on {x.device}",
                    fix=f"move {name} to {x.device}",
                )
    check_operands(spec, described, _equal_sizes)
    return plan, named


def _equal_sizes(left: Any, right: Any) -> bool:
    """Compare two sizes; those that are not known yet are required to be equal."""
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    torch._check(left == right)  # type: ignore[no-untyped-call]
    return True


def _gradients(plan: NormPlan, operands: Operands, grad_y: Tensor) -> dict[str, Tensor]:
    """Return gradients of ``forward``, taken in ``plan.wide``, where its casts are identities."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # A view of each: a tensor that is two operands has two gradients.
        leaves = {name: v.view_as(v) for name, v in operands.items() if v is not None}
        y, _ = forward(widened(plan), **{name: v.to(plan.wide) for name, v in leaves.items()})
        chosen = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
        gradients = torch.autograd.grad(
            y, list(chosen.values()), grad_y.to(plan.wide), create_graph=again
        )
    return dict(zip(chosen, gradients, strict=True))


def _define(library: torch.library.Library, kind: Kind) -> None:
    """Define one operator and everything that PyTorch needs to know of it."""
    name = NAMES[kind]
    qualified = f"{DOMAIN}::{name}"
    two = kind == "SkipRMSNorm"

    def kernel(*operands: Any, **attributes: Any) -> Tensor | tuple[Tensor, Tensor]:
        plan, named = prepare(kind, operands, attributes)
        y, total = forward(plan, **named, reuse=True)
        return (y, total) if two else y

    def fake(*operands: Any, **attributes: Any) -> Tensor | tuple[Tensor, Tensor]:
        _, named = prepare(kind, operands, attributes)
        y = torch.empty_like(named["x"], memory_format=torch.contiguous_format)
        return (y, torch.empty_like(y)) if two else y

    def setup_context(
        ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any
    ) -> None:
        named = dict(zip(OPERANDS[kind], inputs, strict=True))
        ctx.plan = make_plan(make_spec(kind, **keyword_only_inputs), named["x"].dtype)
        # Operands alone, and of a residual the sum: nothing else is kept for the backward pass.
        if two:
            named |= {"x": output[1], "residual": None}
        ctx.save_for_backward(*named.values())
        # A residual sum that the loss does not use has no gradient rather than one of zeros.
        ctx.set_materialize_grads(False)

    def backward(ctx: Any, grad_y: Tensor | None, grad_sum: Tensor | None = None) -> Any:
        grads: dict[str, Tensor] = {}
        if grad_y is not None:
            saved = dict(zip(OPERANDS[kind], ctx.saved_tensors, strict=True))
            grads = _gradients(ctx.plan, saved, grad_y)
        if grad_sum is not None:
            grads["x"] = grads["x"] + grad_sum if "x" in grads else grad_sum
        if two and "x" in grads:
            grads["residual"] = grads["x"]
        return tuple(grads.get(n) for n in OPERANDS[kind][: len(ctx.needs_input_grad)])

    library.define(schema(kind), tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    library.impl(name, kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(qualified, fake, lib=library)
    torch.library.register_autograd(qualified, backward, setup_context=setup_context, lib=library)


LIBRARY = torch.library.Library(DOMAIN, "DEF")  # type: ignore[no-untyped-call]
"""Keeps the operators registered for as long as this module lives."""

for _kind in NAMES:
    _define(LIBRARY, _kind)
