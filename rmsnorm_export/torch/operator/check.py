"""Whether operands fit a spec and one another, on real, fake and symbolic shapes alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.operands import check_operands, without_leading_ones
from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.torch.dtypes import ELEMENT_TYPES
from rmsnorm_export.torch.operator.signature import OPTIONAL


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
    check_operands(spec, x.shape, scale=scale, residual=residual, gate=gate)
    row = tuple(x.shape[spec.axis :])
    given = {"scale": scale, "bias": bias, "residual": residual, "gate": gate}
    for name, value in given.items():
        if value is None:
            continue
        if name in OPTIONAL:
            _check_per_element(value, name, row)
        else:
            _check_like_x(x, value, name)
        if value.device != x.device:
            raise UsageError(
                f"{name} is on another device than x.",
                found=f"{name} on {value.device}, x on {x.device}",
                fix=f"move {name} to {x.device}",
            )


def _check_per_element(value: torch.Tensor, name: str, row: tuple[int, ...]) -> None:
    if value.dtype not in ELEMENT_TYPES:
        raise UsageError(
            f"{name} must be a float tensor.",
            found=f"{name} of {value.dtype}",
            fix=f"convert {name} to float16, bfloat16, float32 or float64",
        )
    shape = tuple(value.shape)
    if shape != row and not _equal_sizes(without_leading_ones(shape), without_leading_ones(row)):
        raise UsageError(
            f"{name} does not have the shape of the normalised axes.",
            found=f"{name} {shape}, normalised axes {row}",
            fix=f"give {name} one element per element of the row",
        )


def _check_like_x(x: torch.Tensor, value: torch.Tensor, name: str) -> None:
    if value.dtype != x.dtype or not _equal_sizes(value.shape, x.shape):
        raise UsageError(
            f"{name} must have the shape and type of x.",
            found=f"{name} {value.dtype} {tuple(value.shape)}, x {x.dtype} {tuple(x.shape)}",
            fix=f"broadcast and cast {name} first",
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
