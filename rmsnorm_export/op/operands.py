"""Checks of operands against a spec, of arrays, tensors and sizes that are not known yet."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.spec import FLOAT, HALF_TYPES, Kind, NormSpec

Operand = tuple[int, Sequence[Any]]
"""The ONNX element type and the shape of an operand."""


def check_operands(
    spec: NormSpec,
    operands: Mapping[str, Operand | None],
    equal: Callable[[Any, Any], bool] = operator.eq,
) -> None:
    """Check the operands of a norm against its spec and one another.

    Args:
        spec: the norm.
        operands: by name, ``x`` among them; None, or omitted, where there is none.
        equal: whether two sizes are the same.

    Raises:
        UsageError: they do not fit.
    """
    present = {name: operand for name, operand in operands.items() if operand is not None}
    dtype, shape = present["x"]
    if len(shape) < -spec.axis:
        raise UsageError(
            "The tensor x has fewer dimensions than the norm needs.",
            found=f"shape {tuple(shape)} with axis {spec.axis}",
            fix=f"give x at least {-spec.axis} dimensions",
        )
    row = row_shape(spec, shape)
    check_row(spec, math.prod(row))
    check_offset(spec, present.get("scale"))
    check_more(spec.kind, {n: v for n, v in present.items() if n not in ("x", "scale", "bias")})
    for name, (element_type, sizes) in present.items():
        if name in ("scale", "bias"):
            own = without_leading_ones(without_axes_behind(spec, tuple(sizes)))
            if not _same_shape(own, without_leading_ones(row), equal):
                raise UsageError(
                    f"{name} does not have the shape of the normalised axes.",
                    found=f"{name} {tuple(sizes)}, normalised axes {row}",
                    fix=f"give {name} one element per element of the row",
                )
        elif name in ("residual", "gate") and not (
            element_type == dtype and _same_shape(sizes, shape, equal)
        ):
            raise UsageError(
                f"{name} must have the shape and type of x.",
                found=f"{name} {type_name(element_type)} {tuple(sizes)}, "
                f"x {type_name(dtype)} {tuple(shape)}",
                fix=f"broadcast and cast {name} first",
            )
    if "cos" in present:
        check_tables(spec, shape, dtype, [present["cos"], present["sin"]], equal)


def _same_shape(a: Sequence[Any], b: Sequence[Any], equal: Callable[[Any, Any], bool]) -> bool:
    return len(a) == len(b) and all(map(equal, a, b))


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


def check_more(kind: Kind, operands: Mapping[str, object | None]) -> None:
    """Check that there is a residual, a gate or tables where the operator takes them, and only
    there.

    Raises:
        UsageError: one is missing, or given to an operator that has none.
    """
    for name, value in {**dict.fromkeys(_HOME), **operands}.items():
        if (value is not None) != (kind == _HOME.get(name)):
            raise UsageError(
                f"{kind} {'needs' if value is None else 'takes no'} {name}.",
                found=f"{name} {'missing' if value is None else 'given'}",
                fix=f"{'pass' if value is None else 'omit'} {name}",
            )


_HOME: dict[str, Kind] = {
    "residual": "SkipRMSNorm",
    "gate": "GatedRMSNorm",
    "cos": "RotaryRMSNorm",
    "sin": "RotaryRMSNorm",
}


def check_tables(
    spec: NormSpec,
    shape: Sequence[int],
    dtype: int,
    tables: Sequence[Operand],
    equal: Callable[[Any, Any], bool] = operator.eq,
) -> None:
    """Check that the tables of a ``RotaryRMSNorm`` fit x and each other.

    Args:
        spec: the norm.
        shape, dtype: of x, the type as an ONNX element type.
        tables: element types and shapes of cos and sin.
        equal: whether two sizes are the same.

    Raises:
        UsageError: they do not.
    """
    turned = spec.rotary_dim or shape[-1]
    if turned % 2 or turned > shape[-1]:
        raise UsageError(
            "The rotary_dim does not fit the row.",
            found=f"rotary_dim {spec.rotary_dim}, {shape[-1]} elements in a row",
            fix="use an even number that is at most the elements of a row",
        )
    for name, (table, sizes) in zip(("cos", "sin"), tables, strict=True):
        if table != dtype and (dtype not in HALF_TYPES or table != FLOAT):
            raise UsageError(
                f"{name} must have the type of x, or be float32 where x has a half type.",
                found=f"{name} {type_name(table)}, x {type_name(dtype)}",
                fix=f"cast {name} first",
            )
        leading = zip(reversed(sizes[:-1]), reversed(shape[:-1]), strict=False)
        fits = 0 < len(sizes) <= len(shape) and sizes[-1] in (turned, turned // 2)
        if not fits or any(
            not (isinstance(size, int) and size == 1) and not equal(size, of_x)
            for size, of_x in leading
        ):
            raise UsageError(
                f"{name} does not have a shape that fits the rows of x.",
                found=f"{name} {tuple(sizes)}, x {tuple(shape)}, {turned} elements turned",
                fix=f"give {name} {turned} or {turned // 2} elements in the last axis, and leading "
                "axes that broadcast to those of x",
            )
    cos, sin = tables
    if cos[0] != sin[0] or not _same_shape(cos[1], sin[1], equal):
        raise UsageError(
            "The tables cos and sin must have one type and one shape.",
            found=f"cos {type_name(cos[0])} {tuple(cos[1])}, "
            f"sin {type_name(sin[0])} {tuple(sin[1])}",
            fix="give them the same type and shape",
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
