"""Registers the operators ``torch.ops.rmsnorm_export.*``: schema, kernel, shapes, gradients.

The kernel is registered for every backend: it is made of ATen operators. An operator is one opaque
call for autograd, for ``torch.compile`` and for ``torch.export``, and runs in the type of its
input: autocast leaves it alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rmsnorm_export.op.spec import DOMAIN, Kind
from rmsnorm_export.torch.operator.autograd import backward, save
from rmsnorm_export.torch.operator.check import check
from rmsnorm_export.torch.operator.eager import forward
from rmsnorm_export.torch.operator.plan import NormPlan, make_plan, make_spec
from rmsnorm_export.torch.operator.signature import NAMES, OPERANDS, schema


def prepare(
    kind: Kind, operands: tuple[Any, ...], attributes: dict[str, Any]
) -> tuple[NormPlan, dict[str, Any]]:
    """The plan and the checked operands of a call; what it leaves out is at its default.

    Raises:
        UsageError: arguments that do not fit the operator or one another.
    """
    named = dict(zip(OPERANDS[kind], operands, strict=False))
    spec = make_spec(kind, **attributes)
    plan = make_plan(spec, named["x"].dtype)
    check(spec, **named)
    return plan, named


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
        plan = make_plan(make_spec(kind, **keyword_only_inputs), named["x"].dtype)
        total = output[1] if two else named["x"]
        save(ctx, plan, total, named)

    def backward_of(ctx: Any, grad_y: Tensor | None, grad_sum: Tensor | None = None) -> Any:
        return backward(ctx, ctx.needs_input_grad, grad_y, grad_sum)

    library.define(schema(kind), tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    library.impl(name, kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(qualified, fake, lib=library)
    torch.library.register_autograd(
        qualified, backward_of, setup_context=setup_context, lib=library
    )


LIBRARY = torch.library.Library(DOMAIN, "DEF")  # type: ignore[no-untyped-call]
"""Keeps the operators registered for as long as this module lives."""

for _kind in NAMES:
    _define(LIBRARY, _kind)
