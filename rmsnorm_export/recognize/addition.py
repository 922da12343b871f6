"""Transfer functions of what is added to a mean square or its root."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rmsnorm_export.recognize.context import Context
from rmsnorm_export.recognize.facts import Flaw, Radial
from rmsnorm_export.recognize.refusal import name_of


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


def add_epsilon(ctx: Context, node: ir.Node, radial: Radial, other: ir.Value) -> None:
    """``radial`` plus ``other``: an epsilon, or a reason."""
    candidate, flaws = radial.candidate, list[Flaw]()
    array, known = ctx.constants.array(other), ctx.facts.get(other)
    number = ctx.constants.scalar(other)
    if isinstance(known, Radial) and known.candidate is not candidate:
        flaws.append((
            "sum-of-parts", "the squares of several tensors are summed and added",
            " + ".join(ctx.describe(value) for value in node.inputs),
            "square the whole row, which is divided, and take its mean",
        ))  # fmt: skip
    elif number is None and ctx.of_one_source(other, radial.x.root):
        flaws.append((
            "epsilon-of-the-row",
            "what is added to the mean square is computed from the values of the row",
            ctx.describe(other), "an RMSNorm adds a constant",
        ))  # fmt: skip
    elif array is None or number is None:
        flaws.append((
            "epsilon-not-constant", "epsilon is not a constant scalar",
            ctx.describe(other) if array is None else f"{array.size} elements in {other.name!r}",
            "make epsilon a constant; an initializer must not be a graph input as well",
        ))  # fmt: skip
    elif not ctx.fits(array.ndim, radial):
        flaws.append((
            "epsilon-rank", "epsilon may have a higher rank than the mean square",
            f"epsilon of rank {array.ndim}", "store epsilon as a scalar",
        ))  # fmt: skip
    number = number or 0.0
    if number < 0:
        flaws.append((
            "epsilon-negative", "epsilon is negative", f"epsilon {number}", "use an epsilon >= 0",
        ))  # fmt: skip
    if radial.epsilons:
        flaws.append((
            "two-epsilons", "a second epsilon is added", f"{number} in {name_of(node)!r}",
            "add one epsilon, inside or outside the root",
        ))  # fmt: skip
    for flaw in flaws:
        ctx.flaw(candidate, node, *flaw)
    if radial.inverse:
        ctx.spoil(
            node, radial, "epsilon-after-inverse", "a number is added to 1 / rms",
            f"{number} in {name_of(node)!r}", "add epsilon before the inverse",
        )  # fmt: skip
        return
    spoiled = radial.spoiled or bool(flaws)
    step = dataclasses.replace(radial, epsilons=radial.epsilons + 1, spoiled=spoiled)
    if radial.rooted:
        step.d += number
    else:
        step.b += number
    ctx.set_radial(node.outputs[0], step)
