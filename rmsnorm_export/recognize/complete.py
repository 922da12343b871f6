"""When a normalised row is exactly what one operator computes."""

from __future__ import annotations

import dataclasses
import math

import ml_dtypes
import numpy as np
import onnx_ir as ir

from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.spec import HALF_TYPES, NormSpec
from rmsnorm_export.recognize.consts import is_ordinary, producer_of
from rmsnorm_export.recognize.context import Context, widens
from rmsnorm_export.recognize.facts import Activated, Event, Norm, Radial, View
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.radial import same_dims

UNIT_TOLERANCE = 2.0**-51
"""Largest distance of the factor of a normalised row from 1, beside what the rounding of a constant
to its type explains: it is computed in float64, by a product with the count, a root, a product and
a quotient, each off by 2**-53 at most."""

_LONGEST_ROW = 1 << 24
"""Of one number that is stored as a scale."""

SMALLEST_FLOAT32, SMALLEST_DOUBLE = 2.0**-149, 2.0**-1074
"""Added to the mean square of an LpNormalization, which leaves a zero row zero: it changes no sum
that is not itself subnormal."""

_ZEROS = "rows of zeros that stay zero without an epsilon"


def is_unit(radial: Radial, unit: float = 1.0) -> bool:
    """Return whether x is multiplied with ``unit`` / rms, and not with another multiple of it, but
    for the rounding of a constant."""
    return abs(radial.unit / unit - 1.0) <= UNIT_TOLERANCE + radial.slack  # NaN is no unit either


def complete(ctx: Context, norm: Norm, output: ir.Value, *, varies: bool = False) -> Match | None:
    """The match whose output is ``norm``, or None when no single operator computes it.

    ``varies``: a scale that is no row of numbers is that of the operator, not behind it.
    """
    if norm.radial is None:
        return None
    if norm.group is not None and norm.scale is None:
        # Without a scale over the whole row the norm of the cut row says it all.
        return None
    factor = _factor(norm)
    if factor is None:
        return None  # the factor sqrt(n) of an L2 norm may follow
    gain = norm.scale is not None and not norm.scale.per_feature
    apart = factor != 1.0 or gain
    if apart and (norm.bias or norm.gate or norm.group or norm.partial):
        return None
    radial, dtype, stash = norm.radial, norm.dtype, norm.radial.stash
    rounding, row = _rounding(norm, dtype, stash), _gated_row(ctx, norm)
    epsilon, edges = _epsilon(radial, factor)
    if rounding is None or row is None or not math.isfinite(epsilon):
        return None
    (before, rstd), (x, gate, gate_first) = rounding, row
    weighted = norm.association == 3 and norm.group is None and gain == varies
    if weighted:
        before, rstd = False, True
    before = before or (factor != 1.0 and norm.scale is None and stash != dtype and not rstd)
    associated = weighted or (
        int(stash) in HALF_TYPES
        and dtype == stash
        and norm.group is None
        and radial.last == -1
        and factor == 1.0
        and gain == varies
    )
    narrow, others = _unlike(
        norm, factor, associated=associated, rounds_row=not (before or weighted)
    )
    size = ctx.types.static_last(norm.x.root)
    spec = NormSpec(
        kind="GatedRMSNorm" if gate is not None else "RMSNorm",
        epsilon=epsilon,
        epsilon_outside=radial.d != 0,
        epsilon_clamp=radial.floor != 0,
        axis=radial.axis,
        last_axis=radial.last,
        stash_type=int(stash),
        scale_before_cast=before,
        round_rstd=rstd,
        association=norm.association if associated and not weighted else 0,
        scale_rstd=weighted,
        scale_varies=varies,
        scale_offset=norm.scale.offset if norm.scale is not None and not apart else 0.0,
        partial_size=norm.partial,
        group_size=(size or 0) if norm.group is not None and size != norm.group[1] else 0,
        activation=gate.activation if gate is not None else "silu",
        gate_first=gate_first,
        **dict(radial.stated),
    )
    n = size if radial.axis == -1 else radial.size
    inner = norm.owner or norm.unit
    if gain and not varies and norm.association > 1 and radial.axis == -1 and narrow:
        inner = complete(ctx, norm, output, varies=True)
    return Match(
        spec=spec if gate is not None else spec.canonical(int(dtype)),
        x=x,
        output=output,
        dtype=int(dtype),
        scale=None if norm.scale is None else norm.scale.value if apart else norm.scale.stored,
        offset_scale=norm.scale.value if norm.scale is not None else None,
        bias=norm.bias.stored if norm.bias is not None else None,
        gate=gate.z.first.get(dtype) if gate is not None else None,
        n=n if norm.group is None else norm.group[1],
        rank=ctx.types.rank(x),
        inner=inner,
        aliases=() if gate_first else _aliases(ctx, norm, x),
        narrow=narrow,
        edges=(*edges, *others),
        opaque_scale=not all(w.early for w in (norm.scale, norm.bias) if w is not None),
        scope=ctx.scope,
        gain=gain,
        factor=factor,
    )


def _gated_row(ctx: Context, norm: Norm) -> tuple[ir.Value, Activated | None, bool] | None:
    """Return x in the type of the norm, its gate, and whether that multiplies x and not the norm.

    None: x is not there in that type, or the gate does not fit it.
    """
    assert norm.radial is not None
    dtype, gate = norm.dtype, norm.gate
    view = norm.x if norm.group is None else norm.group[0]
    x = view.first.get(dtype)
    if gate is not None:
        typed = gate.dtype == norm.radial.stash and gate.z.first.get(dtype) is not None
        return (x, gate, False) if x is not None and typed and _same_shape(ctx, gate.z, x) else None
    if x is not None:
        return x, None, False
    pair = gated_input(ctx, view.root, dtype)
    return None if pair is None or not _same_shape(ctx, pair[1].z, pair[0]) else (*pair, True)


def _epsilon(radial: Radial, factor: float) -> tuple[float, tuple[str, ...]]:
    """Return the epsilon of the norm, of which this is a multiple, and what it does otherwise."""
    epsilon = radial.epsilon * factor ** (1 if radial.d or radial.floor else 2)
    edges, stash = radial.edges, radial.stash
    if radial.inverted_first and epsilon < 1 / float(ml_dtypes.finfo(stash.numpy()).max):  # type: ignore[no-untyped-call]
        edges = (*edges, "a mean square that is inverted before the root is taken")
    if radial.zero_safe and epsilon == 0:
        edges = (*edges, _ZEROS)
        epsilon = SMALLEST_DOUBLE if stash == ir.DataType.DOUBLE else SMALLEST_FLOAT32
    if stash != ir.DataType.DOUBLE:
        with np.errstate(over="ignore"):
            epsilon = float(np.float32(epsilon))
    return epsilon, edges


def _unlike(
    norm: Norm, factor: float, *, associated: bool, rounds_row: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the roundings that the operator does not have, and what it does otherwise.

    Args:
        factor: that the scale is multiplied with.
        associated: the operator multiplies the scale in the order of the source.
        rounds_row: the row is rounded before it is scaled.
    """
    assert norm.radial is not None
    radial, dtype, product, stash = norm.radial, norm.dtype, norm.product, norm.radial.stash
    narrow, edges = radial.narrow, tuple[str, ...]()
    if norm.association and not associated:
        if norm.association == 3:
            narrow = (*narrow, f"scale / rms rounded to {type_name(int(dtype))}")
        if int(product) in HALF_TYPES:
            narrow = (*narrow, f"scale applied before the division in {type_name(int(product))}")
        else:
            with_it = "x" if norm.association == 2 else "1 / rms"
            edges = (f"a scale that is multiplied with {with_it} first",)
    if factor != 1.0:
        step = "a constant factor" if radial.multiplied else "a row of length one"
        edges = (*edges, f"{step} that no scale holds")
        if dtype != stash and rounds_row:
            narrow = (*narrow, f"a row of length one rounded to {type_name(int(dtype))}")
    if int(stash) in HALF_TYPES and (radial.length or not radial.plain):
        narrow = (*narrow, f"other roundings on the way in {type_name(int(stash))}")
    return narrow, edges


def _aliases(ctx: Context, norm: Norm, x: ir.Value) -> tuple[ir.Value, ...]:
    """Return wider values of x, which are computed from x or from one of these; of a row that is
    cut in groups the one that was cut for the squares, if it is another than x."""
    if norm.radial is None or norm.partial:
        return ()
    if norm.group is not None:
        cut = producer_of(norm.radial.x.root, "Reshape")
        source = None if cut is None else cut.inputs[0]
        twin = None if source is None else ctx.view(source).latest.get(norm.dtype)
        return () if twin is None or twin is x else (twin,)
    seen = dict.fromkeys((*norm.radial.x.latest.values(), *norm.x.latest.values()))
    return tuple(v for v in seen if v is not x and widens(ctx.types.dtype(v), norm.dtype))


def unit_row(ctx: Context, norm: Norm, output: ir.Value) -> Match | None:
    """The match of ``x / ||x||`` in a half type, with no factor yet that makes an RMSNorm of it."""
    radial, dtype = norm.radial, norm.dtype
    if radial is None or radial.narrow or norm.scale is not None or int(dtype) not in HALF_TYPES:
        return None
    if not (radial.length and radial.plain) or (radial.length == 2 and radial.d):
        return None  # for a Clip and an epsilon behind it there is no word
    stated = (*radial.stated, ("unit_length", radial.length))
    step = dataclasses.replace(radial, a=1.0, edges=(), length=0, stated=stated)
    if radial.zero_safe:  # one operator, and rounded once
        step.stash, step.floor, step.zero_safe = ir.DataType.FLOAT, SMALLEST_FLOAT32, False
        step.edges = () if dtype == ir.DataType.FLOAT16 else (_ZEROS,)
        norm = dataclasses.replace(norm, product=step.stash, events=(("cast", dtype),))
    return complete(ctx, dataclasses.replace(norm, radial=step), output)


def _factor(norm: Norm) -> float | None:
    """Return what makes of the RMSNorm the row with its scale: 1, 1 / sqrt(n) of an L2 norm, or
    the number that is multiplied with it.

    None: no number and no scale to tell a norm from a row of length one.
    """
    radial, scale = norm.radial, norm.scale
    if radial is None or is_unit(radial):
        return 1.0
    if not radial.size:
        return None
    if radial.multiplied and (scale is not None or radial.size <= _LONGEST_ROW):
        return radial.unit if is_ordinary(radial.unit, radial.stash) else None
    # Of a row of length one that is multiplied with data the root of n is to follow.
    if scale is None or not (scale.per_feature or norm.association or scale.early):
        return None
    inverse_root = 1.0 / math.sqrt(radial.size)
    return inverse_root if is_unit(radial, inverse_root) else None


def _rounding(norm: Norm, dtype: ir.DataType, stash: ir.DataType) -> tuple[bool, bool] | None:
    """(scale_before_cast, round_rstd) when the casts of the chain are those of the operator."""
    assert norm.radial is not None
    cast = norm.radial.inverse_cast
    events = list(norm.events)
    if dtype == stash:
        plain = cast is None and norm.product == dtype and all(e[1] == dtype for e in events)
        # In a half type x * (1 / rms) and x / rms are two roundings and one.
        return (False, int(dtype) in HALF_TYPES and norm.inverted) if plain else None
    gated = norm.gate is not None
    if gated:
        if events[-2:] != [("gate", stash), ("cast", dtype)]:
            return None
        events = events[:-2]
        if events[:1] == [("cast", dtype)]:
            if events[-1] != ("cast", stash) or len(events) < 2:
                return None
            events = events[:-1]
    if norm.product == dtype and (cast == dtype or (cast is None and norm.radial.narrow)):
        # A root that was rounded is not inverted in T, where 1 / rms may be infinite.
        return (False, cast == dtype) if not gated and _all(events, dtype) else None
    if norm.product != stash or cast is not None:
        return None
    if gated and _all(events, stash):
        return (True, False)
    if events[:1] == [("cast", dtype)] and _all(events[1:], dtype):
        return (False, False)
    if not gated and events[-1:] == [("cast", dtype)] and _all(events[:-1], stash):
        return (True, False)
    return None


def _all(events: list[Event], dtype: ir.DataType) -> bool:
    return all(kind != "cast" and at == dtype for kind, at in events)


def _same_shape(ctx: Context, a: View, b: ir.Value) -> bool:
    left, right = ctx.types.shape(a.root), ctx.types.shape(b)
    return left is not None and right is not None and same_dims(left, right)


def gated_input(
    ctx: Context, root: ir.Value, dtype: ir.DataType
) -> tuple[ir.Value, Activated] | None:
    """(a, gate) when ``root = a * act(gate)`` with both of ``dtype`` before their casts."""
    node = producer_of(root, "Mul")
    if node is None:
        return None
    for a, other in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
        fact = ctx.fact(other)
        if a is None or not isinstance(fact, Activated):
            continue
        x = ctx.view(a).first.get(dtype)
        if x is None or fact.z.first.get(dtype) is None or fact.z.root is ctx.view(a).root:
            continue
        if _same_shape(ctx, fact.z, x) and fact.dtype == ctx.types.dtype(root):
            return x, fact
    return None
