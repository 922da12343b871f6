"""The operators of PyTorch from ``NormSpec``: names, schemas, and a spec ready for one type of x.

The attributes stand in ``NormSpec`` alone, with their types, defaults and meanings; the schema of
an operator and its translation to ONNX follow from them.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.dtypes import round_to
from rmsnorm_export.op.native import BESIDE, KINDS
from rmsnorm_export.op.spec import DOUBLE, FLOAT, HALF_TYPES, Kind, NormSpec
from rmsnorm_export.torch.dtypes import ELEMENT_TYPES, TORCH_TYPES

NAMES = {kind: kind.replace("RMSNorm", "_rms_norm").lower().strip("_") for kind in KINDS}
"""Kind of the spec -> name of the operator in PyTorch, e.g. ``skip_rms_norm``."""

OPERANDS = {kind: ("x", *BESIDE.get(kind, ()), "scale", "bias") for kind in KINDS}
OPTIONAL = frozenset({"scale", "bias"})
"""The operands that may be omitted."""


def attributes_of(spec: NormSpec) -> dict[str, Any]:
    """Return the attributes of a spec in order, of the types that they have there."""
    return {name: getattr(spec, name) for name in spec.attributes()}


def schema(kind: Kind) -> str:
    """Return the operator's schema for ``torch.library``."""
    operands = ", ".join(
        f"Tensor? {name}=None" if name in OPTIONAL else f"Tensor {name}" for name in OPERANDS[kind]
    )
    attributes = ", ".join(
        f"{type(value).__name__} {name}={value!r}"
        for name, value in attributes_of(NormSpec(kind=kind)).items()
    )
    result = "(Tensor, Tensor)" if kind == "SkipRMSNorm" else "Tensor"
    return f"{NAMES[kind]}({operands}, *, {attributes}) -> {result}"


@dataclasses.dataclass(frozen=True, slots=True)
class NormPlan:
    """How to compute a spec on tensors of one type.

    Attributes:
        spec: the norm, with the attributes that cannot matter for this type at their defaults.
        out: T, the type of X and Y.
        stash: S, the type in which the row is normalised.
        product: the type in which the product with the scale is computed, or with ``scale_rstd``
            that of x alone.
        wide: the type in which squares are summed and gradients computed; float32 for a half stash
            type, whose sums would overflow.
        epsilon: rounded as the float32 attribute that it is, then to S.
        offset: ``scale_offset``, rounded likewise to the product type.
    """

    spec: NormSpec
    out: torch.dtype
    stash: torch.dtype
    product: torch.dtype
    wide: torch.dtype
    epsilon: float
    offset: float


def make_spec(kind: Kind, **attributes: Any) -> NormSpec:
    """Return the spec with these attributes.

    Raises:
        UsageError: what NormSpec refuses.
    """
    return _make_spec(kind, tuple((name, _concrete(value)) for name, value in attributes.items()))


def _concrete(value: Any) -> Any:
    """Take the number of an attribute that a tracer made symbolic: it is constant in its graph."""
    if isinstance(value, torch.SymFloat):
        return float(value)
    return int(value) if isinstance(value, torch.SymInt) else value


@functools.lru_cache(maxsize=4096)
def _make_spec(kind: Kind, attributes: tuple[tuple[str, Any], ...]) -> NormSpec:
    try:
        return NormSpec(kind=kind, **dict(attributes))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{kind} cannot have these attributes: {error}",
            found=", ".join(f"{name}={value!r}" for name, value in attributes),
            fix="see rmsnorm_export.NormSpec for the attributes and what they combine with",
        ) from None


@functools.lru_cache(maxsize=4096)
def make_plan(spec: NormSpec, dtype: torch.dtype) -> NormPlan:
    """Return the plan of ``spec`` for X of ``dtype``.

    Raises:
        UsageError: ``dtype`` is none of the four float types.
    """
    if dtype not in ELEMENT_TYPES:
        raise UsageError(
            "The operator takes float tensors only.",
            found=f"a tensor of {dtype}",
            fix="convert it to float16, bfloat16, float32 or float64",
        )
    element_type = ELEMENT_TYPES[dtype]
    exact = spec.canonical(element_type)
    stash = TORCH_TYPES[exact.stash_type]
    return NormPlan(
        spec=exact,
        out=dtype,
        stash=stash,
        product=TORCH_TYPES[exact.product_type(element_type)],
        wide=torch.float32 if exact.stash_type in HALF_TYPES else stash,
        epsilon=_rounded_attribute(exact.epsilon, exact.stash_type),
        offset=_rounded_attribute(exact.scale_offset, exact.scale_type(element_type)),
    )


def widened(plan: NormPlan) -> NormPlan:
    """Return the plan with all of it in ``plan.wide``; its numbers are those of ``plan``."""
    spec = dataclasses.replace(plan.spec, stash_type=ELEMENT_TYPES[plan.wide])
    wide = make_plan(spec, plan.wide)
    return dataclasses.replace(wide, epsilon=plan.epsilon, offset=plan.offset)


def _rounded_attribute(value: float, used_in: int) -> float:
    """Round a float32 attribute as it is used in the type ``used_in``; unrounded in float64."""
    if used_in == DOUBLE:
        return value
    return float(round_to(round_to(value, FLOAT), used_in))
