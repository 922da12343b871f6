"""The formula, with nothing rounded: in float64, and for float64 rows in extended precision.

Written here from the formula of the paper, apart from the references of the package: a yardstick
must not be made of what it measures.
"""

from __future__ import annotations

import math

import numpy as np

from rmsnorm_export.op.dtypes import Array, Float64Array
from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.runtime.metrics import ulp_error, ulp_unit

EXTENDED = np.finfo(np.longdouble).nmant > np.finfo(np.float64).nmant
"""Whether this machine has a type beyond float64 (x86: 64 bits; ARM: 113)."""


def formula(
    spec: NormSpec,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    other: Array | None,
) -> list[Array]:
    """``[y]``, or ``[y, x + other]`` for ``SkipRMSNorm``; float64, or longdouble for float64 rows.

    Args:
        spec: the norm; its rounding steps play no part.
        x, weight, bias: as they are stored.
        other: gate or residual.
    """
    wide = np.longdouble if x.dtype == np.float64 else np.float64
    row = x.astype(wide)
    with np.errstate(all="ignore"):
        gate = None
        if spec.kind == "SkipRMSNorm":
            assert other is not None
            row = row + other.astype(wide)
        if spec.kind == "GatedRMSNorm":
            assert other is not None
            z = other.astype(wide)
            gate = 1 / (1 + np.exp(-z))
            if spec.activation == "silu":
                gate = z * gate
            if spec.gate_first:
                row = row * gate
        total = row
        lead = row.shape[: spec.axis]
        n = math.prod(row.shape[spec.axis :])
        groups = row.reshape(*lead, -1, spec.group_size or n)
        part = groups[..., : spec.partial_size or None]
        mean = np.square(part).sum(-1, keepdims=True) / part.shape[-1]
        epsilon = wide(spec.epsilon if x.dtype == np.float64 else np.float32(spec.epsilon))
        root = np.sqrt(mean) + epsilon if spec.epsilon_outside else np.sqrt(mean + epsilon)
        if spec.epsilon_clamp:
            root = np.maximum(np.sqrt(mean), epsilon)
        y = (groups / root).reshape(row.shape)
        if weight is not None:
            y = y * (weight.astype(wide) + wide(spec.scale_offset))
        if bias is not None:
            y = y + bias.astype(wide)
        if gate is not None and not spec.gate_first:
            y = y * gate
    return [y, total] if spec.kind == "SkipRMSNorm" else [y]


def error_of(values: Array, truth: Array, magnitude: Array | None = None) -> Float64Array:
    """``|values - truth|`` in ulp of the type of ``values``; ``truth`` may be extended.

    As ``rmsnorm_export.runtime.metrics.ulp_error``, which takes float64.
    """
    narrow = truth.astype(np.float64)
    size = None if magnitude is None else magnitude.astype(np.float64)
    if truth.dtype == np.float64 or values.dtype != np.float64:
        return ulp_error(values, narrow, size)
    unit = ulp_unit(values.dtype, narrow if size is None else size)
    with np.errstate(all="ignore"):
        error = (np.abs(values.astype(truth.dtype) - truth) / unit).astype(np.float64)
    finite = np.isfinite(values) & np.isfinite(narrow)
    return np.asarray(np.where(finite, error, ulp_error(values, narrow, size)))
