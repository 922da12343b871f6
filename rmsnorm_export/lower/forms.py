"""The forms in which an operator without a rounding attribute expresses a norm, and their classes.

The operators of the targets ``onnx`` and ``ort`` take X, a scale and epsilon, and compute in one
way. With x of type T and the row normalised in S, ``v = x / sqrt(mean(x ** 2) + epsilon)``, a norm
is written as::

    plain   Y = norm(X, g)                                    all in T
    wide    Y = Cast_T(norm(Cast_S(X), S(g)))                 T(v * g): the scale before the cast
    split   Y = Cast_T(norm(Cast_S(X), 1)) * T(g)             T(v) * g: the cast before the scale

``wide`` and ``split`` repeat every rounding step of the source, because in S no cast is left inside
the operator; each still has one norm node.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir

from rmsnorm_export.lower.builder import SiteBuilder, shape_text, stored_as
from rmsnorm_export.lower.lower import LowerContext, Lowered, refuse_match, strictest
from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, HALF_TYPES
from rmsnorm_export.recognize.complete import SMALLEST_FLOAT32
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal, source_name
from rmsnorm_export.recognize.shape_rules import Dims
from rmsnorm_export.recognize.shape_values import static
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.runtime.support import everywhere

_SMALLEST_SAFE_EPSILON = {FLOAT16: 65504.0**-2, BFLOAT16: 2.0**-256}
"""Below it 1 / sqrt(epsilon) is no finite number: a row of zeros is 0 * inf in the source."""

SAID = frozenset({
    "axis", "stash_type", "scale_before_cast", "scale_offset", "round_rstd", "association",
    "scale_rstd", "epsilon_clamp",
})  # fmt: skip
"""The attributes that the forms express, or do without in a class of numerics."""

# A match refused for one of these is tried again without the part in question.
STRUCTURAL = frozenset({
    "attribute", "bias", "epsilon-outside", "gate", "group", "partial", "quantizer", "residual",
    "residual-kept", "rotary",
})  # fmt: skip


MOST_ONES = 1 << 24
"""A file may declare any size; this is 64 MiB in f32, and far above any row."""

_PORTABLE = "use the portable target"
_STATIC = f"give the normalised dimensions static sizes, or {_PORTABLE}"


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
        """Return the input in ``dtype``, with the nodes it needs; ones where there is no scale."""
        if self.value is None:
            return site.ones(self.dims, dtype)
        value = stored_as(self.value, dtype, self.types) or self.value
        if self.reshaped:
            value = site.reshape(value, self.dims)
        return site.cast(value, dtype, "scale_cast")

    def fits(self, dtype: int) -> bool:
        """Return whether its elements are stored in ``dtype``, or there are none."""
        return self.value is None or stored_as(self.value, dtype, self.types) is not None


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """A form of a norm, and the class of a rewrite to it."""

    kind: Literal["plain", "wide", "split"]
    numerics: Numerics
    note: str = ""


@dataclasses.dataclass(frozen=True)
class OneOperator:
    """A target with one operator for a norm.

    Attributes:
        operator: operator type, in the default domain.
        stash_type: value of the attribute; None: the type in which the row is normalised.
        scales_first: T in a half type means T(v * g) by the operator's definition.
        min_opset: lowest version of the default domain; 0: any.
        reordered_note: of a ``plain`` node that drops the rounding before the scale.
        folds_residuals: the target has an operator for a norm and its residual sum.
    """

    operator: str
    stash_type: int | None
    scales_first: bool
    min_opset: int
    reordered_note: str
    folds_residuals: bool = False

    def lower(self, matches: Sequence[Match], context: LowerContext) -> list[Lowered | Refusal]:
        """Return one node for each match, or for the largest part that the operator can express."""
        return [self._largest_part(match, context.of(match)) for match in matches]

    def beyond_the_runtime(self, part: Match, context: LowerContext) -> Refusal | None:
        """Return the refusal of a norm that the operator's runtime cannot run in any class."""

    def lower_one(
        self, match: Match, scale: ScaleInput, context: LowerContext
    ) -> Lowered | Refusal:
        """Return the norm in the cheapest form whose class is allowed."""
        spec = match.spec
        if spec.stash_type in HALF_TYPES and spec.stash_type != match.dtype:
            message = "the row is normalised in a half type that is not the type of the input"
            return refuse_match(match, "stash-type", message, _rounding(match))
        if spec.epsilon_clamp:
            return self._unclamped(match, scale, context)
        if spec.stash_type == DOUBLE and float(np.float32(spec.epsilon)) != spec.epsilon:
            message = "the operator stores epsilon as a float32, which changes a float64 norm"
            return refuse_match(match, "epsilon-precision", message, f"epsilon {spec.epsilon!r}")
        forms = self._forms(match, scale)
        least, why = strictest(match)
        if least == "upcast":
            forms = [dataclasses.replace(form, numerics=least, note=why) for form in forms]
        elif least == "reordered":
            exact = [form for form in forms if form.numerics == "exact"]
            forms = [form for form in forms if form.numerics != "exact"]
            forms += [dataclasses.replace(form, numerics=least, note=why) for form in exact]
        for form in forms:
            if context.allows(form.numerics):
                return self._emit(match, form, scale, context)
        message, found = "the operator cannot repeat a rounding of the source", _rounding(match)
        if not forms:
            return refuse_match(match, "numerics", message, found)
        needed = forms[-1].numerics
        hint = f"allow --numerics {needed}"
        return refuse_match(match, "numerics", message, f"{found}, class {needed}", hint)

    def _largest_part(self, match: Match, context: LowerContext) -> Lowered | Refusal:
        """Lower ``match``, or else the largest part of it that can be lowered.

        The other nodes of the source stay as they are. When nothing can be lowered the refusal is
        that of the largest part whose operator could express it.
        """
        refusals: list[Refusal] = []
        part: Match | None = match
        while part is not None:
            outcome: Lowered | Refusal | ScaleInput
            outcome = (
                beyond_the_operator(part, has_residual=self.folds_residuals)
                or self.beyond_the_runtime(part, context)
                or scale_input(part, context.types)
            )
            if isinstance(outcome, ScaleInput):
                outcome = self.lower_one(part, outcome, context)
            if isinstance(outcome, Lowered):
                return _with_what_stays(outcome, match, refusals)
            refusals.append(outcome)
            part = part.inner
        refusal = next((r for r in refusals if r.reason not in STRUCTURAL), refusals[-1])
        least, hint = strictest(match)[0], refusal.hint
        if not context.allows(least):  # of that target, too
            hint = hint.replace(_PORTABLE, f"{_PORTABLE} with --numerics {least}")
        return dataclasses.replace(refusal, kind="norm", hint=hint)

    def _unclamped(
        self, match: Match, scale: ScaleInput, context: LowerContext
    ) -> Lowered | Refusal:
        """``x / sqrt(mean + epsilon ** 2)``: of all epsilons the one nearest to the clamp.

        Rows far above it and rows far below it, zeros among them, come out as they did.
        """
        clamp = match.spec.epsilon
        if not context.allows("unclamped"):
            message = "the operator adds an epsilon where the source takes a maximum with one, so "
            message += "rows whose root mean square is near it come out otherwise"
            hint = f"allow --numerics unclamped, or {_PORTABLE}"
            found = f"x / max(rms, {clamp:.6g})"
            return refuse_match(match, "numerics", message, found, hint)
        epsilon = max(float(np.float32(clamp * clamp)), SMALLEST_FLOAT32)
        spec = dataclasses.replace(match.spec, epsilon=epsilon, epsilon_clamp=False)
        lowered = self.lower_one(dataclasses.replace(match, spec=spec), scale, context)
        if isinstance(lowered, Refusal):
            return lowered
        near = f"{clamp / 3000:.3g} and {clamp * 3000:.3g}"
        note = (
            f"x / max(rms, {clamp:.6g}) became x / sqrt(mean + {epsilon:.6g}): rows whose root "
            f"mean square is between {near} differ, by up to 29 %"
        )
        notes = [*lowered.notes, note]
        return dataclasses.replace(lowered, part=match, numerics="unclamped", notes=notes)

    def _forms(self, match: Match, scale: ScaleInput) -> list[Form]:
        """Return every form that can express the norm, cheapest first."""
        spec, dtype = match.spec, match.dtype
        if spec.stash_type in HALF_TYPES:
            note = f"the source computes in {type_name(dtype)}, the new node accumulates in float32"
            return [Form("plain", "upcast", note)]
        if spec.stash_type == dtype:
            return [Form("plain", "exact")]
        half = dtype in HALF_TYPES and spec.stash_type == FLOAT
        plain_runs = half and bool(everywhere(self.operator, dtype))
        weighted = spec.scale_rstd and scale.value is not None
        if spec.round_rstd and not weighted:
            if dtype not in HALF_TYPES:
                return []
            note = "1 / rms is not rounded on the way"
            # The root of a float32 that is not 0 is far above the inverse of the largest bfloat16.
            overflows = dtype == FLOAT16 or spec.stash_type == DOUBLE
            if overflows and spec.epsilon < _SMALLEST_SAFE_EPSILON[dtype]:
                note += ", where it overflowed for tiny rows"
                return [Form("plain", "upcast", note)] if half else []
            if scale.value is None:
                return [Form("plain" if plain_runs else "wide", "reordered", note)]
            # Two roundings fewer before the scale: 2 ulp, more than "reordered" promises.
            return [Form("plain", "upcast", note)] if half else []
        if scale.value is None:
            # T(v * 1) is T(v), in whichever order.
            return [Form("plain" if plain_runs else "wide", "exact")]
        if spec.scale_before_cast or weighted:
            exact_in_half = half and self.scales_first and scale.fits(dtype)
            form = Form("plain" if exact_in_half else "wide", "exact")
            note = "scale / rms is not rounded on the way"
            return [dataclasses.replace(form, numerics="upcast", note=note) if weighted else form]
        split = [] if -1 in scale.dims else [Form("split", "exact")]
        if not half:
            return split
        return [Form("plain", "reordered", self.reordered_note), *split]

    def _emit(self, match: Match, form: Form, scale: ScaleInput, context: LowerContext) -> Lowered:
        """Return the nodes of ``form``."""
        dtype, stash = match.dtype, match.spec.stash_type
        site = SiteBuilder(match, form.numerics, context)
        result = site.like(match.output, dtype, "output")
        # In half types the operator normalises in f32, whatever the source did.
        computed = FLOAT if dtype in HALF_TYPES else dtype
        attributes = {
            "axis": match.spec.axis,
            "epsilon": float(match.spec.epsilon),
            "stash_type": self.stash_type or (computed if form.kind == "plain" else stash),
        }
        if form.kind == "plain":
            site.norm(self.operator, [match.x, scale.input(site, dtype)], attributes, [result])
        else:
            split = form.kind == "split"
            wide = site.cast(match.x, stash, "x_cast")
            factor = site.ones(scale.dims, stash) if split else scale.input(site, stash)
            normed = site.like(match.x, stash, "normalised")
            site.norm(self.operator, [wide, factor], attributes, [normed])
            rounded = site.like(match.output, dtype, "rounded") if split else result
            site.add("Cast", [normed], rounded, "cast", {"to": dtype})
            if split:
                site.add("Mul", [rounded, scale.input(site, dtype)], result, "scale")
        notes = [form.note] if form.note else []
        return site.lowered((match.output, result), min_opset=self.min_opset, notes=notes)


def _with_what_stays(lowered: Lowered, match: Match, refusals: Sequence[Refusal]) -> Lowered:
    """Return ``lowered`` with the reasons why parts of ``match`` are not in it."""
    others = [r for r in refusals if r.kind == "norm"]
    notes = [f"part of the norm stays as it was: {r.message}" for r in others]
    firsts = {r.kind: r for r in reversed(refusals) if r.kind != "norm"}
    add = None if match.sum is None else match.sum.producer()
    if (sums := firsts.get("residual")) is not None and add is not None:
        firsts["residual"] = dataclasses.replace(sums, node=source_name(add), op=add.op_type)
    unfolded = tuple(firsts.values())
    return dataclasses.replace(lowered, notes=[*lowered.notes, *notes], unfolded=unfolded)


def beyond_the_operator(match: Match, *, has_residual: bool) -> Refusal | None:
    """Return the refusal of a part of the norm that the operator cannot express, if any."""
    spec = match.spec
    parts = (
        ("quantizer", "a quantized output", match.quantized is not None),
        ("rotary", "a rotary embedding", match.rotary is not None),
        ("bias", "a bias", match.bias is not None),
        ("gate", f"a {spec.activation} gate", match.gate is not None),
        ("residual", "a residual sum", match.residual is not None and not has_residual),
        ("group", f"groups of {spec.group_size}", spec.group_size),
        ("partial", f"a mean square of {spec.partial_size} elements alone", spec.partial_size),
        ("channels", "rows with axes after them", spec.last_axis != -1),
        ("epsilon-outside", f"epsilon {spec.epsilon} outside the root", spec.epsilon_outside),
        ("attribute", f"the attribute {spec.beyond(SAID)}", spec.beyond(SAID)),
    )
    for reason, what, is_there in parts:
        if is_there:
            hint = f"{_PORTABLE} to have it in the node"
            return refuse_match(match, reason, f"the operator does not have {what}", what, hint)
    return None


def scale_input(match: Match, types: Types) -> ScaleInput | Refusal:
    """Return the scale of ``match`` as a scale input of shape ``X.shape[axis:]``.

    The row is ``axis`` to the last axis, so the scale has that many dimensions: leading dimensions
    of 1 are dropped by a Reshape, since a scale of higher or lower rank than the row is refused or
    computed wrongly by some runtime.
    """
    count, x = -match.spec.axis, types.shape(match.x)
    value, row = match.offset_scale, _row_dims(match, x, count)
    if value is None and match.scale is not None and match.spec.scale_offset:
        message = "the scale with its offset added is no value of the graph"
        found = f"scale + {match.spec.scale_offset}"
        return refuse_match(match, "gain-not-a-value", message, found)
    value = value or match.scale
    if value is not None:
        return _shaped(match, value, types, row, count)
    if row is None or -1 in row:
        message = "the operator needs a scale, and ones of an unknown size cannot be stored"
        found = f"no scale that is known to fit the last {count} axes of {shape_text(x)}"
        return refuse_match(match, "row-size-unknown", message, found, _STATIC)
    if math.prod(row) > MOST_ONES:
        message = "the operator needs a scale, and so many ones are not stored in a model"
        found = f"a weightless row of {math.prod(row):,} elements, at most {MOST_ONES:,}"
        return refuse_match(match, "row-too-long", message, found)
    return ScaleInput(None, row, types)


def _shaped(
    match: Match, value: ir.Value, types: Types, row: tuple[int, ...] | None, count: int
) -> ScaleInput | Refusal:
    """Return ``value`` as a scale input, given the dimensions of the row."""
    dims = types.shape(value)
    if dims is not None:
        tail = tuple(d if isinstance(d, int) else -1 for d in dims[-count:])
        fits = len(dims) >= count and all(d == 1 for d in dims[: len(dims) - count])
        if row is not None:
            fits = fits and all(a == b for a, b in zip(tail, row, strict=True) if -1 not in (a, b))
        if match.n is not None and -1 not in tail:
            fits = fits and math.prod(tail) == match.n
        if not fits:
            found = f"a scale of shape {shape_text(dims)}"
            return refuse_match(match, "gain-shape", "the scale has not the shape of a row", found)
        if row is None or -1 in row:
            row = tail
        if len(dims) == count:
            return ScaleInput(value, row, types)
    if row is None or row.count(-1) > 1:
        if count > 1:
            message = "the scale must have the shape of the row, which the file does not say"
            found = f"a norm over the last {count} axes"
            return refuse_match(match, "row-size-unknown", message, found, _STATIC)
        row = (-1,)
    return ScaleInput(value, row, types, reshaped=True)


def _row_dims(match: Match, dims: Dims, count: int) -> tuple[int, ...] | None:
    """Return the normalised dimensions, -1 where not static; None when not known at all."""
    if count == 1 and match.n is not None:
        return (match.n,)
    if dims is None or len(dims) < count:
        return None
    return tuple(d if isinstance(d, int) else -1 for d in dims[-count:])


def row_shape(part: Match, types: Types) -> tuple[int, ...]:
    """Return the shape of a neutral scale; one element, where n is unknown or absurd."""
    dims = types.shape(part.x)
    tail = dims[part.spec.axis :] if dims is not None else (part.n,)
    strided = part.spec.last_axis != -1
    if strided or (part.spec.axis == -1 and part.n is not None):
        tail = (part.n,)
    sizes = static(tail)
    return (1,) if sizes is None or math.prod(sizes) > MOST_ONES else sizes


def _rounding(match: Match) -> str:
    spec = match.spec
    steps = [f"{type_name(match.dtype)} normalised in {type_name(spec.stash_type)}"]
    if spec.scale_rstd:
        steps.append("scale / rms rounded")
    else:
        steps += ["1 / rms rounded"] if spec.round_rstd else []
        steps.append(f"scaled {'before' if spec.scale_before_cast else 'after'} the cast")
    steps.extend((*match.narrow, *match.edges))
    return ", ".join(steps)
