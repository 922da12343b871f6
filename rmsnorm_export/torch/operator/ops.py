"""The operators as Python functions.

They call ``torch.ops.rmsnorm_export.*``. Inside ``torch.compile`` they hand the compiler the same
formula in ATen operators, which Inductor fuses with each other and with their neighbours. It keeps
a half type in float32 inside a kernel it generates (unless
``torch._inductor.config.emulate_precision_casts`` is set), so a rounding step of the spec may be
dropped there, as it is for any PyTorch code. Everywhere else the numerics are those of
``rmsnorm_export.op.reference.reference_exact``: every rounding step of the spec, in its place.

Autocast does not convert: a norm runs in the type of ``x`` and its result has that type.
``scale`` and ``bias`` may have another float type and are cast to that of the product; ``residual``
and ``gate`` must have the type of ``x``, under autocast as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rmsnorm_export.op.operands import check_more
from rmsnorm_export.op.spec import Kind, NormSpec
from rmsnorm_export.torch.operator import library
from rmsnorm_export.torch.operator.eager import forward
from rmsnorm_export.torch.operator.plan import NAMES, OPERANDS, attributes_of


def rms_norm(
    x: Tensor, scale: Tensor | None = None, bias: Tensor | None = None, **attributes: Any
) -> Tensor:
    """RMSNorm of every row of ``x``: ``x / sqrt(mean(x ** 2) + epsilon) * scale + bias``.

    Args:
        x: ``[..., n]``, float16, bfloat16, float32 or float64; a row is the axes from ``axis`` on.
        scale: n elements in the shape of the row, leading dimensions of 1 allowed, any float type.
        bias: as ``scale``; added last.
        **attributes: those of ``rmsnorm_export.NormSpec``, where T is the type of ``x``.

    Returns:
        The norm, contiguous, of the shape and type of ``x``.

    Raises:
        UsageError: operands or attributes that do not fit one another.

    Source: arXiv 1910.07467, equation 4; ``rmsnorm_export.op.spec`` for every rounding step.
    """
    return _run_operator("RMSNorm", (x, scale, bias), attributes)  # type: ignore[no-any-return]


def skip_rms_norm(
    x: Tensor,
    residual: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    **attributes: Any,
) -> tuple[Tensor, Tensor]:
    """RMSNorm of a residual sum, and the sum: ``s = x + residual``, ``(rms_norm(s), s)``.

    Args:
        x, scale, bias: as for ``rms_norm``.
        residual: shape and type of ``x``; the sum is rounded to that type before it is normalised.
        **attributes: as for ``rms_norm``.

    Returns:
        ``(y, sum)``, both contiguous, of the shape and type of ``x``.

    Raises:
        UsageError: operands or attributes that do not fit one another.
    """
    operands = (x, residual, scale, bias)
    return _run_operator("SkipRMSNorm", operands, attributes)  # type: ignore[no-any-return]


def gated_rms_norm(
    x: Tensor,
    gate: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    **attributes: Any,
) -> Tensor:
    """RMSNorm with a gate: ``rms_norm(x) * act(gate)``, or ``rms_norm(x * act(gate))``.

    Args:
        x, scale, bias: as for ``rms_norm``.
        gate: shape and type of ``x``, before its activation, which is computed in S.
        **attributes: as for ``rms_norm``, and two of the gate: ``activation``, ``gate_first``.

    Returns:
        The gated norm, contiguous, of the shape and type of ``x``.

    Raises:
        UsageError: operands or attributes that do not fit one another.
    """
    operands = (x, gate, scale, bias)
    return _run_operator("GatedRMSNorm", operands, attributes)  # type: ignore[no-any-return]


def rotary_rms_norm(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    **attributes: Any,
) -> Tensor:
    """RMSNorm with a rotary embedding: ``y * cos + rot(y) * sin`` with ``y = rms_norm(x)``.

    ``rot(y)`` is the row in which each pair (a, b) is (-b, a).

    Args:
        x, scale, bias: as for ``rms_norm``; a row is the last axis.
        cos: ``[..., w]``, of the type of ``x`` or float32 where that is a half type; w is the
            elements that are rotated, or half of them: one entry for each pair. The leading axes
            broadcast to those of ``x``.
        sin: as ``cos``.
        **attributes: as for ``rms_norm``, and ``rotary_dim``, ``rotary_interleaved``.

    Returns:
        The rotated norm, contiguous, of the shape and type of ``x``.

    Raises:
        UsageError: operands or attributes that do not fit one another.

    Source: arXiv 2104.09864, equation 34.
    """
    operands = (x, cos, sin, scale, bias)
    return _run_operator("RotaryRMSNorm", operands, attributes)  # type: ignore[no-any-return]


def call(
    spec: NormSpec,
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    **more: Tensor | None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Call the operator of ``spec.kind`` with the attributes of ``spec``.

    Args:
        spec: the norm.
        x, scale, bias: as for ``rms_norm``.
        **more: what else the operator takes: ``residual``, ``gate``, or ``cos`` and ``sin``.

    Returns:
        ``y``; for ``SkipRMSNorm`` the pair ``(y, sum)``.

    Raises:
        UsageError: operands that do not fit the spec or one another.
    """
    kind = spec.kind
    check_more(kind, more)
    named = {"x": x, "scale": scale, "bias": bias, **more}
    operands = tuple(named[name] for name in OPERANDS[kind])
    return _run_operator(kind, operands, attributes_of(spec))  # type: ignore[no-any-return]


def _run_operator(
    kind: Kind, operands: tuple[Tensor | None, ...], attributes: Mapping[str, Any]
) -> Any:
    """One call of the operator, or of its formula while a compiler generates code."""
    # An exported graph keeps the operator as one node.
    if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
        return _composed(kind, *operands, **attributes)
    return getattr(torch.ops.rmsnorm_export, NAMES[kind]).default(*operands, **attributes)


# In the graph as one call of constants and tensors: Dynamo need not follow the Python inside,
# AOTAutograd traces the tensors.
@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def _composed(kind: Kind, *operands: Tensor | None, **attributes: Any) -> Any:
    """Compute the operator in ATen operators; the same results and errors."""
    plan, named = library.prepare(kind, operands, attributes)
    y, total = forward(plan, **named)
    return (y, total) if kind == "SkipRMSNorm" else y
