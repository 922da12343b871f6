"""In which form an operator without a rounding attribute says a norm, and under which class.

Both operators of the other targets take X, a scale and epsilon, and compute in one way. With x of
type T and the row normalised in S, ``v = x / sqrt(mean(x ** 2) + epsilon)``, a norm is said as::

    plain   Y = norm(X, g)                                    all in T
    wide    Y = Cast_T(norm(Cast_S(X), S(g)))                 T(v * g): the scale before the cast
    split   Y = Cast_T(norm(Cast_S(X), 1)) * T(g)             T(v) * g: the cast before the scale

``wide`` and ``split`` repeat every rounding step of the source, because in S no cast is left inside
the operator; each still has one norm node.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import numpy as np

from rmsnorm_export.lower.builder import SiteBuilder
from rmsnorm_export.lower.lower import LowerContext, Lowered, refuse_match, strictest
from rmsnorm_export.lower.scale import ScaleInput, scale_input
from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, HALF_TYPES, NormSpec
from rmsnorm_export.recognize.complete import SMALLEST_FLOAT32
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal, name_of
from rmsnorm_export.runtime.support import everywhere

_SMALLEST_SAFE_EPSILON = {FLOAT16: 65504.0**-2, BFLOAT16: 2.0**-256}
"""Below it 1 / sqrt(epsilon) is no finite number: a row of zeros is 0 * inf in the source."""

# A match refused for one of these is tried again without the part in question.
STRUCTURAL = frozenset(
    {
        "bias",
        "epsilon-outside",
        "gate",
        "group",
        "partial",
        "quantizer",
        "residual",
        "residual-kept",
        "rotary",
    }
)


@dataclasses.dataclass(frozen=True, slots=True)
class Dialect:
    """What a target's operator is and does.

    Attributes:
        operator: operator type, in the default domain.
        stash_type: what the attribute says; None: the type in which the row is normalised.
        scales_first: whether T in a half type means T(v * g) by the operator's definition.
        min_opset: lowest version of the default domain; 0: any.
        reordered_note: said of a ``plain`` node that drops the rounding before the scale.
    """

    operator: str
    stash_type: int | None
    scales_first: bool
    min_opset: int
    reordered_note: str

    def attributes(self, spec: NormSpec, computed: int) -> dict[str, int | float]:
        """Of a node for ``spec`` whose row is normalised in the type ``computed``."""
        stash = computed if self.stash_type is None else self.stash_type
        return {"axis": spec.axis, "epsilon": float(spec.epsilon), "stash_type": stash}


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """How a norm is said, and the class of saying it so."""

    kind: Literal["plain", "wide", "split"]
    numerics: Numerics
    note: str = ""


def lower_form(
    match: Match, scale: ScaleInput, dialect: Dialect, context: LowerContext
) -> Lowered | Refusal:
    """The norm in the cheapest form whose class is allowed."""
    spec = match.spec
    if spec.stash_type in HALF_TYPES and spec.stash_type != match.dtype:
        return refuse_match(
            match,
            "stash-type",
            "the row is normalised in a half type that is not the type of the input",
            found=f"{type_name(match.dtype)} normalised in {type_name(spec.stash_type)}",
            hint="use the portable target, or normalise in float32 in the source",
        )
    if spec.epsilon_clamp:
        return _unclamped(match, scale, dialect, context)
    if spec.stash_type == DOUBLE and float(np.float32(spec.epsilon)) != spec.epsilon:
        return refuse_match(
            match,
            "epsilon-precision",
            "the operator stores epsilon as a float32, which changes a float64 norm",
            found=f"epsilon {spec.epsilon!r}",
            hint="use the portable target, or export the model in float32",
        )
    forms = _forms(match, scale, dialect)
    least, why = strictest(match)
    if least == "upcast":
        forms = [dataclasses.replace(form, numerics=least, note=why) for form in forms]
    elif least == "reordered":
        exact = [form for form in forms if form.numerics == "exact"]
        forms = [form for form in forms if form.numerics != "exact"]
        forms += [dataclasses.replace(form, numerics=least, note=why) for form in exact]
    for form in forms:
        if context.allows(form.numerics):
            return _emit(match, form, scale, dialect, context)
    needed = forms[-1].numerics if forms else "upcast"
    return refuse_match(
        match,
        "numerics",
        "the operator cannot repeat the rounding steps of the source",
        found=_rounding(match) + (f", class {needed}" if forms else ""),
        hint=f"allow --numerics {needed}" if forms else "use the portable target",
    )


def _unclamped(
    match: Match, scale: ScaleInput, dialect: Dialect, context: LowerContext
) -> Lowered | Refusal:
    """``x / sqrt(mean + epsilon ** 2)``: of all epsilons the one that is nearest to the clamp.

    Rows far above it and rows far below it, zeros among them, come out as they did.
    """
    clamp = match.spec.epsilon
    if not context.allows("unclamped"):
        return refuse_match(
            match,
            "numerics",
            "the operator adds an epsilon where the source takes a maximum with one, so rows "
            "whose root mean square is near it come out otherwise",
            found=f"x / max(rms, {clamp:.6g})",
            hint="allow --numerics unclamped, or use the portable target",
        )
    epsilon = max(float(np.float32(clamp * clamp)), SMALLEST_FLOAT32)
    spec = dataclasses.replace(match.spec, epsilon=epsilon, epsilon_clamp=False)
    made = lower_form(dataclasses.replace(match, spec=spec), scale, dialect, context)
    if isinstance(made, Refusal):
        return made
    near = f"{clamp / 3000:.3g} and {clamp * 3000:.3g}"
    note = (
        f"x / max(rms, {clamp:.6g}) became x / sqrt(mean + {epsilon:.6g}): rows whose root mean "
        f"square is between {near} differ, by up to 29 %"
    )
    return dataclasses.replace(made, part=match, numerics="unclamped", notes=[*made.notes, note])


def _forms(match: Match, scale: ScaleInput, dialect: Dialect) -> list[Form]:
    """Every form that can say the norm, cheapest first."""
    spec, dtype = match.spec, match.dtype
    if spec.stash_type in HALF_TYPES:
        note = f"the source computes in {type_name(dtype)}, the new node accumulates in float32"
        return [Form("plain", "upcast", note)]
    if spec.stash_type == dtype:
        return [Form("plain", "exact")]
    half = dtype in HALF_TYPES and spec.stash_type == FLOAT
    plain_runs = half and bool(everywhere(dialect.operator, dtype))
    if spec.round_rstd:
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
        # Two roundings fewer in front of the scale: up to 2 ulp, more than "reordered" promises.
        return [Form("plain", "upcast", note)] if half else []
    if scale.value is None:
        # T(v * 1) is T(v), in whichever order.
        return [Form("plain" if plain_runs else "wide", "exact")]
    if spec.scale_before_cast:
        exact_in_half = half and dialect.scales_first and scale.fits(dtype)
        return [Form("plain" if exact_in_half else "wide", "exact")]
    split = [] if -1 in scale.dims else [Form("split", "exact")]
    if not half:
        return split
    return [Form("plain", "reordered", dialect.reordered_note), *split]


def _emit(
    match: Match, form: Form, scale: ScaleInput, dialect: Dialect, context: LowerContext
) -> Lowered:
    """The nodes of ``form``."""
    spec, dtype, stash = match.spec, match.dtype, match.spec.stash_type
    site = SiteBuilder(match, form.numerics, context)
    result = site.like(match.output, dtype, "output")
    if form.kind == "plain":
        # In half types the operator normalises in f32, whatever the source did.
        computed = FLOAT if dtype in HALF_TYPES else dtype
        inputs = [match.x, scale.input(site, dtype)]
        site.norm(dialect.operator, inputs, dialect.attributes(spec, computed), [result])
    else:
        split = form.kind == "split"
        wide = site.cast(match.x, stash, "x_cast")
        factor = site.ones(scale.dims, stash) if split else scale.input(site, stash)
        normed = site.like(match.x, stash, "normalised")
        site.norm(dialect.operator, [wide, factor], dialect.attributes(spec, stash), [normed])
        rounded = site.like(match.output, dtype, "rounded") if split else result
        site.cast_into(normed, dtype, rounded, "cast")
        if split:
            site.multiply(rounded, scale.input(site, dtype), result)
    return site.lowered(
        (match.output, result),
        min_opset=dialect.min_opset,
        notes=[form.note] if form.note else [],
    )


def beyond_the_operator(match: Match, *, has_residual: bool = False) -> Refusal | None:
    """The part of the norm for which the operator has no word, if there is one."""
    spec = match.spec
    hint = "use the portable target to have it in the node"
    if match.quantized is not None:
        part = ("quantizer", "codes as its output", f"codes of {match.quantized.how}")
    elif match.rotary is not None:
        part = ("rotary", "a rotary embedding", "the norm is turned by cos and sin")
    elif match.bias is not None:
        part = ("bias", "a bias", "a bias is added")
    elif match.gate is not None:
        part = ("gate", "a gate", f"a {spec.activation} gate")
    elif match.residual is not None and not has_residual:
        part = ("residual", "a residual sum", "a residual is added")
    elif spec.group_size:
        part = ("group", "groups", f"groups of {spec.group_size}")
    elif spec.partial_size:
        found = f"the mean square of the first {spec.partial_size} elements"
        part = ("partial", "a partial row", found)
    elif spec.last_axis != -1:
        found = f"axis {spec.axis}; Transposes around the operator cost what it saves"
        part = ("channels", "rows with axes behind them", found)
    elif spec.epsilon_outside:
        found = f"epsilon {spec.epsilon} is added to the root"
        part = ("epsilon-outside", "epsilon outside the root", found)
    else:
        return None
    reason, what, found = part
    return refuse_match(match, reason, f"the operator does not have {what}", found=found, hint=hint)


def lower_largest_part(
    match: Match,
    context: LowerContext,
    refuses: Callable[[Match], Refusal | None],
    lower_one: Callable[[Match, ScaleInput], Lowered | Refusal],
) -> Lowered | Refusal:
    """Lower ``match``, or else the largest part of it that can be lowered.

    The other nodes of the source stay as they are. When nothing can be lowered the refusal is that
    of the largest part whose operator could have said it.

    Args:
        match: the norm.
        context: what is known of the model.
        refuses: what the operator cannot say, whatever the numerics.
        lower_one: lowers a norm with this scale.
    """
    refusals: list[Refusal] = []
    part: Match | None = match
    while part is not None:
        outcome: Lowered | Refusal | ScaleInput | None = refuses(part)
        if outcome is None:
            outcome = scale_input(part, context.types)
        if isinstance(outcome, ScaleInput):
            outcome = lower_one(part, outcome)
        if isinstance(outcome, Lowered):
            others = [r for r in refusals if r.kind == "norm"]
            kept = [f"part of the norm stays as it was: {r.message}" for r in others]
            firsts = {r.kind: r for r in reversed(refusals) if r.kind != "norm"}
            add = None if match.sum is None else match.sum.producer()
            if "residual" in firsts and add is not None:
                firsts["residual"] = dataclasses.replace(
                    firsts["residual"], node=name_of(add), op=add.op_type
                )
            apart = tuple(firsts.values())
            return dataclasses.replace(outcome, notes=[*outcome.notes, *kept], apart=apart)
        refusals.append(outcome)
        part = part.inner
    left = next((r for r in refusals if r.reason not in STRUCTURAL), refusals[-1])
    return dataclasses.replace(left, kind="norm")


def _rounding(match: Match) -> str:
    spec = match.spec
    steps = [f"{type_name(match.dtype)} normalised in {type_name(spec.stash_type)}"]
    if spec.round_rstd:
        steps.append("1 / rms rounded")
    steps.append("scaled before the cast" if spec.scale_before_cast else "scaled after the cast")
    steps.extend((*match.narrow, *match.edges))
    return ", ".join(steps)
