"""When a normalised row is exactly what one operator computes."""

from __future__ import annotations

import dataclasses
import math

import ml_dtypes
import numpy as np
import onnx_ir as ir

from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.spec import HALF_TYPES, NormSpec
from rmsnorm_export.recognize.consts import producer_of
from rmsnorm_export.recognize.context import Context, widens
from rmsnorm_export.recognize.facts import Activated, Event, Norm, Radial, View
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.radial import same_dims
from rmsnorm_export.recognize.sums import told_by_scale

UNIT_TOLERANCE = 1.5e-7
"""Largest distance of the factor of a normalised row from 1: two constants rounded to float32 (1/n
or sqrt(n), half an ulp each). A count that is off by one differs by more up to n = 3 million."""

SMALLEST_FLOAT32, SMALLEST_DOUBLE = 2.0**-149, 2.0**-1074
"""Added to the mean square of an LpNormalization, which leaves a zero row zero: it changes no sum
that is not itself subnormal."""

_ZEROS = "rows of zeros that stay zero without an epsilon"
_ASSOCIATIONS = (
    "",
    "a scale that is multiplied with 1 / rms first",
    "a scale that is multiplied with x first",
)


def is_unit(radial: Radial) -> bool:
    """Return whether x is divided by its root mean square, not by a multiple of it."""
    return abs(radial.unit - 1.0) <= UNIT_TOLERANCE + radial.slack  # NaN is no unit either


def complete(ctx: Context, norm: Norm, output: ir.Value) -> Match | None:
    """The match whose output is ``norm``, or None when no single operator computes it."""
    if norm.native is not None or norm.radial is None:
        return _extended_native(norm, output)
    if norm.group is not None and norm.scale is None:
        # Without a scale over the whole row the norm of the cut row says it all.
        return None
    factor = _factor(norm)
    if factor is None:
        return None  # the factor sqrt(n) of an L2 norm may follow
    apart = factor != 1.0 or (norm.scale is not None and not norm.scale.per_feature)
    if apart and (norm.bias or norm.gate or norm.group or norm.partial):
        return None
    alone = norm.scale is None and not norm.radial.stated  # that of a unit row may follow
    if alone and told_by_scale(ctx, norm.radial.x, norm.radial.last):
        return None  # a mean over tokens
    dtype, stash = norm.dtype, norm.radial.stash
    rounding = _rounding(norm, dtype, stash)
    if rounding is None:
        return None
    before, rstd = rounding
    view = norm.x if norm.group is None else norm.group[0]
    x, gate, first = view.first.get(dtype), norm.gate, False
    if gate is not None and (gate.dtype != stash or gate.z.first.get(dtype) is None):
        return None
    if x is None and gate is None:
        pair = gated_input(ctx, view.root, dtype)
        if pair is not None:
            x, gate, first = pair[0], pair[1], True
    if x is None or (gate is not None and not _same_shape(ctx, gate.z, x)):
        return None
    # Of a multiple of an RMSNorm, too, the epsilon is that of the norm.
    epsilon = norm.radial.epsilon * factor ** (1 if norm.radial.d or norm.radial.floor else 2)
    edges = norm.radial.edges
    if norm.radial.inverted_first and epsilon < 1 / float(ml_dtypes.finfo(stash.numpy()).max):  # type: ignore[no-untyped-call]
        edges = (*edges, "a mean square that is inverted before the root is taken")
    if norm.radial.zero_safe and epsilon == 0:
        edges = (*edges, _ZEROS)
        epsilon = SMALLEST_DOUBLE if stash == ir.DataType.DOUBLE else SMALLEST_FLOAT32
    if stash != ir.DataType.DOUBLE:
        with np.errstate(over="ignore"):
            epsilon = float(np.float32(epsilon))
    if not math.isfinite(epsilon):
        return None
    size = ctx.types.static_last(norm.x.root)
    narrow = norm.radial.narrow
    associated = int(stash) in HALF_TYPES and dtype == stash and norm.group is None
    associated = associated and norm.radial.last == -1 and not apart
    if int(norm.product) in HALF_TYPES and norm.association and not associated:
        narrow = (*narrow, f"scale applied before the division in {type_name(int(norm.product))}")
    elif norm.association and not associated:
        edges = (*edges, _ASSOCIATIONS[norm.association])
    if factor != 1.0:
        edges = (*edges, "a scale with the root of the row length in it")
        if dtype != stash and not before:
            narrow = (*narrow, f"a row of length one rounded to {type_name(int(dtype))}")
    if int(stash) in HALF_TYPES and (norm.radial.length or not norm.radial.plain):
        narrow = (*narrow, f"other roundings on the way in {type_name(int(stash))}")
    spec = NormSpec(
        kind="GatedRMSNorm" if gate is not None else "RMSNorm",
        epsilon=epsilon,
        epsilon_outside=norm.radial.d != 0,
        epsilon_clamp=norm.radial.floor != 0,
        axis=norm.radial.axis,
        last_axis=norm.radial.last,
        stash_type=int(stash),
        scale_before_cast=before,
        round_rstd=rstd,
        association=norm.association if associated else 0,
        scale_offset=norm.scale.offset if norm.scale is not None and not apart else 0.0,
        partial_size=norm.partial,
        group_size=(size or 0) if norm.group is not None and size != norm.group[1] else 0,
        activation=gate.activation if gate is not None else "silu",
        gate_first=first,
        **dict(norm.radial.stated),
    )
    n = size if norm.radial.axis == -1 else norm.radial.size
    if norm.group is not None:
        n = norm.group[1]
    aliases: tuple[ir.Value, ...] = ()
    if norm.group is None and not norm.partial and not first:
        # Wider ones are computed from x, or from one of these.
        seen = dict.fromkeys((*norm.radial.x.latest.values(), *view.latest.values()))
        aliases = tuple(v for v in seen if v is not x and widens(ctx.types.dtype(v), dtype))
    weights = [w for w in (norm.scale, norm.bias) if w is not None]
    return Match(
        spec=spec if gate is not None else spec.canonical(int(dtype)),
        x=x,
        output=output,
        dtype=int(dtype),
        scale=None if norm.scale is None else norm.scale.value if apart else norm.scale.stored,
        offset_scale=norm.scale.value if norm.scale is not None else None,
        bias=norm.bias.stored if norm.bias is not None else None,
        gate=gate.z.first.get(dtype) if gate is not None else None,
        n=n,
        rank=ctx.types.rank(x),
        inner=norm.owner or norm.unit,
        aliases=aliases,
        narrow=narrow,
        edges=edges,
        opaque_scale=not all(w.early for w in weights),
        scope=ctx.scope,
        gain=norm.scale is not None and not norm.scale.per_feature,
        factor=factor,
    )


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
    """Return what makes of the RMSNorm the row with its scale: 1, or 1 / sqrt(n) of an L2 norm.

    None: any other number, or no scale to take it.
    """
    radial = norm.radial
    if radial is None or is_unit(radial):
        return 1.0
    if norm.scale is None or not radial.size or norm.native is not None:
        return None
    root = math.sqrt(radial.size)
    near = abs(radial.unit * root - 1.0) <= UNIT_TOLERANCE + radial.slack
    return 1.0 / root if near else None


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
        return (False, True) if not gated and _all(events, dtype) else None
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


def _extended_native(norm: Norm, output: ir.Value) -> Match | None:
    """A node that is an RMSNorm by itself, with a bias or gate behind it."""
    base = norm.native
    if base is None or norm.scale is not None or norm.gate is not None:
        return None
    if norm.bias is None or base.bias is not None or base.spec.kind != "RMSNorm":
        return None
    if base.spec.scale_before_cast or any(at != norm.dtype for _, at in norm.events):
        return None
    return Match(
        spec=base.spec, x=base.x, output=output, dtype=base.dtype, scale=base.scale,
        offset_scale=base.offset_scale, bias=norm.bias.stored, n=base.n, rank=base.rank, inner=base,
        opaque_scale=base.opaque_scale or not norm.bias.early, scope=base.scope,
    )  # fmt: skip
