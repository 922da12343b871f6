"""Target ``ort``: SimplifiedLayerNormalization and SkipSimplifiedLayerNormalization.

Written in the form that the CPU and the CUDA provider both accept (``runtimes.py``): one element
type for X and scale, the scale in the shape of a row. Both operators load at any opset. In half
types they compute ``Cast_T(X / rms * scale)`` in f32: the order of Gemma, one rounding fewer than
LLaMA's.

The residual operator normalises the unrounded sum on CPU, the rounded one on CUDA, and CUDA
releases of 2025 square in the half type: in half types it is class ``upcast``, in f32 exact.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from rmsnorm_export.lower.forms import Dialect, beyond_the_operator, choose, emit, with_inner
from rmsnorm_export.lower.gain import Gain, gain_of
from rmsnorm_export.lower.lowered import Lowered
from rmsnorm_export.lower.parts import (
    Names,
    Shapes,
    Site,
    allowed,
    declared_shape,
    decline,
    text,
    without_widening,
)
from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.spec import FLOAT, HALF_TYPES, NormSpec
from rmsnorm_export.recognize.match import Decline, Match
from rmsnorm_export.runtime.support import (
    MICROSOFT_DOMAIN,
    SIMPLIFIED,
    SKIP_SIMPLIFIED,
    everywhere,
)

_SKIP_VERSION = 1


def _attributes(spec: NormSpec, computed: int) -> Mapping[str, int | float]:
    del computed  # stash_type only types the statistics output here, which is not asked for
    return {"axis": spec.axis, "epsilon": float(spec.epsilon), "stash_type": FLOAT}


_DIALECT = Dialect(
    operator=SIMPLIFIED,
    attributes=_attributes,
    scales_first=True,
    min_opset=0,
    reordered_note="the scale is applied before the rounding: one rounding fewer",
)


def lower_ort(
    match: Match,
    *,
    numerics: Numerics,
    names: Names,
    opset: int,
    fold_residual: bool = True,
    shapes: Shapes = declared_shape,
) -> Lowered | Decline:
    """One ONNX Runtime norm for ``match`` or for the largest part of it that it can say.

    Args:
        match: the norm.
        numerics: the loosest class allowed.
        names: returns a unique name for a wish.
        opset: version of the default domain in the model.
        fold_residual: take the residual Add into the node where that is allowed.
        shapes: dimensions of a value; by default those that the file gives.

    Returns:
        The new nodes, or why there are none.
    """

    def one(part: Match) -> Lowered | Decline:
        refusal = _refused(part, opset)
        if refusal is not None:
            return refusal
        gain = gain_of(part, shapes)
        if isinstance(gain, Decline):
            return gain
        if part.residual is not None:
            refusal = _kept(part, part.residual, gain, numerics, fold_residual, shapes)
            return refusal if refusal is not None else _skip(part, part.residual, gain, names)
        form = choose(part, gain, _DIALECT, numerics)
        return form if isinstance(form, Decline) else emit(part, form, gain, _DIALECT, names)

    return with_inner(match, one)


def _refused(match: Match, opset: int) -> Decline | None:
    """What neither operator can do, whatever the numerics."""
    refusal = beyond_the_operator(match, has_residual=True)
    if refusal is not None:
        return refusal
    rows = everywhere(SIMPLIFIED, match.dtype)
    least_row = max((row.min_row for row in rows), default=1)
    if match.n is not None and match.n < least_row:
        return decline(
            match,
            "row-of-one",
            f"ONNX Runtime's CUDA provider takes rows of {least_row} elements and more",
            found=f"rows of {match.n}",
            hint="use the portable target",
        )
    least_opset = max((row.min_opset for row in rows), default=1)
    if opset < least_opset:
        return decline(
            match,
            "opset",
            f"{type_name(match.dtype)} needs opset {least_opset}",
            found=f"opset {opset}",
            hint=f"convert the model to opset {least_opset} or later",
        )
    return None


def _kept(
    match: Match, residual: ir.Value, gain: Gain, numerics: Numerics, fold: bool, shapes: Shapes
) -> Decline | None:
    """Why the residual Add is not taken into the node, or None."""
    spec, dtype = match.spec, match.dtype
    x, other = shapes(match.x), shapes(residual)
    rows = everywhere(SKIP_SIMPLIFIED, dtype)
    half = dtype in HALF_TYPES
    if not fold:
        why = ("folding is switched off", "fold_residual is False")
    elif not rows:
        why = ("the operator has no such element type", type_name(dtype))
    elif spec.axis != -1:
        why = ("the operator normalises the last axis only", f"axis {spec.axis}")
    elif x is None or x != other or None in x:
        why = ("the shapes are not known to be equal", f"{text(x)} and {text(other)}")
    elif len(x) not in rows[0].ranks:
        why = ("the operator takes rank 2 or 3", f"rank {len(x)}")
    elif match.opaque_scale:
        why = ("the scale may depend on the sum", "a scale that is computed in the graph")
    elif spec.stash_type not in (FLOAT, dtype):
        why = ("the operator normalises in float32", f"stash type {type_name(spec.stash_type)}")
    elif half and gain.value is not None and without_widening(gain.value, dtype) is None:
        why = ("the operator would round the gain", f"a gain wider than {type_name(dtype)}")
    elif (half or match.narrow) and not allowed("upcast", numerics):
        why = (
            "the operator may normalise the sum before it is rounded",
            f"class upcast, {numerics} is allowed",
        )
    else:
        return None
    return decline(
        match,
        "residual-kept",
        f"the residual Add is not folded: {why[0]}",
        found=why[1],
        hint="use the portable target to have it in the node",
    )


def _skip(match: Match, residual: ir.Value, gain: Gain, names: Names) -> Lowered:
    """``Y, sum = norm(X + residual) * scale``; the unused outputs stay unnamed."""
    dtype = match.dtype
    half = dtype in HALF_TYPES
    numerics: Numerics = "upcast" if half or match.narrow else "exact"
    site = Site(match, numerics, names)
    result = site.like(match.output, dtype, "output")
    total = site.like(match.x, dtype, "sum")
    outputs: list[ir.Value | None] = [result, None, None, total]
    site.norm(
        SKIP_SIMPLIFIED,
        [match.x, residual, gain.input(site, dtype)],
        {"epsilon": float(match.spec.epsilon)},
        outputs,
        domain=MICROSOFT_DOMAIN,
        version=_SKIP_VERSION,
    )
    replace = [(match.output, result)]
    if match.sum is not None:
        replace.append((match.sum, total))
    notes = []
    if half:
        notes.append(
            "the sum is normalised before it is rounded; on CUDA, releases before mid-2026 also "
            f"square it in {type_name(dtype)}, which overflows for large rows"
        )
    return Lowered(
        nodes=site.nodes,
        replace=replace,
        numerics=numerics,
        initializers=site.initializers,
        notes=notes,
        part=match,
    )
