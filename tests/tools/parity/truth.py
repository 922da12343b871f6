"""The steps of the norm, with a rounding after each, or with none: in float64 and beyond.

Written here from the formula of the paper, apart from the references of the package: a yardstick
must not be made of what it measures.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from rmsnorm_export.op.dtypes import Array, Float64Array
from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.runtime.metrics import ulp_error, ulp_unit

EXTENDED = np.finfo(np.longdouble).nmant > np.finfo(np.float64).nmant
"""Whether this machine has a type beyond float64 (x86: 64 bits; ARM: 113)."""

Quotient = Literal["x / rms", "x * (1 / rms)", "x * rsqrt"]
"""The last: root and inverse are one rounding, as PyTorch's rsqrt of a half type has it."""


def _whole(values: Any) -> Any:
    return values


@dataclasses.dataclass(frozen=True, slots=True)
class Steps:
    """Roundings to the type of the row, of the result, and of the product with the gain."""

    s: Callable[[Any], Any] = _whole
    t: Callable[[Any], Any] = _whole
    p: Callable[[Any], Any] = _whole


def compute(
    spec: NormSpec, wide: Mapping[str, Array], steps: Steps, quotient: Quotient = "x / rms"
) -> list[Array]:
    """Return ``[y]``, or ``[y, sum]``; epsilon and offset are those of ``spec`` as they are.

    Args:
        spec: the norm.
        wide: ``x`` and what it takes of ``weight``, ``bias``, ``gate``, ``residual``, in the type
            in which all is computed.
        steps: what is rounded.
        quotient: how the row is divided.
    """
    s, t, p = steps.s, steps.t, steps.p
    row = numerator = total = t(wide["x"] + wide["residual"]) if "residual" in wide else wide["x"]
    act = None
    if "gate" in wide:
        z = s(wide["gate"])
        act = s(1 / (1 + np.exp(-z)))
        act = s(z * act) if spec.activation == "silu" else act
        if spec.gate_first:
            row = s(row * act)
            numerator = t(row)
    gain = None
    if "weight" in wide:
        gain = p(wide["weight"])
        if spec.scale_offset:
            gain = p(p(gain.dtype.type(spec.scale_offset)) + gain)
    y = p(_row(spec, row, numerator, gain, steps, quotient))
    if gain is not None and not spec.association:
        y = p(y * gain.reshape(y.shape[spec.axis :]))
    if "bias" in wide:
        y = p(y + p(wide["bias"]).reshape(y.shape[spec.axis :]))
    if act is not None and not spec.gate_first:
        y = s(s(y) * act)
    return [t(y), total] if "residual" in wide else [t(y)]


def _row(
    spec: NormSpec,
    row: Array,
    numerator: Array,
    gain: Array | None,
    steps: Steps,
    quotient: Quotient,
) -> Array:
    """The normalised row; with an association the gain is in it."""
    s, t = steps.s, steps.t
    n = math.prod(row.shape[spec.axis :])
    groups = row.reshape(*row.shape[: spec.axis], -1, spec.group_size or n)
    top = numerator.reshape(groups.shape)
    part = groups[..., : spec.partial_size or None]
    mean = s(s(np.square(part)).sum(-1, keepdims=True) / part.shape[-1])
    epsilon = s(row.dtype.type(spec.epsilon))
    if spec.epsilon_outside:
        rms, once = s(s(np.sqrt(mean)) + epsilon), np.sqrt(mean) + epsilon
    elif spec.epsilon_clamp:
        rms, once = (np.maximum(root, epsilon) for root in (s(np.sqrt(mean)), np.sqrt(mean)))
    else:
        once = np.sqrt(s(mean + epsilon))
        rms = s(once)
    inverse = s(1 / (once if quotient == "x * rsqrt" else rms))
    if spec.association == 2 and gain is not None:
        top = groups = t(groups * gain.reshape(1, -1))
    if spec.round_rstd:
        inverse = t(inverse)
        if spec.association == 1 and gain is not None:
            inverse = t(inverse * gain.reshape(1, -1))
        return np.asarray(t(top * inverse).reshape(row.shape))
    v = groups / rms if quotient == "x / rms" else groups * inverse
    return np.asarray(s(v).reshape(row.shape))


def formula(
    spec: NormSpec, x: Array, weight: Array | None, bias: Array | None, other: Array | None
) -> list[Array]:
    """Nothing rounded: float64, or longdouble for float64 rows; ``other``: gate or residual."""
    wide = np.longdouble if x.dtype == np.float64 else np.float64
    second = "residual" if spec.kind == "SkipRMSNorm" else "gate"
    operands = {"x": x, "weight": weight, "bias": bias, second: other}
    widened = {name: value.astype(wide) for name, value in operands.items() if value is not None}
    epsilon = spec.epsilon if x.dtype == np.float64 else float(np.float32(spec.epsilon))
    plain = dataclasses.replace(spec, epsilon=epsilon, round_rstd=False, association=0)
    with np.errstate(all="ignore"):
        return compute(plain, widened, Steps())


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
