"""Names of the operators that are an RMSNorm by themselves: this package's and those of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np

from rmsnorm_export.op.spec import DOUBLE, FLOAT, HALF_TYPES, Kind, NormSpec

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


def standard_spec(
    op_type: str, attributes: Mapping[str, Any], rank: int | None, dtype: int
) -> NormSpec:
    """Return the norm that a node of others is, of X of this rank and element type.

    Raises:
        ValueError: there is no such norm, or its axis is not known from the end.
    """
    skip, axis = op_type == SKIP_SIMPLIFIED, int(attributes.get("axis", -1))
    if axis >= 0 and (rank is None or axis >= rank):
        raise ValueError(f"axis {axis} of rank {rank}")
    # ONNX Runtime's kernels compute in float64 for float64, whatever stash_type says.
    double = op_type != RMS_NORMALIZATION and dtype == DOUBLE
    return NormSpec(
        kind="SkipRMSNorm" if skip else "RMSNorm",
        epsilon=float(np.float32(attributes.get("epsilon", 1e-12 if skip else 1e-5))),
        axis=axis - (rank or 0) if axis >= 0 else axis,
        stash_type=DOUBLE if double else int(attributes.get("stash_type", FLOAT)),
        # ONNX Runtime's own operators scale in float32 and round once.
        scale_before_cast=op_type != RMS_NORMALIZATION and dtype in HALF_TYPES,
    )


def operator_name(kind: Kind, quantize: str | None = None) -> str:
    """Return the name of an operator; each has one type of output, as runtimes want it."""
    return kind if quantize is None else f"Quantized{kind}_{quantize}"
