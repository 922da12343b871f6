"""Transfer functions of powers that are taken by Log and Exp."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rmsnorm_export.recognize.consts import producer_of
from rmsnorm_export.recognize.context import Context
from rmsnorm_export.recognize.facts import Logarithm, Radial, Square
from rmsnorm_export.recognize.radial import power_of_mean, square_of


def logarithm(ctx: Context, node: ir.Node) -> None:
    """Log of a mean square; of a square or its root, whose sum is not followed."""
    value, inner = node.inputs[0], producer_of(node.inputs[0], "Abs")
    fact = ctx.fact(value) or (inner and inner.inputs[0] and square_of(ctx, inner.inputs[0]))
    if isinstance(fact, Radial):
        ctx.facts[node.outputs[0]] = Logarithm(fact)
    elif isinstance(fact, Square):
        ctx.facts[node.outputs[0]] = dataclasses.replace(fact, beyond=fact.beyond or node)


def exponential(ctx: Context, node: ir.Node) -> None:
    """Exp of a logarithm: a power."""
    fact = ctx.fact(node.inputs[0])
    if isinstance(fact, Logarithm):
        narrow = (*fact.of.narrow, "a power by Exp and Log")
        power_of_mean(ctx, node, dataclasses.replace(fact.of, narrow=narrow), fact.power)


def scale_logarithm(
    ctx: Context, node: ir.Node, fact: Logarithm, other: ir.Value, *, inverse: bool
) -> None:
    array, number = ctx.constants.array(other), ctx.constants.scalar(other)
    if array is not None and number and array.ndim == 0:
        power = fact.power / number if inverse else fact.power * number
        ctx.facts[node.outputs[0]] = dataclasses.replace(fact, power=power)


def negate(ctx: Context, node: ir.Node) -> None:
    """Neg of a logarithm, or of minus a square."""
    fact = ctx.fact(node.inputs[0])
    if isinstance(fact, Logarithm):
        ctx.facts[node.outputs[0]] = dataclasses.replace(fact, power=-fact.power)
    elif isinstance(fact, Square):
        ctx.facts[node.outputs[0]] = dataclasses.replace(fact, factor=-fact.factor, plus=-fact.plus)
