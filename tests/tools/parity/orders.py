"""Every rounding step of a spec, with the one freedom that the spec leaves made explicit.

PyTorch code takes ``x / rms`` in float32 as ``x / sqrt(m)`` or as ``x * rsqrt(m)``; both are
rounded to the half type afterwards, and the spec calls both the same. A bitwise proof has to tell
them apart: a module must equal one of the two in every element.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rmsnorm_export.op.dtypes import Array, element_type, numpy_dtype, round_to
from rmsnorm_export.op.spec import DOUBLE, HALF_TYPES, NormSpec

QUOTIENTS: tuple[Quotient, ...] = ("x / rms", "x * (1 / rms)")
"""Those that the spec calls the same, where the row is float32 or float64."""


def evaluate(
    spec: NormSpec, operands: Mapping[str, Array], quotient: Quotient
) -> tuple[Array, ...]:
    """Return ``(y,)``, or ``(y, sum)``, in the type of x, every step rounded once."""
    t, s = element_type(operands["x"].dtype), spec.stash_type
    p = s if spec.scale_before_cast else t
    steps = Steps(*(functools.partial(round_to, element_type=dtype) for dtype in (s, t, p)))
    stored = dataclasses.replace(
        spec,
        epsilon=_attribute(spec.epsilon, s),
        scale_offset=_attribute(spec.scale_offset, p),
    )
    wide = {name: value.astype(np.float64) for name, value in operands.items()}
    with np.errstate(all="ignore"):
        results = compute(stored, wide, steps, quotient)
    return tuple(value.astype(numpy_dtype(t)) for value in results)


def _attribute(value: float, used_in: int) -> float:
    return value if used_in == DOUBLE else float(np.float32(value))


def explanation(
    spec: NormSpec,
    evaluated: Callable[[Quotient], Sequence[Array]],
    results: Sequence[Array],
) -> Quotient | Literal[""]:
    """The first quotient with which ``evaluated`` gives ``results``, bit for bit; "" for none.

    Beyond those of ``spec`` PyTorch has one more in a half type: its rsqrt.
    """
    more: tuple[Quotient, ...] = ("x * rsqrt",) if spec.stash_type in HALF_TYPES else ()
    quotients = (*quotients_of(spec), *more)
    return next((q for q in quotients if all_equal(evaluated(q), results)), "")


def quotients_of(spec: NormSpec) -> tuple[Quotient, ...]:
    """The ways to divide that ``spec`` allows; in a half type it leaves no choice."""
    return QUOTIENTS[:1] if spec.stash_type in HALF_TYPES else QUOTIENTS


def all_equal(a: Sequence[Array], b: Sequence[Array]) -> bool:
    """Every element of every pair; NaN equals NaN, and zeros of any sign are equal."""
    return all(
        np.array_equal(one.astype(np.float64), other.astype(np.float64), equal_nan=True)
        for one, other in zip(a, b, strict=True)
    )


# The steps of the norm, with a rounding after each.

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
