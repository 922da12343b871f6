"""The scale of a norm as the scale input of one node."""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

from rmsnorm_export.lower.builder import SiteBuilder, shape_text, stored_as
from rmsnorm_export.lower.lower import refuse_match
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal
from rmsnorm_export.recognize.shape_rules import Dims
from rmsnorm_export.recognize.types import Types

MOST_ONES = 1 << 24
"""A file may declare any size; this is 64 MiB in f32, and far above any row."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ScaleInput:
    """The scale input of the new node.

    Attributes:
        value: the scale in the source, its offset added; None: weightless.
        dims: the shape that the scale input must have (one may be -1).
        types: element types and shapes.
        reshaped: ``value`` has another shape, or an unknown one.
    """

    value: ir.Value | None
    dims: tuple[int, ...]
    types: Types
    reshaped: bool = False

    def input(self, site: SiteBuilder, dtype: int) -> ir.Value:
        """The scale input in ``dtype``, with the nodes it needs; ones where there is no scale."""
        if self.value is None:
            return site.ones(self.dims, dtype)
        value = stored_as(self.value, dtype, self.types) or self.value
        if self.reshaped:
            value = site.reshape(value, self.dims)
        return site.cast(value, dtype, "scale_cast")

    def fits(self, dtype: int) -> bool:
        """Whether its elements are stored in ``dtype``, or there are none."""
        return self.value is None or stored_as(self.value, dtype, self.types) is not None


def scale_input(match: Match, types: Types) -> ScaleInput | Refusal:
    """The scale of ``match`` as a scale input of shape ``X.shape[axis:]``.

    The row is ``axis`` to the last axis, so the scale has that many dimensions: leading dimensions
    of 1 are dropped by a Reshape, since a scale of higher or lower rank than the row is refused or
    computed wrongly by some runtime.
    """
    count = -match.spec.axis
    value = match.offset_scale
    if value is None and match.scale is not None:
        if match.spec.scale_offset:
            return refuse_match(
                match,
                "gain-not-a-value",
                "the scale with its offset added is no value of the graph",
                found=f"scale + {match.spec.scale_offset}",
                hint="use the portable target",
            )
        value = match.scale
    row = _row_dims(match, types.shape(match.x), count)
    if value is None:
        if row is None or -1 in row:
            return refuse_match(
                match,
                "row-size-unknown",
                "the operator needs a scale, and ones of an unknown size cannot be stored",
                found=f"a weightless norm over the last {count} axes of "
                f"{shape_text(types.shape(match.x))}",
                hint="give the normalised dimensions static sizes, or use the portable target",
            )
        if math.prod(row) > MOST_ONES:
            return refuse_match(
                match,
                "row-too-long",
                "the operator needs a scale, and so many ones are not stored in a model",
                found=f"a weightless row of {math.prod(row):,} elements, at most {MOST_ONES:,}",
                hint="use the portable target",
            )
        return ScaleInput(None, row, types)
    return _shaped(match, value, types, row, count)


def _shaped(
    match: Match, value: ir.Value, types: Types, row: tuple[int, ...] | None, count: int
) -> ScaleInput | Refusal:
    """``value`` as a scale input, given the dimensions of the row."""
    dims = types.shape(value)
    if dims is not None:
        tail = tuple(d if isinstance(d, int) else -1 for d in dims[-count:])
        fits = len(dims) >= count and all(d == 1 for d in dims[: len(dims) - count])
        if row is not None:
            fits = fits and all(a == b for a, b in zip(tail, row, strict=True) if -1 not in (a, b))
        if match.n is not None and -1 not in tail:
            fits = fits and math.prod(tail) == match.n
        if not fits:
            return refuse_match(
                match,
                "gain-shape",
                "the scale has not the shape of a row",
                found=f"a scale of shape {shape_text(dims)}",
                hint="use the portable target",
            )
        if row is None or -1 in row:
            row = tail
        if len(dims) == count:
            return ScaleInput(value, row, types)
    if row is None or row.count(-1) > 1:
        if count > 1:
            return refuse_match(
                match,
                "row-size-unknown",
                "the scale must have the shape of the row, which the file does not say",
                found=f"a norm over the last {count} axes",
                hint="give the normalised dimensions static sizes, or use the portable target",
            )
        row = (-1,)
    return ScaleInput(value, row, types, reshaped=True)


def _row_dims(match: Match, dims: Dims, count: int) -> tuple[int, ...] | None:
    """The normalised dimensions, -1 where not static; None when not known at all."""
    if count == 1 and match.n is not None:
        return (match.n,)
    if dims is None or len(dims) < count:
        return None
    return tuple(d if isinstance(d, int) else -1 for d in dims[-count:])
