"""Whether operands fit a spec and one another, on real, fake and symbolic shapes alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.spec import Kind, NormSpec
from rmsnorm_export.torch.dtypes import ELEMENT_TYPES


def check(
    spec: NormSpec,
    x: torch.Tensor,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    residual: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
) -> None:
    """Check the operands of a norm.

    A size that is not known while a graph is traced becomes a condition of the graph.

    Raises:
        UsageError: operands that do not fit the spec or one another.
    """
    if x.ndim < -spec.axis:
        raise UsageError(
            "x has fewer dimensions than the norm needs",
            found=f"shape {tuple(x.shape)} with axis {spec.axis}",
            fix=f"give x at least {-spec.axis} dimensions",
        )
    row = tuple(x.shape[spec.axis :])
    check_row(spec, math.prod(row))
    if scale is None and spec.scale_offset:
        raise UsageError(
            "scale_offset without a scale",
            found=f"scale_offset {spec.scale_offset}",
            fix="pass a scale, or use scale_offset 0",
        )
    _check_per_element(x, scale, "scale", row)
    _check_per_element(x, bias, "bias", row)
    check_second(spec.kind, residual, gate)
    _check_like_x(x, residual, "residual")
    _check_like_x(x, gate, "gate")


def check_row(spec: NormSpec, n: int) -> None:
    """Whether a row of ``n`` elements has the part or the groups of ``spec``.

    Raises:
        UsageError: it has not.
    """
    if spec.partial_size and spec.partial_size > n:
        raise UsageError(
            "partial_size is larger than the row",
            found=f"partial_size {spec.partial_size}, {n} elements in a row",
            fix="use at most the elements of a row",
        )
    if spec.group_size and n % spec.group_size:
        raise UsageError(
            "group_size does not divide the row",
            found=f"group_size {spec.group_size}, {n} elements in a row",
            fix="use a divisor of the row",
        )


def check_second(
    kind: Kind, residual: torch.Tensor | None, gate: torch.Tensor | None
) -> torch.Tensor | None:
    """The second operand of the operator ``kind``.

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
    return gate if residual is None else residual


def _check_per_element(
    x: torch.Tensor, value: torch.Tensor | None, name: str, row: tuple[int, ...]
) -> None:
    if value is None:
        return
    if value.dtype not in ELEMENT_TYPES:
        raise UsageError(
            f"{name} must be a float tensor",
            found=f"{name} of {value.dtype}",
            fix=f"convert {name} to float16, bfloat16, float32 or float64",
        )
    shape = tuple(value.shape)
    if shape != row and not _equal_sizes(without_leading_ones(shape), without_leading_ones(row)):
        raise UsageError(
            f"{name} does not have the shape of the normalised axes",
            found=f"{name} {shape}, normalised axes {row}",
            fix=f"give {name} one element per element of the row",
        )
    _check_device(x, value, name)


def _check_like_x(x: torch.Tensor, value: torch.Tensor | None, name: str) -> None:
    if value is None:
        return
    if value.dtype != x.dtype or not _equal_sizes(value.shape, x.shape):
        raise UsageError(
            f"{name} must have the shape and type of x",
            found=f"{name} {value.dtype} {tuple(value.shape)}, x {x.dtype} {tuple(x.shape)}",
            fix=f"broadcast and cast {name} first",
        )
    _check_device(x, value, name)


def _check_device(x: torch.Tensor, value: torch.Tensor, name: str) -> None:
    if value.device != x.device:
        raise UsageError(
            f"{name} is on another device than x",
            found=f"{name} on {value.device}, x on {x.device}",
            fix=f"move {name} to {x.device}",
        )


def _equal_sizes(a: Sequence[int], b: Sequence[int]) -> bool:
    """Equal shapes; sizes not known yet are required to be equal."""
    if len(a) != len(b):
        return False
    for left, right in zip(a, b, strict=True):
        if isinstance(left, int) and isinstance(right, int):
            if left != right:
                return False
        else:
            torch._check(left == right)
    return True


def without_leading_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """``shape`` from its first size on that is not known to be 1."""
    start = next(
        (i for i, size in enumerate(shape) if not (isinstance(size, int) and size == 1)),
        len(shape),
    )
    return shape[start:]
