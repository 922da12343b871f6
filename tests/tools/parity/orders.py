"""Every rounding step of a spec, with the one freedom that the spec leaves made explicit.

PyTorch code takes ``x / rms`` in float32 as ``x / sqrt(m)`` or as ``x * rsqrt(m)``; both are
rounded to the half type afterwards, and the spec calls both the same. A bitwise proof has to tell
them apart: a module must equal one of the two in every element.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import numpy as np

from rmsnorm_export.op.dtypes import Array, element_type, numpy_dtype, round_to
from rmsnorm_export.op.spec import DOUBLE, FLOAT, HALF_TYPES, NormSpec

Quotient = Literal["x / rms", "x * (1 / rms)", "x * rsqrt"]
"""The last: root and inverse are one rounding, as PyTorch's rsqrt of a half type has it."""

QUOTIENTS: tuple[Quotient, ...] = get_args(Quotient)[:2]
"""Those that the spec calls the same, where the row is float32 or float64."""


def evaluate(
    spec: NormSpec,
    operands: Mapping[str, Array],
    quotient: Quotient,
) -> tuple[Array, ...]:
    """``(y,)``, or ``(y, sum)``, in the type of x, every step rounded once.

    Args:
        spec: the norm.
        operands: ``x`` and what else it takes of ``weight``, ``bias``, ``gate``, ``residual``.
        quotient: how the row is divided.
    """
    t = element_type(operands["x"].dtype)
    s = spec.stash_type
    p = s if spec.scale_before_cast else t
    wide = {name: value.astype(np.float64) for name, value in operands.items()}
    epsilon = round_to(_attribute(spec.epsilon, s), s)
    with np.errstate(all="ignore"):
        x = wide["x"]
        if "residual" in wide:
            x = round_to(x + wide["residual"], t)
        row = numerator = x
        act = None
        if "gate" in wide:
            z = round_to(wide["gate"], s)
            act = round_to(1 / (1 + np.exp(-z)), s)
            act = round_to(z * act, s) if spec.activation == "silu" else act
            if spec.gate_first:
                row = round_to(x * act, s)
                numerator = round_to(row, t)
        gain = None
        if "weight" in wide:
            gain = round_to(wide["weight"], p)
            if spec.scale_offset:
                gain = round_to(round_to(_attribute(spec.scale_offset, p), p) + gain, p)
        y = _row(spec, t, row, numerator, gain, epsilon, quotient)
        y = round_to(y, p)
        if gain is not None and not spec.association:
            y = round_to(y * gain.reshape(y.shape[spec.axis :]), p)
        if "bias" in wide:
            y = round_to(y + round_to(wide["bias"], p).reshape(y.shape[spec.axis :]), p)
        if act is not None and not spec.gate_first:
            y = round_to(round_to(y, s) * act, s)
        found = [round_to(y, t)] + ([x] if "residual" in wide else [])
    return tuple(value.astype(numpy_dtype(t)) for value in found)


def _row(
    spec: NormSpec,
    t: int,
    row: Array,
    numerator: Array,
    gain: Array | None,
    epsilon: Array,
    quotient: Quotient,
) -> Array:
    """The normalised row; with an association the gain is in it."""

    def t_round(values: Array) -> Array:
        return round_to(values, t)

    def s_round(values: Array) -> Array:
        return round_to(values, spec.stash_type)

    n = math.prod(row.shape[spec.axis :])
    lead = row.shape[: spec.axis]
    groups = row.reshape(*lead, -1, spec.group_size or n)
    top = numerator.reshape(groups.shape)
    part = groups[..., : spec.partial_size or None]
    mean = s_round(s_round(np.square(part)).sum(-1, keepdims=True) / part.shape[-1])
    if spec.epsilon_outside:
        rms = s_round(s_round(np.sqrt(mean)) + epsilon)
        once = s_round(1 / (np.sqrt(mean) + epsilon))
    elif spec.epsilon_clamp:
        rms = np.maximum(s_round(np.sqrt(mean)), epsilon)
        once = s_round(1 / np.maximum(np.sqrt(mean), epsilon))
    else:
        rms = s_round(np.sqrt(s_round(mean + epsilon)))
        once = s_round(1 / np.sqrt(s_round(mean + epsilon)))
    inverse = once if quotient == "x * rsqrt" else s_round(1 / rms)
    if spec.association == 2 and gain is not None:
        top = groups = t_round(groups * gain.reshape(1, -1))
    if spec.round_rstd:
        inverse = t_round(inverse)
        if spec.association == 1 and gain is not None:
            inverse = t_round(inverse * gain.reshape(1, -1))
        return t_round(top * inverse).reshape(row.shape)
    v = groups / rms if quotient == "x / rms" else groups * inverse
    return s_round(v).reshape(row.shape)


def _attribute(value: float, used_in: int) -> float:
    return value if used_in == DOUBLE else float(np.float32(value))


def orders(spec: NormSpec, dtype: int, *, weighted: bool, biased: bool) -> list[NormSpec]:
    """Every order of rounding that the operator can declare for the formula of ``spec``.

    Those that cannot differ are given once: without a gain, a bias or a gate there is one rounding,
    and the products have one association.

    Args:
        dtype: element type of x, a half type.
        weighted, biased: whether there is a gain, a bias.
    """
    affine = weighted or biased or spec.kind == "GatedRMSNorm"
    found: dict[NormSpec, None] = {}
    for stash, before, rounded, association in itertools.product(
        (FLOAT, DOUBLE, dtype), (False, True), (False, True), (0, 1, 2)
    ):
        if (before and not affine) or (association and not weighted):
            continue
        try:
            made = dataclasses.replace(
                spec,
                stash_type=stash,
                scale_before_cast=before,
                round_rstd=rounded,
                association=association,
            )
        except ValueError:  # attributes that exclude one another
            continue
        found[made.canonical(dtype)] = None
    return list(found)


def same_order(a: NormSpec, b: NormSpec, dtype: int, *, affine: bool) -> bool:
    """Whether two specs of one formula declare the same rounding for x of ``dtype``."""

    def plain(spec: NormSpec) -> NormSpec:
        spec = spec.canonical(dtype)
        if not affine and spec.scale_before_cast:
            spec = dataclasses.replace(spec, scale_before_cast=False)
        return spec

    return plain(a) == plain(b)


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
    return ("x / rms",) if spec.stash_type in HALF_TYPES else QUOTIENTS


def all_equal(a: Sequence[Array], b: Sequence[Array]) -> bool:
    """Every element of every pair; NaN equals NaN, and zeros of any sign are equal."""
    return all(
        np.array_equal(one.astype(np.float64), other.astype(np.float64), equal_nan=True)
        for one, other in zip(a, b, strict=True)
    )
