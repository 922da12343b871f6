"""The steps of the norm, with a rounding after each.

Written here from the formula of the paper, apart from the references of the package: a yardstick
must not be made of what it measures.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.spec import NormSpec

Quotient = Literal["x / rms", "x * (1 / rms)", "x * rsqrt"]
"""The last: root and inverse are one rounding, as PyTorch's rsqrt of a half type has it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Steps:
    """Roundings to the type of the row, of the result, and of the product with the gain."""

    s: Callable[[Any], Any]
    t: Callable[[Any], Any]
    p: Callable[[Any], Any]


def compute(
    spec: NormSpec, wide: Mapping[str, Array], steps: Steps, quotient: Quotient
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
