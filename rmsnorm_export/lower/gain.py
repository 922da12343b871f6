"""The gain of a norm as the scale input of one node."""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

from rmsnorm_export.lower.parts import Dims, Shapes, Site, decline, text, without_widening
from rmsnorm_export.recognize.match import Decline, Match


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Gain:
    """The scale input of the new node.

    Attributes:
        value: the gain in the source; None: weightless.
        dims: the shape that the scale input must have (one may be -1).
        reshaped: ``value`` has another shape, or an unknown one.
    """

    value: ir.Value | None
    dims: tuple[int, ...]
    reshaped: bool

    def input(self, site: Site, dtype: int) -> ir.Value:
        """The scale input in ``dtype``, with the nodes it needs; ones where there is no gain."""
        if self.value is None:
            return site.ones(self.dims, dtype)
        value = without_widening(self.value, dtype) or self.value
        if self.reshaped:
            value = site.reshape(value, self.dims)
        return site.cast(value, dtype, "scale_cast")

    def ones(self, site: Site, dtype: int) -> ir.Value | None:
        """Ones in place of the gain, or None when its size is not static."""
        return None if -1 in self.dims else site.ones(self.dims, dtype)


def gain_of(match: Match, shapes: Shapes) -> Gain | Decline:
    """The gain of ``match`` as a scale input of shape ``X.shape[axis:]``.

    The row is ``axis`` to the last axis, so the scale has that many dimensions: leading dimensions
    of 1 are dropped by a Reshape, since a scale of higher or lower rank than the row is refused or
    computed wrongly by some runtime.
    """
    count = -match.spec.axis
    value = match.gain
    if value is None and match.scale is not None:
        if match.spec.scale_offset:
            return decline(
                match,
                "gain-not-a-value",
                "the gain with its offset is no value of the graph",
                found=f"scale + {match.spec.scale_offset}",
                hint="use the portable target",
            )
        value = match.scale
    row = _row_dims(match, shapes(match.x), count)
    if value is None:
        if row is None or -1 in row:
            return decline(
                match,
                "row-size-unknown",
                "the operator needs a scale, and ones of an unknown size cannot be stored",
                found=f"a weightless norm over the last {count} axes of {text(shapes(match.x))}",
                hint="give the normalised dimensions static sizes, or use the portable target",
            )
        return Gain(None, row, reshaped=False)
    return _shaped(match, value, shapes(value), row, count)


def _shaped(
    match: Match, value: ir.Value, dims: Dims, row: tuple[int, ...] | None, count: int
) -> Gain | Decline:
    """``value`` as a scale input, given its own dimensions and those of the row."""
    if dims is not None:
        tail = tuple(d if isinstance(d, int) else -1 for d in dims[-count:])
        fits = len(dims) >= count and all(d == 1 for d in dims[: len(dims) - count])
        if row is not None:
            fits = fits and all(a == b for a, b in zip(tail, row, strict=True) if -1 not in (a, b))
        if match.n is not None and -1 not in tail:
            fits = fits and math.prod(tail) == match.n
        if not fits:
            return decline(
                match,
                "gain-shape",
                "the gain has not the shape of a row",
                found=f"a gain of shape {text(dims)}",
                hint="use the portable target",
            )
        if row is None or -1 in row:
            row = tail
        if len(dims) == count:
            return Gain(value, row, reshaped=False)
    if row is None or row.count(-1) > 1:
        if count > 1:
            return decline(
                match,
                "row-size-unknown",
                "the scale must have the shape of the row, which the file does not say",
                found=f"a norm over the last {count} axes",
                hint="give the normalised dimensions static sizes, or use the portable target",
            )
        row = (-1,)
    return Gain(value, row, reshaped=True)


def _row_dims(match: Match, dims: Dims, count: int) -> tuple[int, ...] | None:
    """The normalised dimensions, -1 where not static; None when not known at all."""
    if count == 1 and match.n is not None:
        return (match.n,)
    if dims is None or len(dims) < count:
        return None
    return tuple(d if isinstance(d, int) else -1 for d in dims[-count:])
