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
from collections.abc import Callable, Mapping
from typing import Literal

from rmsnorm_export.lower.gain import Gain
from rmsnorm_export.lower.lowered import Lowered
from rmsnorm_export.lower.parts import (
    Names,
    Site,
    allowed,
    as_float32,
    decline,
    without_widening,
)
from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.spec import DOUBLE, FLOAT, FLOAT16, HALF_TYPES, NormSpec
from rmsnorm_export.recognize.match import Decline, Match
from rmsnorm_export.runtime.support import everywhere

_SMALLEST_SAFE_EPSILON = 65504.0**-2
"""Below it 1 / sqrt(epsilon) is no finite float16: a row of zeros is 0 * inf in the source."""

# A match declined for one of these is tried again without the part in question.
STRUCTURAL = frozenset(
    {"bias", "gate", "residual", "group", "partial", "epsilon-outside", "residual-kept"}
)


@dataclasses.dataclass(frozen=True, slots=True)
class Dialect:
    """What a target's operator is and does.

    Attributes:
        operator: operator type, in the default domain.
        attributes: of a node for a spec that computes in the given element type.
        scales_first: whether T in a half type means T(v * g) by the operator's definition.
        min_opset: lowest version of the default domain; 0: any.
        reordered_note: said of a ``plain`` node that drops the rounding before the scale.
    """

    operator: str
    attributes: Callable[[NormSpec, int], Mapping[str, int | float]]
    scales_first: bool
    min_opset: int
    reordered_note: str


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """How a norm is said, and the class of saying it so."""

    kind: Literal["plain", "wide", "split"]
    numerics: Numerics
    note: str = ""


def choose(match: Match, gain: Gain, dialect: Dialect, limit: Numerics) -> Form | Decline:
    """The cheapest form whose class is allowed."""
    spec = match.spec
    if spec.stash_type in HALF_TYPES and spec.stash_type != match.dtype:
        return decline(
            match,
            "stash-type",
            "the row is normalised in a half type that is not the type of the input",
            found=f"{type_name(match.dtype)} normalised in {type_name(spec.stash_type)}",
            hint="use the portable target, or normalise in float32 in the source",
        )
    if spec.stash_type == DOUBLE and as_float32(spec.epsilon) != spec.epsilon:
        return decline(
            match,
            "epsilon-precision",
            "the operator stores epsilon as a float32, which changes a float64 norm",
            found=f"epsilon {spec.epsilon!r}",
            hint="use the portable target, or export the model in float32",
        )
    forms = _forms(match, gain, dialect)
    if match.narrow:
        what = f"the source has {', '.join(match.narrow)}; the new node has not"
        forms = [dataclasses.replace(f, numerics="upcast", note=what) for f in forms]
    for form in forms:
        if allowed(form.numerics, limit):
            return form
    needed = forms[-1].numerics if forms else "upcast"
    return decline(
        match,
        "numerics",
        "the operator cannot repeat the rounding steps of the source",
        found=_rounding(match) + (f", class {needed}" if forms else ""),
        hint=f"allow --numerics {needed}" if forms else "use the portable target",
    )


def _forms(match: Match, gain: Gain, dialect: Dialect) -> list[Form]:
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
        note = "1 / rms is not rounded on the way"
        if dtype == FLOAT16 and spec.epsilon < _SMALLEST_SAFE_EPSILON:
            note += ", where it overflowed for tiny rows"
            return [Form("plain", "upcast", note)] if half else []
        if gain.value is None:
            return [Form("plain" if plain_runs else "wide", "reordered", note)]
        # Two roundings fewer in front of the scale: up to 2 ulp, more than "reordered" promises.
        return [Form("plain", "upcast", note)] if half else []
    if gain.value is None:
        # T(v * 1) is T(v), in whichever order.
        return [Form("plain" if plain_runs else "wide", "exact")]
    if spec.scale_before_cast:
        exact_in_half = half and dialect.scales_first and without_widening(gain.value, dtype)
        return [Form("plain" if exact_in_half else "wide", "exact")]
    split = [] if -1 in gain.dims else [Form("split", "exact")]
    if not half:
        return split
    return [Form("plain", "reordered", dialect.reordered_note), *split]


def emit(match: Match, form: Form, gain: Gain, dialect: Dialect, names: Names) -> Lowered:
    """The nodes of ``form``."""
    spec, dtype, stash = match.spec, match.dtype, match.spec.stash_type
    site = Site(match, form.numerics, names)
    result = site.like(match.output, dtype, "output")
    if form.kind == "plain":
        # In half types the operator normalises in f32, whatever the source did.
        computed = FLOAT if dtype in HALF_TYPES else dtype
        scale = gain.input(site, dtype)
        attributes = dialect.attributes(spec, computed)
        site.norm(dialect.operator, [match.x, scale], attributes, [result])
    else:
        wide = site.cast(match.x, stash, "x_cast")
        one = gain.ones(site, stash) if form.kind == "split" else None
        scale = gain.input(site, stash) if one is None else one
        normed = site.like(match.x, stash, "normalised")
        site.norm(dialect.operator, [wide, scale], dialect.attributes(spec, stash), [normed])
        if one is None:
            site.cast_into(normed, dtype, result, "cast")
        else:
            rounded = site.like(match.output, dtype, "rounded")
            site.cast_into(normed, dtype, rounded, "cast")
            site.multiply(rounded, gain.input(site, dtype), result)
    return Lowered(
        nodes=site.nodes,
        replace=[(match.output, result)],
        numerics=form.numerics,
        initializers=site.initializers,
        min_opset=dialect.min_opset,
        notes=[form.note] if form.note else [],
        part=match,
    )


def beyond_the_operator(match: Match, *, has_residual: bool = False) -> Decline | None:
    """The part of the norm for which the operator has no word, if there is one."""
    spec = match.spec
    hint = "use the portable target to have it in the node"
    parts = (
        (match.bias is not None, "bias", "a bias", "a bias is added"),
        (match.gate is not None, "gate", "a gate", f"a {spec.activation} gate"),
        (
            match.residual is not None and not has_residual,
            "residual",
            "a residual sum",
            "a residual is added",
        ),
        (spec.group_size > 0, "group", "groups", f"groups of {spec.group_size}"),
        (
            spec.partial_size > 0,
            "partial",
            "a partial row",
            f"the mean square of the first {spec.partial_size} elements",
        ),
        (
            spec.epsilon_outside,
            "epsilon-outside",
            "epsilon outside the root",
            f"epsilon {spec.epsilon} is added to the root",
        ),
    )
    for present, reason, what, found in parts:
        if present:
            return decline(
                match, reason, f"the operator does not have {what}", found=found, hint=hint
            )
    return None


def with_inner(match: Match, lower_one: Callable[[Match], Lowered | Decline]) -> Lowered | Decline:
    """Lower ``match``, or else the largest part of it that can be lowered.

    The other nodes of the source stay as they are. When nothing can be lowered the refusal is that
    of the largest part whose operator could have said it.
    """
    refusals: list[Decline] = []
    part: Match | None = match
    while part is not None:
        outcome = lower_one(part)
        if isinstance(outcome, Lowered):
            kept = [f"part of the norm stays as it was: {r.message}" for r in refusals]
            return dataclasses.replace(outcome, notes=[*outcome.notes, *kept], part=part)
        refusals.append(outcome)
        part = part.inner
    return next((r for r in refusals if r.reason not in STRUCTURAL), refusals[-1])


def _rounding(match: Match) -> str:
    spec = match.spec
    steps = [f"{type_name(match.dtype)} normalised in {type_name(spec.stash_type)}"]
    if spec.round_rstd:
        steps.append("1 / rms rounded")
    steps.append("scaled before the cast" if spec.scale_before_cast else "scaled after the cast")
    steps.extend(match.narrow)
    return ", ".join(steps)
