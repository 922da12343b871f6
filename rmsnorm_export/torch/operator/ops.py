"""The operators as Python functions.

They call ``torch.ops.rmsnorm_export.*``; inside ``torch.compile`` they hand the compiler the same
formula in ATen operators, which it can fuse (see ``composed``). Numerics are those of
``rmsnorm_export.op.reference.reference_exact``: every rounding step of the spec, in its place.

Autocast leaves the operators alone: a norm runs in the type of ``x`` and its result has that type.
``scale`` and ``bias`` may have another float type and are cast to that of the product; ``residual``
and ``gate`` must have the type of ``x``, under autocast as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.spec import FLOAT, Activation, Kind, NormSpec
from rmsnorm_export.torch.operator import composed
from rmsnorm_export.torch.operator.library import ATTRIBUTES, NAMES

_OPERATORS: dict[Kind, Callable[..., Any]] = {
    kind: getattr(torch.ops.rmsnorm_export, name).default for kind, name in NAMES.items()
}


def rms_norm(
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-5,
    axis: int = -1,
    stash_type: int = FLOAT,
    scale_before_cast: bool = False,
    scale_offset: float = 0.0,
    epsilon_outside: bool = False,
    partial_size: int = 0,
    group_size: int = 0,
    round_rstd: bool = False,
    association: int = 0,
) -> Tensor:
    """RMSNorm of every row of ``x``: ``x / sqrt(mean(x ** 2) + epsilon) * scale + bias``.

    Args:
        x: ``[..., n]``, float16, bfloat16, float32 or float64; a row is the axes from ``axis`` on.
        scale: n elements in the shape of the row, leading dimensions of 1 allowed, any float type.
        bias: as ``scale``; added last.
        epsilon: added to the mean square, >= 0; a float32 number unless S is float64.
        axis: first normalised axis, negative.
        stash_type: S, the ONNX element type in which the row is normalised: 1 float32, 10 float16,
            11 float64, 16 bfloat16.
        scale_before_cast: False: round to the type of ``x``, then scale (LLaMA). True: scale in S,
            then round once (Gemma, ``torch.nn.RMSNorm``).
        scale_offset: added to ``scale`` first (1 for Gemma).
        epsilon_outside: ``x / (sqrt(mean(x ** 2)) + epsilon)``.
        partial_size: the mean is that of the first so many elements; 0: of all.
        group_size: groups of so many elements have a root mean square each; 0: one group.
        round_rstd: ``1 / rms`` is rounded to the type of ``x`` and multiplied in it.
        association: in a half S, 1: ``x * (scale / rms)``; 2: ``(x * scale) / rms``.

    Returns:
        The norm, contiguous, of the shape and type of ``x``.

    Raises:
        UsageError: operands that do not fit the attributes or one another.

    Source: arXiv 1910.07467, equation 4; ``rmsnorm_export.op.spec`` for every rounding step.
    """
    return _run(  # type: ignore[no-any-return]
        "RMSNorm",
        (x, scale, bias),
        epsilon=epsilon,
        axis=axis,
        stash_type=stash_type,
        scale_before_cast=scale_before_cast,
        scale_offset=scale_offset,
        epsilon_outside=epsilon_outside,
        partial_size=partial_size,
        group_size=group_size,
        round_rstd=round_rstd,
        association=association,
    )


def skip_rms_norm(
    x: Tensor,
    residual: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-5,
    axis: int = -1,
    stash_type: int = FLOAT,
    scale_before_cast: bool = False,
    scale_offset: float = 0.0,
    epsilon_outside: bool = False,
    partial_size: int = 0,
    group_size: int = 0,
    round_rstd: bool = False,
    association: int = 0,
) -> tuple[Tensor, Tensor]:
    """RMSNorm of a residual sum, and the sum: ``s = x + residual``, ``(rms_norm(s), s)``.

    Args:
        residual: shape and type of ``x``; the sum is rounded to that type before it is normalised.
        x, scale, bias and the attributes: as for ``rms_norm``.

    Returns:
        ``(y, sum)``, both contiguous, of the shape and type of ``x``.

    Raises:
        UsageError: operands that do not fit the attributes or one another.
    """
    return _run(  # type: ignore[no-any-return]
        "SkipRMSNorm",
        (x, residual, scale, bias),
        epsilon=epsilon,
        axis=axis,
        stash_type=stash_type,
        scale_before_cast=scale_before_cast,
        scale_offset=scale_offset,
        epsilon_outside=epsilon_outside,
        partial_size=partial_size,
        group_size=group_size,
        round_rstd=round_rstd,
        association=association,
    )


def gated_rms_norm(
    x: Tensor,
    gate: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-5,
    axis: int = -1,
    stash_type: int = FLOAT,
    scale_before_cast: bool = False,
    scale_offset: float = 0.0,
    epsilon_outside: bool = False,
    partial_size: int = 0,
    group_size: int = 0,
    round_rstd: bool = False,
    association: int = 0,
    activation: Activation = "silu",
    gate_first: bool = False,
) -> Tensor:
    """RMSNorm with a gate: ``rms_norm(x) * act(gate)``, or ``rms_norm(x * act(gate))``.

    Args:
        gate: shape and type of ``x``, before its activation, which is computed in S.
        activation: ``silu`` or ``sigmoid``.
        gate_first: the gate multiplies ``x`` before the norm (Mamba-2) instead of the result.
        x, scale, bias and the other attributes: as for ``rms_norm``.

    Returns:
        The gated norm, contiguous, of the shape and type of ``x``.

    Raises:
        UsageError: operands that do not fit the attributes or one another.
    """
    return _run(  # type: ignore[no-any-return]
        "GatedRMSNorm",
        (x, gate, scale, bias),
        epsilon=epsilon,
        axis=axis,
        stash_type=stash_type,
        scale_before_cast=scale_before_cast,
        scale_offset=scale_offset,
        epsilon_outside=epsilon_outside,
        partial_size=partial_size,
        group_size=group_size,
        round_rstd=round_rstd,
        association=association,
        activation=activation,
        gate_first=gate_first,
    )


def call(
    spec: NormSpec,
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """The operator of ``spec.kind`` with the attributes of ``spec``.

    Args:
        spec: the norm.
        x, scale, bias: as for ``rms_norm``.
        residual: needed by ``SkipRMSNorm``, and only by it.
        gate: needed by ``GatedRMSNorm``, and only by it.

    Returns:
        ``y``; for ``SkipRMSNorm`` the pair ``(y, sum)``.

    Raises:
        UsageError: operands that do not fit the spec or one another.
    """
    return _run(  # type: ignore[no-any-return]
        spec.kind, operands(spec.kind, x, scale, bias, residual, gate), **keywords(spec)
    )


def operands(
    kind: Kind,
    x: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    gate: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """The positional arguments of the operator ``kind``.

    Raises:
        UsageError: a residual or a gate is missing, or given to an operator that has none.
    """
    for name, value, home in (
        ("residual", residual, "SkipRMSNorm"),
        ("gate", gate, "GatedRMSNorm"),
    ):
        if (value is not None) != (kind == home):
            raise UsageError(
                f"{kind} {'needs' if value is None else 'takes no'} {name}",
                found=f"{name} {'missing' if value is None else 'given'}",
                fix=f"{'pass' if value is None else 'leave out'} {name}",
            )
    if kind == "RMSNorm":
        return x, scale, bias
    return x, residual if kind == "SkipRMSNorm" else gate, scale, bias


def keywords(spec: NormSpec) -> dict[str, Any]:
    """The keyword arguments that make the operator compute ``spec``."""
    return {name: getattr(spec, name) for name in ATTRIBUTES[spec.kind]}


def _run(kind: Kind, values: tuple[Tensor | None, ...], **attributes: Any) -> Any:
    if composed.wanted():
        return composed.composed(kind, *values, **attributes)
    return _OPERATORS[kind](*values, **attributes)
