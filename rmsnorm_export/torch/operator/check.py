"""Whether operands fit a spec and one another, on real, fake and symbolic shapes alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.torch.operator.plan import ELEMENT_TYPES


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
    n = math.prod(row)
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
    if scale is None and spec.scale_offset:
        raise UsageError(
            "scale_offset without a scale",
            found=f"scale_offset {spec.scale_offset}",
            fix="pass a scale, or use scale_offset 0",
        )
    _per_element(x, scale, "scale", row)
    _per_element(x, bias, "bias", row)
    _like_x(x, residual, "residual", spec.kind, spec.kind == "SkipRMSNorm")
    _like_x(x, gate, "gate", spec.kind, spec.kind == "GatedRMSNorm")


def _per_element(
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
    if shape != row and not _same(_without_leading_ones(shape), _without_leading_ones(row)):
        raise UsageError(
            f"{name} does not have the shape of the normalised axes",
            found=f"{name} {shape}, normalised axes {row}",
            fix=f"give {name} one element per element of the row",
        )
    _same_device(x, value, name)


def _like_x(
    x: torch.Tensor, value: torch.Tensor | None, name: str, kind: str, wanted: bool
) -> None:
    if (value is not None) != wanted:
        raise UsageError(
            f"{kind} {'needs' if wanted else 'takes no'} {name}",
            found=f"{name} {'missing' if wanted else 'given'}",
            fix=f"{'pass' if wanted else 'leave out'} {name}",
        )
    if value is None:
        return
    if value.dtype != x.dtype or not _same(value.shape, x.shape):
        raise UsageError(
            f"{name} must have the shape and type of x",
            found=f"{name} {value.dtype} {tuple(value.shape)}, x {x.dtype} {tuple(x.shape)}",
            fix=f"broadcast and cast {name} first",
        )
    _same_device(x, value, name)


def _same_device(x: torch.Tensor, value: torch.Tensor, name: str) -> None:
    if value.device != x.device:
        raise UsageError(
            f"{name} is on another device than x",
            found=f"{name} on {value.device}, x on {x.device}",
            fix=f"move {name} to {x.device}",
        )


def _same(a: Sequence[int], b: Sequence[int]) -> bool:
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


def _without_leading_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    start = next(
        (i for i, size in enumerate(shape) if not (isinstance(size, int) and size == 1)),
        len(shape),
    )
    return shape[start:]
