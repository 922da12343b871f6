"""Names of the operators that are an RMSNorm by themselves: this package's and those of others."""

from __future__ import annotations

from typing import get_args

from rmsnorm_export.op.spec import Kind

MICROSOFT_DOMAIN = "com.microsoft"

KINDS: tuple[Kind, ...] = get_args(Kind)
"""Operators of this package's domain."""

BESIDE: dict[Kind, tuple[str, ...]] = {
    "SkipRMSNorm": ("residual",),
    "GatedRMSNorm": ("gate",),
    "RotaryRMSNorm": ("cos", "sin"),
}
"""Inputs between X and the scale."""

ROW_KINDS: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind != "RotaryRMSNorm")
"""Those whose operands are rows of X and weights."""

QUANTIZED_KINDS = tuple(f"Quantized{kind}" for kind in ROW_KINDS)
"""Those with a quantized output, without the type that their names end with."""

RMS_NORMALIZATION = "RMSNormalization"
"""Of the default domain, from opset 23 on."""

SIMPLIFIED = "SimplifiedLayerNormalization"
"""ONNX Runtime's, which it keeps in the default domain."""

SKIP_SIMPLIFIED = "SkipSimplifiedLayerNormalization"
"""ONNX Runtime's, in ``MICROSOFT_DOMAIN``."""


def operator_name(kind: Kind, quantize: str | None = None) -> str:
    """Return the name of an operator; each has one type of output, as runtimes want it."""
    return kind if quantize is None else f"Quantized{kind}_{quantize}"
