"""Target ``ort``: SimplifiedLayerNormalization and SkipSimplifiedLayerNormalization.

Written in the form that the CPU and the CUDA provider both accept (``runtimes.py``): one element
type for X and scale, the scale in the shape of a row. Both operators load at any opset. In half
types they compute ``Cast_T(X / rms * scale)`` in f32: the order of Gemma, one rounding fewer than
LLaMA's.

The residual operator normalises the unrounded sum on CPU, the rounded one on CUDA, and CUDA
releases of 2025 square in the half type: in half types it is class ``upcast``, in f32 exact.

So by default (``reordered``) a float16 norm becomes SimplifiedLayerNormalization, and its residual
stays an Add. Measured on ONNX Runtime 1.31, CPU, one thread, interleaved in one run, eight LLaMA
blocks of norm and Add: 0.40 to 0.49 of the time of the source without the sum in the node, 0.62 to
1.08 with it (rows of 2048 and 4096, 1 to 512 of them), and 2.6 times the error against float64,
because the session keeps a residual stream of Adds in f32 and a node's sum output rounds it.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rmsnorm_export.lower.builder import SiteBuilder, shape_text
from rmsnorm_export.lower.forms import (
    Dialect,
    beyond_the_operator,
    lower_form,
    lower_largest_part,
)
from rmsnorm_export.lower.lower import LowerContext, Lowered, refuse_match, strictest
from rmsnorm_export.lower.scale import ScaleInput
from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.native import MICROSOFT_DOMAIN, SIMPLIFIED, SKIP_SIMPLIFIED
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.spec import FLOAT, HALF_TYPES
from rmsnorm_export.recognize.finish import same_where_added
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal
from rmsnorm_export.runtime.support import everywhere

_SKIP_VERSION = 1


_DIALECT = Dialect(
    operator=SIMPLIFIED,
    stash_type=FLOAT,  # types the statistics output alone, which is not asked for
    scales_first=True,
    min_opset=0,
    reordered_note="the scale is applied before the rounding: one rounding fewer",
)


def lower(matches: Sequence[Match], context: LowerContext) -> list[Lowered | Refusal]:
    """One ONNX Runtime norm for each match, or for the largest part that it can say.

    Residual Adds are taken into the node where that is allowed.
    """

    def refuses(part: Match) -> Refusal | None:
        return _beyond_the_runtime(part, context.opset)

    def lower_one(part: Match, scale: ScaleInput) -> Lowered | Refusal:
        if part.residual is None:
            return lower_form(part, scale, _DIALECT, context)
        kept = _residual_kept(part, part.residual, scale, context)
        return kept or _skip_node(part, part.residual, scale, context)

    return [lower_largest_part(match, context, refuses, lower_one) for match in matches]


def _beyond_the_runtime(match: Match, opset: int) -> Refusal | None:
    """What neither operator can do, whatever the numerics."""
    refusal = beyond_the_operator(match, has_residual=True)
    if refusal is not None:
        return refusal
    rows = everywhere(SIMPLIFIED, match.dtype)
    least_row = max((row.min_row for row in rows), default=1)
    if match.n is not None and match.n < least_row:
        return refuse_match(
            match,
            "row-of-one",
            f"ONNX Runtime's CUDA provider takes rows of {least_row} elements and more",
            found=f"rows of {match.n}",
            hint="use the portable target",
        )
    least_opset = max((row.min_opset for row in rows), default=1)
    if opset < least_opset:
        return refuse_match(
            match,
            "opset",
            f"{type_name(match.dtype)} needs opset {least_opset}",
            found=f"opset {opset}",
            hint=f"convert the model to opset {least_opset} or later",
        )
    return None


def _residual_kept(
    match: Match, residual: ir.Value, scale: ScaleInput, context: LowerContext
) -> Refusal | None:
    """Why the residual Add is not taken into the node, or None."""
    spec, dtype = match.spec, match.dtype
    x, other = context.types.shape(match.x), context.types.shape(residual)
    rows = everywhere(SKIP_SIMPLIFIED, dtype)
    half = dtype in HALF_TYPES
    if not rows:
        why = ("the operator has no such element type", type_name(dtype))
    elif spec.epsilon_clamp:
        why = ("the operator has no clamp", f"x / max(rms, {spec.epsilon:.6g})")
    elif spec.axis != -1:
        why = ("the operator normalises the last axis only", f"axis {spec.axis}")
    elif x is None or not same_where_added(x, other):
        why = ("the shapes are not known to be equal", f"{shape_text(x)} and {shape_text(other)}")
    elif len(x) not in rows[0].ranks:
        why = ("the operator takes rank 2 or 3", f"rank {len(x)}")
    elif match.opaque_scale:
        why = ("the scale may depend on the sum", "a scale that is computed in the graph")
    elif spec.stash_type not in (FLOAT, dtype):
        why = ("the operator normalises in float32", f"stash type {type_name(spec.stash_type)}")
    elif half and not scale.fits(dtype):
        why = ("the operator would round the scale", f"a scale wider than {type_name(dtype)}")
    elif half and not context.allows("upcast"):
        why = (
            "the operator may normalise the sum before it is rounded",
            f"class upcast, {context.numerics} is allowed",
        )
    elif not context.allows(strictest(match)[0]):
        why = ("the operator does not repeat the source", f"{context.numerics} is allowed")
    else:
        return None
    return refuse_match(
        match,
        "residual-kept",
        f"the residual Add is not folded: {why[0]}",
        found=why[1],
        hint="use the portable target to have it in the node",
    )


def _skip_node(
    match: Match, residual: ir.Value, scale: ScaleInput, context: LowerContext
) -> Lowered:
    """``Y, sum = norm(X + residual) * scale``; the unused outputs stay unnamed."""
    dtype = match.dtype
    half = dtype in HALF_TYPES
    least, why = strictest(match)
    numerics: Numerics = "upcast" if half else least
    site = SiteBuilder(match, numerics, context)
    result = site.like(match.output, dtype, "output")
    total = site.like(match.x, dtype, "sum")
    site.norm(
        SKIP_SIMPLIFIED,
        [match.x, residual, scale.input(site, dtype)],
        {"epsilon": float(match.spec.epsilon)},
        [result, None, None, total],
        domain=MICROSOFT_DOMAIN,
        version=_SKIP_VERSION,
    )
    replace = [(match.output, result)]
    if match.sum is not None:
        replace.append((match.sum, total))
    notes = [why] if why else []
    if half:
        notes.append(
            "the sum is normalised before it is rounded; on CUDA, releases before mid-2026 also "
            f"square it in {type_name(dtype)}, which overflows for large rows"
        )
    return site.lowered(*replace, notes=notes)
