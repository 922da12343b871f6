"""Scales that no operator takes as they are: with a factor, or multiplied after the norm.

``x * (gain / rms)`` becomes ``norm(x) * gain``, whatever the shape of the gain and whatever it is
computed from; ``x / ||x|| * scale`` becomes ``norm(x, scale / sqrt(n))``.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence

import onnx_ir as ir

from rmsnorm_export.lower.builder import SiteBuilder
from rmsnorm_export.lower.forms import row_shape
from rmsnorm_export.lower.lower import LowerContext, Lowered, Lowering, strictest
from rmsnorm_export.lower.targets import TargetRow
from rmsnorm_export.op.dtypes import vanishes
from rmsnorm_export.op.spec import DOUBLE, FLOAT, HALF_TYPES
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal


def lower_all(
    matches: Sequence[Match], target: TargetRow, context: LowerContext
) -> list[Lowered | Refusal]:
    """Return new nodes for ``target``, or a refusal, for each match of a model."""
    lowering: Lowering = importlib.import_module(target.module).lower
    parts = [split(match, context) for match in matches if match.beside is None]
    outcomes = lowering([part.norm for part in parts], context)
    lowered = iter(
        outcome if isinstance(outcome, Refusal) else part.joined(outcome)
        for part, outcome in zip(parts, outcomes, strict=True)
    )
    return [next(lowered) if match.beside is None else match.beside for match in matches]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Split:
    """One match, the ``norm`` that a target takes for it, and the nodes around that.

    Attributes:
        site: the nodes before the norm, and then those after it; None: there are none.
        scale: multiplied with the norm by a node of its own; None: the norm has it as its scale.
        inner: the same for the part of the match that stands for it in the norm.
    """

    match: Match
    norm: Match
    site: SiteBuilder | None = None
    scale: ir.Value | None = None
    inner: Split | None = None

    def joined(self, lowered: Lowered) -> Lowered:
        """Return the nodes of the norm, or of a part of it, with those around it."""
        match, site = self.match, self.site
        if lowered.part is not self.norm:
            return lowered if self.inner is None else self.inner.joined(lowered)
        if site is None:
            return dataclasses.replace(lowered, part=match)
        front, outputs = site.taken(), dict(lowered.replace)
        if self.scale is not None:
            scaled = site.like(match.output, self.norm.dtype, "scaled")
            site.add("Mul", [outputs[match.output], self.scale], scaled, "scale")
            outputs[match.output] = site.cast(scaled, match.dtype, "output")
        return dataclasses.replace(
            lowered,
            nodes=[*front, *lowered.nodes, *site.taken()],
            replace=list(outputs.items()),
            part=match,
            initializers=[*site.initializers, *lowered.initializers],
        )


def split(match: Match, context: LowerContext) -> Split:
    """Return the part of ``match`` that a target takes, and the nodes around it."""
    inner = None if match.inner is None else split(match.inner, context)
    if inner is not None and inner.norm is match.inner:
        inner = None
    norm = match if inner is None else dataclasses.replace(match, inner=inner.norm)
    gain = match.gain and not match.spec.scale_varies  # else the operator takes it
    if match.gain:
        norm = dataclasses.replace(norm, gain=False)
    if not gain and match.factor == 1.0:
        return Split(match, norm, inner=inner)
    site, scale = SiteBuilder(match, strictest(match)[0], context), match.scale
    if gain and scale is not None:
        spec = match.spec
        dtype = spec.stash_type if spec.scale_before_cast else match.dtype
        norm = dataclasses.replace(
            norm, scale=None, offset_scale=None, factor=1.0, opaque_scale=False,
            spec=spec.canonical(dtype), dtype=dtype, x=site.cast(match.x, dtype, "x"),
            aliases=match.aliases if dtype == match.dtype else (),
        )  # fmt: skip
        return Split(match, norm, site, _multiplied(scale, match.factor, dtype, site), inner)
    own = (None if scale is None else context.types.dtype(scale)) or match.dtype
    dtype = FLOAT if own in HALF_TYPES else own
    if scale is None:
        row = (*row_shape(match, context.types), *(1,) * (-1 - match.spec.last_axis))
        scale = site.ones(row, dtype, match.factor)
    else:
        scale = _multiplied(scale, match.factor, dtype, site)
    norm = dataclasses.replace(norm, scale=scale, offset_scale=scale, factor=1.0)
    return Split(match, norm, site, inner=inner)


def _multiplied(scale: ir.Value, factor: float, dtype: int, site: SiteBuilder) -> ir.Value:
    """Return a scale in another type, times a factor; the nodes are those of the site."""
    scale = site.cast(scale, dtype, "gain")
    numbers = [factor] if factor != 1.0 else []
    if dtype == DOUBLE and vanishes(factor, 1.0):
        numbers = [2 * factor, 0.5]  # exact
    for number in numbers:
        product = site.like(scale, dtype, "gain")
        scale = site.add("Mul", [scale, site.number(number, dtype)], product, "gain")
    return scale
