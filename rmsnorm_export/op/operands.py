"""Checks of operands against a spec, of arrays, tensors and sizes that are not known yet."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.native import BESIDE
from rmsnorm_export.op.spec import FLOAT, HALF_TYPES, Kind, NormSpec

Operand = tuple[int, Sequence[Any]]
"""The ONNX element type and the shape of an operand."""

_Equal = Callable[[Any, Any], bool]

_HOME = {name: kind for kind, names in BESIDE.items() for name in names}
"""Operands that one operator alone has."""

_FITTING = dict.fromkeys(("residual", "gate"), "broadcast and cast it to the shape and type of x")
_FITTING |= dict.fromkeys(
    ("cos", "sin"),
    "give cos and sin one shape and one type, that of x or float32 for a half x: in the last axis "
    "an element for each that is rotated or for each pair, and leading axes that broadcast",
)
"""A remedy for an operand that does not fit and is no scale or bias."""


def check_operands(
    spec: NormSpec, operands: Mapping[str, Operand | None], equal: _Equal = operator.eq
) -> None:
    """Check the operands of a norm against its spec and one another.

    Args:
        spec: the norm.
        operands: by name, ``x`` among them; None, or omitted, where there is none.
        equal: compares two sizes.

    Raises:
        UsageError: they do not fit.
    """
    present = {name: operand for name, operand in operands.items() if operand is not None}
    dtype, shape = present["x"]
    if len(shape) < -spec.axis:
        what = "The tensor x has fewer dimensions than the norm needs."
        fix = f"give x at least {-spec.axis} dimensions"
        raise UsageError(what, found=f"shape {tuple(shape)} with axis {spec.axis}", fix=fix)
    check_row(spec, math.prod(row_shape(spec, shape)), has_scale="scale" in present)
    check_more(spec.kind, {n: v for n, v in present.items() if n not in ("x", "scale", "bias")})
    for name, operand in present.items():
        if name != "x" and not _fits(spec, name, operand, present, equal):
            found = f"{name} {type_name(operand[0])} {tuple(operand[1])}, x {type_name(dtype)} "
            found += f"{tuple(shape)}, normalised axes {row_shape(spec, shape)}"
            fix = _FITTING.get(name, "give it one element for each element of the row")
            raise UsageError(f"The tensor {name} does not fit x.", found=found, fix=fix)


def _fits(
    spec: NormSpec, name: str, operand: Operand, present: Mapping[str, Operand], equal: _Equal
) -> bool:
    """Return whether an operand has a shape and a type that the operator takes with x."""
    (element_type, sizes), (dtype, shape) = operand, present["x"]
    if name == "scale" and spec.scale_varies:
        pairs = zip(reversed(sizes), reversed(shape), strict=False)
        return len(sizes) <= len(shape) and all(_is_one(a) or equal(a, b) for a, b in pairs)
    if name in ("scale", "bias"):
        own = _without_leading_ones(_without_axes_after(spec, tuple(sizes)))
        return _same_shape(own, _without_leading_ones(row_shape(spec, shape)), equal)
    if name in ("residual", "gate"):
        return element_type == dtype and _same_shape(sizes, shape, equal)
    cos = present["cos"]
    if element_type != cos[0] or not _same_shape(sizes, cos[1], equal):
        return False
    if element_type != dtype and (dtype not in HALF_TYPES or element_type != FLOAT):
        return False
    rotated = spec.rotary_dim or shape[-1]
    if not 0 < len(sizes) <= len(shape) or sizes[-1] not in (rotated, rotated // 2):
        return False
    leading = zip(reversed(sizes[:-1]), reversed(shape[:-1]), strict=False)
    return all(_is_one(size) or equal(size, of_x) for size, of_x in leading)


def _same_shape(a: Sequence[Any], b: Sequence[Any], equal: _Equal) -> bool:
    return len(a) == len(b) and all(map(equal, a, b))


def check_row(spec: NormSpec, n: int, *, has_scale: bool) -> None:
    """Check that a row of ``n`` elements has the part, the groups or the pairs of the spec, and
    that there is a scale where the spec has an offset of it.

    Raises:
        UsageError: it has not, or there is none.
    """
    rotated = (spec.rotary_dim or n) if spec.kind == "RotaryRMSNorm" else 0
    even = "use an even number that is at most the elements of a row"
    for name, fits, fix in (
        ("partial_size", spec.partial_size <= n, "use at most the elements of a row"),
        ("group_size", not spec.group_size or n % spec.group_size == 0, "use a divisor of the row"),
        ("rotary_dim", rotated % 2 == 0 and rotated <= n, even),
        ("scale_offset", has_scale or not spec.scale_offset, "pass a scale, or use no offset"),
    ):
        if not fits:
            scale = "" if has_scale else " without a scale"
            found = f"{name} {getattr(spec, name)}, {n} elements in a row{scale}"
            raise UsageError(f"The {name} does not fit the row.", found=found, fix=fix)


def check_more(kind: Kind, operands: Mapping[str, object | None]) -> None:
    """Check that there is a residual, a gate or tables where the operator takes them, and only
    there.

    Raises:
        UsageError: one is missing, or given to an operator that has none.
    """
    for name, value in {**dict.fromkeys(_HOME), **operands}.items():
        if (value is not None) != (kind == _HOME.get(name)):
            what = f"{kind} {'needs' if value is None else 'takes no'} {name}."
            found = f"{name} {'missing' if value is None else 'given'}"
            raise UsageError(what, found=found, fix=f"{'pass' if value is None else 'omit'} {name}")


def row_shape(spec: NormSpec, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of the normalised axes."""
    return tuple(shape[spec.axis : len(shape) + spec.last_axis + 1])


def _without_axes_after(spec: NormSpec, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a scale without the ones that stand for the axes after its row."""
    row = len(sizes) + 1 + spec.last_axis
    return sizes[:row] if row > 0 and all(size == 1 for size in sizes[row:]) else sizes


def _without_leading_ones(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``sizes`` from the first one on that is not known to be 1."""
    start = next((i for i, size in enumerate(sizes) if not _is_one(size)), len(sizes))
    return sizes[start:]


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1
