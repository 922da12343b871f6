"""Registers the operators ``torch.ops.rmsnorm_export.*``: schema, kernel, shapes, gradients.

The kernel is registered for every backend: it is made of ATen operators, or on CUDA of the kernels
of ``rx.plugin.use_in_torch``. An operator is one opaque
call for autograd, for ``torch.compile`` and for ``torch.export``, and runs in the type of its
input: autocast leaves it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.operands import (
    check_operands,
    check_tables,
    row_shape,
    without_axes_behind,
    without_leading_ones,
)
from rmsnorm_export.op.spec import DOMAIN, Kind, NormSpec
from rmsnorm_export.torch.dtypes import ELEMENT_TYPES
from rmsnorm_export.torch.operator.autograd import backward, save
from rmsnorm_export.torch.operator.eager import forward
from rmsnorm_export.torch.operator.kernels import launched
from rmsnorm_export.torch.operator.plan import NormPlan, make_plan, make_spec
from rmsnorm_export.torch.operator.signature import NAMES, OPERANDS, OPTIONAL, schema


def check(
    spec: NormSpec,
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
) -> None:
    """Check the operands of a norm, on real, fake and symbolic shapes alike.

    A size that is not known while a graph is traced becomes a condition of the graph.

    Raises:
        UsageError: operands that do not fit the spec or one another.
    """
    check_operands(spec, x.shape, scale=scale, residual=residual, gate=gate, cos=cos, sin=sin)
    row = row_shape(spec, x.shape)
    given = {"scale": scale, "bias": bias, "residual": residual, "gate": gate}
    tables = {"cos": cos, "sin": sin}
    for name, value in (given | tables).items():
        if value is None:
            continue
        if name in tables:
            _check_float(value, name)
        elif name in OPTIONAL:
            _check_per_element(spec, value, name, row)
        else:
            _check_like_x(x, value, name)
        if value.device != x.device:
            raise UsageError(
                f"{name} is on another device than x.",
                found=f"{name} on {value.device}, x on {x.device}",
                fix=f"move {name} to {x.device}",
            )
    if cos is not None and sin is not None:
        found = [(ELEMENT_TYPES[table.dtype], table.shape) for table in (cos, sin)]
        dtype = ELEMENT_TYPES[x.dtype]
        check_tables(spec, x.shape, dtype, found, lambda a, b: _equal_sizes((a,), (b,)))


def _check_float(value: Tensor, name: str) -> None:
    if value.dtype not in ELEMENT_TYPES:
        raise UsageError(
            f"{name} must be a float tensor.",
            found=f"{name} of {value.dtype}",
            fix=f"convert {name} to float16, bfloat16, float32 or float64",
        )


def _check_per_element(spec: NormSpec, value: Tensor, name: str, row: tuple[int, ...]) -> None:
    _check_float(value, name)
    shape = without_axes_behind(spec, tuple(value.shape))
    if shape != row and not _equal_sizes(without_leading_ones(shape), without_leading_ones(row)):
        raise UsageError(
            f"{name} does not have the shape of the normalised axes.",
            found=f"{name} {shape}, normalised axes {row}",
            fix=f"give {name} one element per element of the row",
        )


def _check_like_x(x: Tensor, value: Tensor, name: str) -> None:
    if value.dtype != x.dtype or not _equal_sizes(value.shape, x.shape):
        raise UsageError(
            f"{name} must have the shape and type of x.",
            found=f"{name} {value.dtype} {tuple(value.shape)}, x {x.dtype} {tuple(x.shape)}",
            fix=f"broadcast and cast {name} first",
        )


def _equal_sizes(a: Sequence[int], b: Sequence[int]) -> bool:
    """Equal shapes; sizes not known yet are required to be equal."""
    if len(a) != len(b):
        return False
    for left, right in zip(a, b, strict=True):
        if isinstance(left, int) and isinstance(right, int):
            if left != right:
                return False
        else:
            torch._check(left == right)
    return True


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
        y, total = launched(plan, **named) or forward(plan, **named, reuse=True)
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
