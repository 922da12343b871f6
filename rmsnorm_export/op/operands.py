"""Whether operands fit a spec: what holds for arrays, tensors and sizes that are not known yet."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.spec import Kind, NormSpec


def check_operands(
    spec: NormSpec,
    shape: Sequence[int],
    *,
    scale: object | None,
    residual: object | None,
    gate: object | None,
) -> None:
    """Check which operands there are, and the shape of x.

    Raises:
        UsageError: they do not fit the spec.
    """
    if len(shape) < -spec.axis:
        raise UsageError(
            "The tensor x has fewer dimensions than the norm needs.",
            found=f"shape {tuple(shape)} with axis {spec.axis}",
            fix=f"give x at least {-spec.axis} dimensions",
        )
    check_row(spec, math.prod(row_shape(spec, shape)))
    check_offset(spec, scale)
    check_second(spec.kind, residual, gate)


def check_offset(spec: NormSpec, scale: object | None) -> None:
    """Check that there is a scale where the spec has an offset of it.

    Raises:
        UsageError: there is none.
    """
    if scale is None and spec.scale_offset:
        raise UsageError(
            "The norm has a scale_offset without a scale.",
            found=f"scale_offset {spec.scale_offset}",
            fix="pass a scale, or use scale_offset 0",
        )


def check_row(spec: NormSpec, n: int) -> None:
    """Check that a row of ``n`` elements has the part or the groups of the spec.

    Raises:
        UsageError: it has not.
    """
    if spec.partial_size and spec.partial_size > n:
        raise UsageError(
            "The partial_size is larger than the row.",
            found=f"partial_size {spec.partial_size}, {n} elements in a row",
            fix="use at most the elements of a row",
        )
    if spec.group_size and n % spec.group_size:
        raise UsageError(
            "The group_size does not divide the row.",
            found=f"group_size {spec.group_size}, {n} elements in a row",
            fix="use a divisor of the row",
        )


def check_second(kind: Kind, residual: object | None, gate: object | None) -> None:
    """Check that there is a residual or a gate where the operator takes one, and only there.

    Raises:
        UsageError: one is missing, or given to an operator that has none.
    """
    for name, value, home in (
        ("residual", residual, "SkipRMSNorm"),
        ("gate", gate, "GatedRMSNorm"),
    ):
        if (value is not None) != (kind == home):
            raise UsageError(
                f"{kind} {'needs' if value is None else 'takes no'} {name}.",
                found=f"{name} {'missing' if value is None else 'given'}",
                fix=f"{'pass' if value is None else 'leave out'} {name}",
            )


def row_shape(spec: NormSpec, shape: Sequence[int]) -> tuple[int, ...]:
    """The sizes of the normalised axes."""
    return tuple(shape[spec.axis : len(shape) + spec.last_axis + 1])


def without_axes_behind(spec: NormSpec, given: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a scale without the ones that stand for the axes behind its row."""
    row = len(given) + 1 + spec.last_axis
    return given[:row] if row > 0 and all(size == 1 for size in given[row:]) else given


def without_leading_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """``shape`` from its first size on that is not known to be 1."""
    start = next(
        (i for i, size in enumerate(shape) if not (isinstance(size, int) and size == 1)),
        len(shape),
    )
    return shape[start:]
