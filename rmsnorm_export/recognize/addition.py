"""Transfer functions of what is added to squares and to their mean."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rmsnorm_export.recognize.consts import producer_of
from rmsnorm_export.recognize.context import Context
from rmsnorm_export.recognize.facts import Radial, Square
from rmsnorm_export.recognize.refusal import name_of
from rmsnorm_export.recognize.shape_rules import axes_of


def subtract(ctx: Context, node: ir.Node) -> None:
    """Sub with a mean square: a variance, or a negative epsilon, but no RMSNorm."""
    for value in node.inputs:
        fact = ctx.fact(value)
        if isinstance(fact, Radial):
            ctx.spoil(
                node, fact, "subtraction", "something is subtracted from the mean square, or it "
                "from something", " - ".join(ctx.describe(v) for v in node.inputs),
                "an RMSNorm adds epsilon, nothing else; a variance is LayerNormalization's",
            )  # fmt: skip
            return


def add_epsilon(ctx: Context, node: ir.Node, radial: Radial, *others: ir.Value) -> None:
    """``radial`` plus ``others``: an epsilon, or a reason."""
    candidate = radial.candidate
    spoiled = radial.spoiled
    arrays = [ctx.constants.array(other) for other in others]
    numbers = [ctx.constants.scalar(other) for other in others]
    number = sum(number or 0.0 for number in numbers)
    ranks = [array.ndim for array in arrays if array is not None]
    known = (ctx.facts.get(other) for other in others)
    parts = any(isinstance(f, Radial) and f.candidate is not candidate for f in known)
    if parts:
        spoiled = True
        ctx.flaw(
            candidate, node, "sum-of-parts", "the squares of several tensors are summed and added",
            " + ".join(ctx.describe(value) for value in node.inputs),
            "square the whole row, which is divided, and take its mean",
        )  # fmt: skip
    elif None in numbers:
        spoiled = True
        at = numbers.index(None)
        other, array = others[at], arrays[at]
        ctx.flaw(
            candidate, node, "epsilon-not-constant", "epsilon is not a constant scalar",
            ctx.describe(other) if array is None else f"{array.size} elements in {other.name!r}",
            "make epsilon a constant; an initializer must not be a graph input as well",
        )  # fmt: skip
    elif not ctx.fits(max(ranks), radial):
        spoiled = True
        ctx.flaw(
            candidate, node, "epsilon-rank", "epsilon may have a higher rank than the mean square",
            f"epsilon of rank {max(ranks)}", "store epsilon as a scalar",
        )  # fmt: skip
    if number < 0:
        spoiled = True
        ctx.flaw(
            candidate, node, "epsilon-negative", "epsilon is negative", f"epsilon {number}",
            "use an epsilon >= 0",
        )  # fmt: skip
    if radial.epsilons:
        spoiled = True
        ctx.flaw(
            candidate, node, "two-epsilons", "a second epsilon is added",
            f"{number} in {name_of(node)!r}", "add one epsilon, inside or outside the root",
        )  # fmt: skip
    if radial.inverse:
        ctx.spoil(
            node, radial, "epsilon-after-inverse", "a number is added to 1 / rms",
            f"{number} in {name_of(node)!r}", "add epsilon before the inverse",
        )  # fmt: skip
        return
    step = dataclasses.replace(radial, epsilons=radial.epsilons + 1, spoiled=spoiled)
    if radial.rooted:
        step.d += number
    else:
        step.b += number
    ctx.set_radial(node.outputs[0], step)


def add_to_square(ctx: Context, node: ir.Node, fact: Square, other: ir.Value) -> None:
    """``x * x + epsilon``, of which the mean is that of the squares and epsilon."""
    array, number = ctx.constants.array(other), ctx.constants.scalar(other)
    if array is None or number is None or number <= 0 or array.ndim > 1 or fact.factor <= 0:
        ctx.facts[node.outputs[0]] = dataclasses.replace(fact, beyond=fact.beyond or node)
    else:
        ctx.facts[node.outputs[0]] = dataclasses.replace(fact, plus=fact.plus + number)


def with_squared_mean(ctx: Context, variance: Radial, other: ir.Value) -> Radial | None:
    """A variance and the square of its mean: the mean square of the row."""
    centred, square = variance.candidate.centred, ctx.facts.get(other)
    if centred is None or not isinstance(square, Square) or square.factor != 1.0 or square.plus:
        return None
    mean = None if square.flaw or square.beyond else producer_of(square.x.root, "ReduceMean")
    values = [ctx.view(v).root for v in centred.inputs if v is not None]
    if mean is None or mean.outputs[0] not in values or len(values) != 2:
        return None
    x = ctx.view(values[values[0] is mean.outputs[0]])
    if mean.inputs[0] is None or ctx.view(mean.inputs[0]).root is not x.root:
        return None
    axes = axes_of(mean, ctx.constants)
    same = axes == axes_of(variance.candidate.node, ctx.constants) and axes is not None
    kept = variance.kept and mean.attributes.get_int("keepdims", 1) == 1
    plain = variance.a == 1.0 and not (variance.rooted or variance.inverse or variance.epsilons)
    if not (same and kept and plain and variance.candidate.node.op_type == "ReduceMean"):
        return None
    variance.candidate.centred = None
    edges = (*variance.edges, "a mean square of a variance and a mean")
    return dataclasses.replace(variance, x=x, plain=False, edges=edges)
