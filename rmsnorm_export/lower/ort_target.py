"""Target ``ort``: SimplifiedLayerNormalization and SkipSimplifiedLayerNormalization.

Written in the form that the CPU and the CUDA provider both accept (``runtimes.py``): one element
type for X and scale, the scale in the shape of a row. Both operators load at any opset. In half
types they compute ``Cast_T(X / rms * scale)`` in f32: the order of Gemma, one rounding fewer than
LLaMA's.

The residual operator normalises the unrounded sum on CPU, in half types that is class ``upcast``.
On CUDA it rounds the sum, as an Add does, and from 1.27 on squares it in f32: class ``reordered``.
Before it squares and sums in the half type, and is not written for such a runtime.

So by default (``reordered``) a float16 norm becomes SimplifiedLayerNormalization, and its residual
stays an Add. Measured on ONNX Runtime 1.31, CPU, one thread, interleaved in one run, eight LLaMA
blocks of norm and Add: 0.40 to 0.49 of the time of the source without the sum in the node, 0.62 to
1.08 with it (rows of 2048 and 4096, 1 to 512 of them), and 2.6 times the error against float64,
because the session keeps a residual stream of Adds in f32 and a node's sum output rounds it.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rmsnorm_export.lower.builder import SiteBuilder, shape_text
from rmsnorm_export.lower.forms import SAID, OneOperator, ScaleInput
from rmsnorm_export.lower.lower import LowerContext, Lowered, refuse_match, strictest
from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.native import MICROSOFT_DOMAIN, SIMPLIFIED, SKIP_SIMPLIFIED
from rmsnorm_export.op.numerics import NUMERICS_ORDER, Numerics
from rmsnorm_export.op.spec import FLOAT, HALF_TYPES
from rmsnorm_export.recognize.finish import same_where_added
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal
from rmsnorm_export.runtime.support import everywhere

_ATTRIBUTES_WITH_A_SUM = SAID - {"epsilon_clamp"}


class _OnnxRuntime(OneOperator):
    """One ONNX Runtime norm; residual Adds are taken into the node where that is allowed."""

    def beyond_the_runtime(self, part: Match, context: LowerContext) -> Refusal | None:
        rows, opset = everywhere(SIMPLIFIED, part.dtype), context.opset
        cuda = None if context.runtime is None else context.runtime.cuda
        least_row = max((row.min_row for row in rows), default=1)
        if cuda is not None:
            least_row = cuda.least_row
        least_opset = max((row.min_opset for row in rows), default=1)
        if part.n is not None and part.n < least_row:
            message = f"ONNX Runtime's CUDA provider takes rows of {least_row} elements and more"
            return refuse_match(part, "row-of-one", message, f"rows of {part.n}")
        if opset < least_opset:
            message = f"{type_name(part.dtype)} needs opset {least_opset}"
            hint = f"convert the model to opset {least_opset} or later"
            return refuse_match(part, "opset", message, f"opset {opset}", hint)
        return None

    def lower_one(
        self, match: Match, scale: ScaleInput, context: LowerContext
    ) -> Lowered | Refusal:
        if match.residual is None:
            return super().lower_one(match, scale, context)
        kept = _residual_kept(match, match.residual, scale, context)
        return kept or _skip_node(match, scale, context)


lower = _OnnxRuntime(
    operator=SIMPLIFIED,
    stash_type=FLOAT,  # types the statistics output alone, which is not asked for
    scales_first=True,
    min_opset=0,
    reordered_note="the scale is applied before the rounding: one rounding fewer",
    folds_residuals=True,
).lower


def _residual_kept(
    match: Match, residual: ir.Value, scale: ScaleInput, context: LowerContext
) -> Refusal | None:
    """Return why the residual Add is not taken into the node, or None."""
    spec, dtype = match.spec, match.dtype
    least, _ = strictest(match)
    x, other = context.types.shape(match.x), context.types.shape(residual)
    rows = everywhere(SKIP_SIMPLIFIED, dtype)
    half = dtype in HALF_TYPES
    lacks = "" if context.runtime is None else context.runtime.lacks_sum(dtype)
    if lacks:
        why = ("the runtime does not run it", lacks)
    elif not rows:
        why = ("the operator has no such element type", type_name(dtype))
    elif spec.epsilon_clamp:
        why = ("the operator has no clamp", f"x / max(rms, {spec.epsilon:.6g})")
    elif absent := spec.beyond(_ATTRIBUTES_WITH_A_SUM):
        why = ("the operator does not know the attribute", absent)
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
    elif half and not context.allows(_class_of_sum(context)):
        allowed = f"class {_class_of_sum(context)}, {context.numerics} is allowed"
        why = ("the operator may normalise the sum before it is rounded", allowed)
    elif not context.allows(least):
        why = ("the operator does not repeat the source", f"{context.numerics} is allowed")
    else:
        return None
    hint = "use the portable target to have it in the node"
    if not context.allows(least):  # for that target, too
        hint = f"allow --numerics {least}"
    message = f"the residual Add is not folded: {why[0]}"
    return refuse_match(match, "residual-kept", message, why[1], hint)


def _class_of_sum(context: LowerContext) -> Numerics:
    """Return the class of a norm and its residual sum in one node, in a half type."""
    runtime = context.runtime
    return "upcast" if runtime is None or runtime.cuda is None else "reordered"


def _skip_node(match: Match, scale: ScaleInput, context: LowerContext) -> Lowered:
    """``Y, sum = norm(X + residual) * scale``; the unused outputs stay unnamed."""
    dtype = match.dtype
    half = dtype in HALF_TYPES
    least, why = strictest(match)
    classes = (least, _class_of_sum(context)) if half else (least,)
    of_sum = max(classes, key=NUMERICS_ORDER.index)
    site = SiteBuilder(match, of_sum, context)
    result = site.like(match.output, dtype, "output")
    total = site.like(match.x, dtype, "sum")
    site.norm(
        SKIP_SIMPLIFIED,
        [match.x, match.residual, scale.input(site, dtype)],
        {"epsilon": float(match.spec.epsilon)},
        [result, None, None, total],
        domain=MICROSOFT_DOMAIN,
    )
    notes = [why] if why else []
    if half and _class_of_sum(context) == "upcast":
        notes.append(
            "the sum is normalised before it is rounded; in CUDA, before 1.27, it is also squared "
            f"in {type_name(dtype)}, which overflows for large rows"
        )
    sums = [] if match.sum is None else [(match.sum, total)]
    lowered = site.lowered((match.output, result), *sums, notes=notes)
    return dataclasses.replace(lowered, on_cpu="upcast" if half else None)
