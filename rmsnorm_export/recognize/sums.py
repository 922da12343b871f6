"""Transfer functions of what sums the squares of a row: over which axes, and how many."""

from __future__ import annotations

import onnx_ir as ir

from rmsnorm_export.recognize.context import Context
from rmsnorm_export.recognize.facts import Candidate, Flaw, Radial, Square, View
from rmsnorm_export.recognize.radial import centred, square_of
from rmsnorm_export.recognize.shape_rules import axes_of, row_size

REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2")
"""Operators that sum squares, or the squares of what they are given."""


def reduce(ctx: Context, node: ir.Node) -> None:
    """The mean or sum of a square; ReduceSumSquare, ReduceL2 of a tensor."""
    operand, op = node.inputs[0], node.op_type
    if operand is None:
        return
    squares = op in ("ReduceSumSquare", "ReduceL2")
    fact = square_of(ctx, operand) if squares else ctx.facts.get(operand)
    if not isinstance(fact, Square):
        return
    axes = axes_of(node, ctx.constants)
    if axes == () and node.attributes.get_int("noop_with_empty_axes", 0) == 1:
        return
    candidate = ctx.candidate(node)
    candidate.centred = centred(ctx, fact.x.root)
    if fact.flaw is not None:
        ctx.flaw(candidate, node, *fact.flaw)
    axis, last = row_axes(ctx, node, axes, fact.x, candidate) or (None, -1)
    dims, others = ctx.types.shape(fact.x.root), candidate.axes
    size = row_size(dims, axis, last)
    if dims is not None and others and -len(dims) <= others[0] <= others[-1] < 0:
        size = row_size(tuple(dims[other] for other in others), -len(others))
    if size == 0:
        ctx.flaw(
            candidate, node, "empty-row", "the rows have no elements",
            ctx.describe(fact.x.root), "nothing is computed here; check the export",
        )  # fmt: skip
    mean = op == "ReduceMean"
    if not mean and size is None:
        ctx.flaw(candidate, node, *length_unknown(ctx, fact.x))
    length = op == "ReduceL2"
    radial = Radial(
        fact.x, candidate, node.graph, axis if axis is not None else -1, size,
        bool(node.attributes.get_int("keepdims", 1)), fact.dtype, fact.dtype,
        a=1.0 if mean else float(size or 1), rooted=length, length=int(length), last=last,
        narrow=fact.narrow, plain=mean or length, spoiled=candidate.flaw is not None,
    )  # fmt: skip
    ctx.set_radial(node.outputs[0], radial)


def length_unknown(ctx: Context, x: View) -> Flaw:
    """The flaw of squares that are summed, not averaged, over a row of any length."""
    return (
        "row-length-unknown", "the squares are summed over a row whose length is not static",
        f"x is {ctx.describe(x.root)}", "export with a static size for the normalised axes",
    )  # fmt: skip


def row_axes(
    ctx: Context, node: ir.Node, axes: tuple[int, ...] | None, x: View, candidate: Candidate
) -> tuple[int, int] | None:
    """First and last of the reduced axes, negative: the trailing ones, or those of channels."""
    if axes is None:
        ctx.flaw(
            candidate, node, "axes-not-constant", "the reduced axes are not constant",
            ctx.describe(node.inputs[1] if len(node.inputs) > 1 else None),
            "make the axes a constant",
        )  # fmt: skip
        return None
    rank = ctx.types.rank(x.root)
    if rank is None and not (axes and all(axis < 0 for axis in axes)):
        ctx.flaw(
            candidate, node, "rank-unknown",
            "the reduced axes cannot be counted from the end because the rank of x is unknown",
            f"axes {list(axes)}, x is {ctx.describe(x.root)}",
            "use negative axes, or store shapes in the model (value_info)",
        )  # fmt: skip
        return None
    negative = sorted(axis if axis < 0 else axis - (rank or 0) for axis in axes)
    if not axes:
        negative = list(range(-(rank or 0), 0))
        if rank != 1:
            ctx.flaw(
                candidate, node, "all-axes", "the mean is taken over the whole tensor",
                f"no axes given, x has rank {rank}",
                "a norm over all axes is left alone; name its axes if it is meant as one",
            )  # fmt: skip
    rank = ctx.types.rank(x.root) or -min(negative, default=0)
    if len(negative) == 1 and -rank <= negative[0] < -1:
        behind = (ctx.types.shape(x.root) or ())[negative[0] + 1 :]
        row = set(behind) == {1} and node.attributes.get_int("keepdims", 1) == 1
        return negative[0], -1 if row else negative[0]
    if negative != list(range(-len(negative), 0)) or not 0 < len(negative) <= rank:
        candidate.axes = tuple(negative)
        return None
    return negative[0], -1


def not_trailing(ctx: Context, radial: Radial) -> Flaw:
    """The flaw of an RMSNorm over axes that the operator cannot name."""
    return (
        "axes-not-trailing", "the mean is over several axes that are not the last ones",
        f"axes {list(radial.candidate.axes)} of {ctx.describe(radial.x.root)}",
        "transpose x so that they are last",
    )  # fmt: skip
