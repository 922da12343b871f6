"""Every rounding step of a spec, with the one freedom that the spec leaves made explicit.

PyTorch code takes ``x / rms`` in float32 as ``x / sqrt(m)`` or as ``x * rsqrt(m)``; both are
rounded to the half type afterwards, and the spec calls both the same. A bitwise proof has to tell
them apart: a module must equal one of the two in every element.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from rmsnorm_export.op.dtypes import Array, element_type, numpy_dtype, round_to
from rmsnorm_export.op.spec import DOUBLE, HALF_TYPES, NormSpec
from tests.tools.parity.truth import Quotient, Steps, compute

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
