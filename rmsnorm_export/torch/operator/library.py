"""Registers the operators ``torch.ops.rmsnorm_export.*``: schema, kernel, shapes, gradients.

The kernel is registered for every backend: it is made of ATen operators. An operator is one opaque
call for autograd, for ``torch.compile`` and for ``torch.export``, and runs in the type of its
input: autocast leaves it alone.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from rmsnorm_export.op.spec import DOMAIN, Kind, NormSpec
from rmsnorm_export.torch.operator.autograd import backward, save
from rmsnorm_export.torch.operator.check import check
from rmsnorm_export.torch.operator.eager import forward
from rmsnorm_export.torch.operator.plan import Plan, make_plan, make_spec

NAMES: dict[Kind, str] = {
    "RMSNorm": "rms_norm",
    "SkipRMSNorm": "skip_rms_norm",
    "GatedRMSNorm": "gated_rms_norm",
}
"""Kind of the spec -> name of the operator in PyTorch."""

_OPERANDS: dict[Kind, tuple[str, ...]] = {
    "RMSNorm": ("x", "scale", "bias"),
    "SkipRMSNorm": ("x", "residual", "scale", "bias"),
    "GatedRMSNorm": ("x", "gate", "scale", "bias"),
}
ATTRIBUTES: dict[Kind, tuple[str, ...]] = {
    kind: tuple(NormSpec(kind=kind).attributes()) for kind in NAMES
}
"""The keyword arguments of each operator: the fields of NormSpec that it has."""

_SCHEMA_TYPES = {"Activation": "str"}


def schema(kind: Kind) -> str:
    """The operator's schema; attributes and defaults are those of NormSpec."""
    operands = ", ".join(
        f"Tensor? {name}=None" if name in ("scale", "bias") else f"Tensor {name}"
        for name in _OPERANDS[kind]
    )
    fields = {field.name: field for field in dataclasses.fields(NormSpec)}
    attributes = ", ".join(
        f"{_SCHEMA_TYPES.get(str(field.type), field.type)} {name}={_literal(field.default)}"
        for name, field in ((name, fields[name]) for name in ATTRIBUTES[kind])
    )
    result = "(Tensor, Tensor)" if kind == "SkipRMSNorm" else "Tensor"
    return f"{NAMES[kind]}({operands}, *, {attributes}) -> {result}"


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def prepare(kind: Kind, operands: tuple[Any, ...], attributes: dict[str, Any]) -> _Call:
    """Check the arguments of an operator; what the dispatcher left out is at its default.

    Raises:
        UsageError: arguments that do not fit the operator or one another.
    """
    named = dict(zip(_OPERANDS[kind], operands, strict=False))
    spec = _spec(kind, attributes)
    x = named["x"]
    plan = make_plan(spec, x.dtype)
    call = _Call(
        plan, x, named.get("scale"), named.get("bias"), named.get("residual"), named.get("gate")
    )
    check(spec, x, call.scale, call.bias, residual=call.residual, gate=call.gate)
    return call


def _spec(kind: Kind, attributes: dict[str, Any]) -> NormSpec:
    return make_spec(kind, **{name: _constant(value) for name, value in attributes.items()})


def _constant(value: Any) -> Any:
    """An attribute that a tracer made symbolic is constant in the graph that it traces."""
    if isinstance(value, torch.SymFloat):
        return float(value)
    return int(value) if isinstance(value, torch.SymInt) else value


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """The checked arguments of one call."""

    plan: Plan
    x: Tensor
    scale: Tensor | None
    bias: Tensor | None
    residual: Tensor | None
    gate: Tensor | None


def _define(library: torch.library.Library, kind: Kind) -> None:
    """Define one operator and everything that PyTorch needs to know of it."""
    name = NAMES[kind]
    qualified = f"{DOMAIN}::{name}"
    two = kind == "SkipRMSNorm"

    def kernel(*operands: Any, **attributes: Any) -> Tensor | tuple[Tensor, Tensor]:
        call = prepare(kind, operands, attributes)
        y, total = forward(
            call.plan,
            call.x,
            call.scale,
            call.bias,
            residual=call.residual,
            gate=call.gate,
            reuse=True,
        )
        return (y, total) if two else y

    def fake(*operands: Any, **attributes: Any) -> Tensor | tuple[Tensor, Tensor]:
        x = prepare(kind, operands, attributes).x
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        return (y, torch.empty_like(y)) if two else y

    def setup_context(
        ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any
    ) -> None:
        named = dict(zip(_OPERANDS[kind], inputs, strict=True))
        plan = make_plan(_spec(kind, keyword_only_inputs), named["x"].dtype)
        total = output[1] if two else named["x"]
        save(ctx, plan, total, named.get("gate"), named["scale"], named["bias"])

    def backward_of(ctx: Any, grad_y: Tensor | None, grad_sum: Tensor | None = None) -> Any:
        # The dispatcher leaves out trailing operands that are None.
        given = _OPERANDS[kind][: len(ctx.needs_input_grad)]
        wanted = {name for name, flag in zip(given, ctx.needs_input_grad, strict=True) if flag}
        needed = (
            bool(wanted & {"x", "residual"}),
            "gate" in wanted,
            "scale" in wanted,
            "bias" in wanted,
        )
        d_total, d_gate, d_scale, d_bias = backward(ctx, needed, grad_y, grad_sum)
        found = {"x": d_total, "residual": d_total, "gate": d_gate}
        found |= {"scale": d_scale, "bias": d_bias}
        return tuple(found[operand] for operand in given)

    library.define(schema(kind), tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    library.impl(name, kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(qualified, fake, lib=library)
    torch.library.register_autograd(
        qualified, backward_of, setup_context=setup_context, lib=library
    )


def _register() -> torch.library.Library:
    library = torch.library.Library(DOMAIN, "DEF")  # type: ignore[no-untyped-call]
    for kind in NAMES:
        _define(library, kind)
    return library


LIBRARY = _register()
"""Keeps the operators registered for as long as this module lives."""
