"""Transfer functions of what keeps a mean square or its root between two numbers."""

from __future__ import annotations

import dataclasses
import math

import ml_dtypes
import onnx_ir as ir

from rmsnorm_export.recognize.context import FLOATS, Context
from rmsnorm_export.recognize.facts import Radial
from rmsnorm_export.recognize.match import AT_LARGEST
from rmsnorm_export.recognize.refusal import name_of


def clamp(ctx: Context, node: ir.Node) -> None:
    """Max, Min, Clip, Relu on a mean square or root: a constant floor is an epsilon, or changes
    nothing."""
    for value in node.inputs:
        fact = ctx.fact(value)
        if value is None or not isinstance(fact, Radial):
            continue
        limits = _limits(ctx, node, value, fact)
        least, most, rank = limits or (math.nan, math.nan, 0)
        dtype = ctx.types.dtype(value)
        largest = _largest(dtype)
        if fact.inverse:  # it is at most a number where the root is at least the inverse of that
            limited = fact.m / most if 0 < most < largest else 0.0
            least = limited if least <= 0 < min(fact.m, most) else math.nan
            most = math.inf if limited else most
        kept = least <= _least(fact) * (1 + _roundoff(dtype))
        floors = min(fact.a, fact.c) > 0
        some = least >= 0 or least <= -largest
        whole = most >= largest and some and (kept or floors)
        if not whole or not ctx.fits(rank, fact):
            ctx.spoil(
                node, fact, "clamped", "the mean square or root is clamped otherwise than from "
                "below, by a constant", f"{node.op_type} {name_of(node)!r}, "
                + " and ".join(ctx.describe(v) for v in node.inputs if v not in (value, None)),
                "take the maximum with one constant >= 0, or add epsilon",
            )  # fmt: skip
        elif fact.epsilons and not fact.floor and not kept:
            ctx.spoil(
                node, fact, "two-epsilons", "the mean square has an epsilon already",
                f"{least} in {name_of(node)!r}", "add one epsilon, or take one maximum",
            )  # fmt: skip
        else:
            step = dataclasses.replace(fact)
            if most < math.inf:
                edge = f"a {node.op_type} {AT_LARGEST}"
                step.edges = (*fact.edges, edge)
            if not kept:
                step.floor, step.epsilons = least, 1
                step.plain = fact.plain and not fact.inverse
            step.length = 2 if fact.length and node.op_type == "Clip" else fact.length
            ctx.set_radial(node.outputs[0], step)
        return


def _roundoff(dtype: ir.DataType | None) -> float:
    """How far a floor may be above the least number that it is to be: by its own rounding."""
    if dtype is None or dtype not in FLOATS:
        return 0.0
    return float(ml_dtypes.finfo(dtype.numpy()).eps) / 2  # type: ignore[no-untyped-call]


def _limits(
    ctx: Context, node: ir.Node, value: ir.Value, radial: Radial
) -> tuple[float, float, int] | None:
    """The constants between which ``value`` is clamped, and their largest rank; None: others."""
    ends, ranks, dtype = {"min": -math.inf, "max": math.inf}, [0], ctx.types.dtype(value)
    constants: list[tuple[str, ir.Value | None]] = []
    if node.op_type == "Relu":
        ends["min"] = 0.0
    elif node.op_type != "Clip":
        end = "min" if node.op_type == "Max" else "max"
        constants = [(end, other) for other in node.inputs if other is not value]
    elif node.inputs[0] is value:
        pairs = zip(ends, node.inputs[1:], strict=False)
        constants = [(end, other) for end, other in pairs if other is not None]
        ends |= {end: node.attributes.get_float(end, most) for end, most in ends.items()}
    else:
        return None
    for end, constant in constants:
        array = ctx.constants.array(constant)
        number = math.nan if array is None or array.size != 1 else float(array.reshape(-1)[0])
        if array is None or math.isnan(number):
            return None
        ends[end] = max(ends[end], number) if end == "min" else min(ends[end], number)
        ranks.append(array.ndim)
    if dtype == ir.DataType.FLOAT16 and ends["max"] < math.inf and not radial.inverse:
        return None  # squares of ordinary rows are that large
    if node.op_type == "Clip" and "max" not in (*node.attributes, *(end for end, _ in constants)):
        ends["max"] = _largest(dtype)
    return ends["min"], ends["max"], max(ranks)


def _largest(dtype: ir.DataType | None) -> float:
    """The largest number of a float type."""
    if dtype is None or dtype not in FLOATS:
        return math.inf
    return float(ml_dtypes.finfo(dtype.numpy()).max)  # type: ignore[no-untyped-call]


def _least(radial: Radial) -> float:
    """The least that a mean square or its root may be, inverted or not: by what was added."""
    if min(radial.a, radial.c, radial.m) <= 0 or radial.b < 0:
        return -math.inf
    least = radial.c * math.sqrt(radial.b) + radial.d if radial.rooted else radial.b
    return max(least, radial.floor)
