"""The signatures of the operators, from ``NormSpec`` to the form that PyTorch takes.

The attributes stand in ``NormSpec`` alone, with their types, defaults and meanings; the schema of
an operator and its translation to ONNX follow from them.
"""

from __future__ import annotations

from typing import Any

from rmsnorm_export.op.spec import Kind, NormSpec

NAMES: dict[Kind, str] = {
    "RMSNorm": "rms_norm",
    "SkipRMSNorm": "skip_rms_norm",
    "GatedRMSNorm": "gated_rms_norm",
    "RotaryRMSNorm": "rotary_rms_norm",
}
"""Kind of the spec -> name of the operator in PyTorch."""

OPERANDS: dict[Kind, tuple[str, ...]] = {
    "RMSNorm": ("x", "scale", "bias"),
    "SkipRMSNorm": ("x", "residual", "scale", "bias"),
    "GatedRMSNorm": ("x", "gate", "scale", "bias"),
    "RotaryRMSNorm": ("x", "cos", "sin", "scale", "bias"),
}
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
