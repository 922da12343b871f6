"""Transfer functions of what sums the squares of a row: which axes, how many, times what."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import onnx_ir as ir

from rmsnorm_export.recognize.consts import is_ordinary, rounding_of
from rmsnorm_export.recognize.context import Context
from rmsnorm_export.recognize.facts import Candidate, Fact, Flaw, Radial, Square, View
from rmsnorm_export.recognize.numerator import in_order, multiples, related, shapes_of
from rmsnorm_export.recognize.radial import centred, same_dims, square_of, square_of_product
from rmsnorm_export.recognize.refusal import name_of
from rmsnorm_export.recognize.shape_rules import axes_of, row_size

_POOLS = ("GlobalAveragePool", "AveragePool", "GlobalLpPool", "LpPool")
_MEANS = ("ReduceMean", *_POOLS[:2])
_SUMS = ("ReduceSum", "ReduceL1", "ReduceLogSum", "ReduceLogSumExp")
_ROOTS = ("ReduceL2", *_POOLS[2:])
REDUCTIONS = (*_MEANS, *_SUMS, *_ROOTS, "ReduceSumSquare")
"""Operators that sum squares, or the squares of what they are given."""


def reduce(ctx: Context, node: ir.Node) -> None:
    """The mean or sum of a square; ReduceSumSquare, ReduceL2, LpPool of a tensor."""
    operand = node.inputs[0]
    if operand is None or ("p" in node.attributes and node.attributes["p"].value != 2):
        return
    op = node.op_type
    if op in (*_MEANS, *_SUMS):
        fact = ctx.facts.get(operand)
        if not isinstance(fact, Square):
            return
        if op == "ReduceL1" and fact.factor < 0:
            fact = dataclasses.replace(fact, factor=-fact.factor, plus=-fact.plus)
    else:
        squares = square_of(ctx, operand)
        if squares is None:
            return
        fact = squares
    axes = _pooled(ctx, node, fact) if op in _POOLS else axes_of(node, ctx.constants)
    if axes == () and node.attributes.get_int("noop_with_empty_axes", 0) == 1:
        return
    _reduce(ctx, node, fact, axes, kept=bool(node.attributes.get_int("keepdims", 1)))


def _pooled(ctx: Context, node: ir.Node, fact: Square) -> tuple[int, ...]:
    """The axes that a pool takes the mean over, all of each; else with the reason in ``fact``."""
    dims, rank = ctx.types.shape(fact.x.root) or (), ctx.types.rank(fact.x.root)
    if node.op_type.startswith("Global") and (rank or 0) > 2:
        return tuple(range(2, rank or 0))
    window = tuple(node.attributes.get_ints("kernel_shape", ()))
    strides = tuple(node.attributes.get_ints("strides", ())) or (1,) * len(window)
    axes = tuple(axis for axis, k in enumerate(window, 2) if k != 1)
    sizes = tuple(zip(window, dims[2:], strides, strict=False))
    whole = len(sizes) == len(window) and all(k == n or k == by == 1 for k, n, by in sizes)
    if axes and whole and all(set(_listed(node, name)) <= {at} for name, at in _UNPADDED.items()):
        return axes
    flaw: Flaw = (
        "windowed-mean", "the mean is not known to be over whole axes",
        f"{node.op_type} {name_of(node)!r} with a window {list(window)} over "
        f"{ctx.describe(fact.x.root)}", "pool over all of the last axis, or use ReduceMean",
    )  # fmt: skip
    if rank is None or not all(isinstance(n, int) for n in dims[2:]):
        flaw = ("rank-unknown" if rank is None else "row-length-unknown", *flaw[1:])
    fact.flaw = fact.flaw or flaw
    return (-1,)


_UNPADDED = {"pads": 0, "dilations": 1, "ceil_mode": 0, "auto_pad": "NOTSET"}


def _listed(node: ir.Node, name: str) -> tuple[object, ...]:
    value = node.attributes[name].value if name in node.attributes else ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def contract(ctx: Context, node: ir.Node) -> None:
    """MatMul of a square with one number repeated: a sum. Other weights of a sum have a reason."""
    values = (*node.inputs, None)[:2]
    row = _row_times_column(ctx, node)
    if row is not None:
        _reduce(ctx, node, row, (-1,), kept=ctx.types.rank(row.x.root) != 1)
        return
    swapped = not isinstance(ctx.fact(values[0]), Square)
    value, other = values[::-1] if swapped else values
    fact = ctx.fact(value)
    if not isinstance(fact, Square) or other is None:
        return
    numbers, weights = ctx.constants.repeated(other), ctx.types.shape(other)
    n = (ctx.types.shape(fact.x.root) or (None,))[-1]
    vector = weights is not None and sum(size != 1 for size in weights) <= 1
    square = False
    if numbers is not None and numbers.ndim == 2 and numbers.flat[0]:
        square = len({size for size in (*numbers.shape, n) if isinstance(size, int)}) == 1
    if not vector and not square:
        return  # a layer behind a squared activation
    # Of [1, k] every row of one is repeated k times: no sum, but for k = 1.
    column = numbers is not None and (square or numbers.ndim == 1 or numbers.shape[1:] == (1,))
    plain = not swapped and node.op_type == "MatMul" and column
    weighted = scaled_square(ctx, fact, other, numbers if plain else None)
    _reduce(ctx, node, weighted, (-1,), kept=numbers is None or numbers.ndim != 1)


def scaled_square(
    ctx: Context,
    fact: Square,
    other: ir.Value,
    numbers: np.ndarray | None,
    *,
    inverse: bool = False,
) -> Square:
    """The squares times ``other``, or over it: one number of all ``numbers``, else the reason."""
    if numbers is None:
        flaw = fact.flaw or (
            "weighted-square", "the squares are multiplied with another tensor",
            ctx.describe(other), "an RMSNorm averages the plain squares of a row",
        )  # fmt: skip
        return dataclasses.replace(fact, flaw=flaw)
    number = float(numbers.flat[0])
    factor = 1.0 / number if inverse else number
    product = fact.factor * factor
    far: Flaw | None = None
    if not is_ordinary(math.sqrt(abs(product)), fact.dtype):
        far = (
            "weighted-square", "the squares are multiplied with a number with which those of "
            "ordinary rows overflow or vanish", f"{product:.6g}",
            "multiply with a number nearer to 1",
        )  # fmt: skip
    return dataclasses.replace(
        fact, factor=product, plus=fact.plus * factor, flaw=fact.flaw or far,
        slack=max(fact.slack, rounding_of(numbers) / 2),  # under the root
    )  # fmt: skip


def _row_times_column(ctx: Context, node: ir.Node) -> Square | None:
    """The square of a [..., 1, n] that is multiplied with the same numbers as [..., n, 1]; or of a
    vector that is multiplied with itself."""
    a, b = (*node.inputs, None)[:2]
    if a is None or b is None or node.op_type == "Conv" or not related(a, b):
        return None
    shapes = shapes_of(ctx, a), shapes_of(ctx, b)
    pair = multiples(ctx, shapes[0][-1], shapes[1][-1])
    if pair is None:
        return None
    rows, columns, fact = ctx.types.shape(a), ctx.types.shape(b), square_of(ctx, a)
    if rows is None or columns is None or fact is None or not rows:
        return None
    if node.op_type == "Gemm":
        turned = [node.attributes.get_int(name, 0) for name in ("transA", "transB")]
        if len(node.inputs) > 2 or node.attributes.get_float("alpha", 1.0) != 1.0 or turned[0]:
            return None
        columns = columns[::-1] if turned[1] else columns
    wanted = rows if len(rows) == 1 else (*rows[:-2], rows[-1], 1)
    whole = len(rows) == 1 or rows[-2] == 1
    if not whole or not same_dims(columns, wanted) or not all(in_order(ctx, s) for s in shapes):
        return None
    left, right = pair
    return dataclasses.replace(
        fact, factor=right.factor / left.factor, slack=(left.slack + right.slack) / 2,
        narrow=(*left.narrow, *right.narrow),
    )  # fmt: skip


def dot(ctx: Context, node: ir.Node) -> None:
    """Einsum of x with itself, or of a square, and of numbers along the row: the sum over some of
    its axes, or the square."""
    equation = _equation(node)
    if equation is None:
        return
    terms, result = equation
    squares = [value for value, _ in terms if isinstance(ctx.fact(value), Square)]
    rows = squares or [value for value, _ in terms if ctx.constants.array(value) is None]
    labels = [labels for value, labels in terms if value in rows]
    fact: Fact | None = None
    if len(labels) == 1:
        fact = ctx.facts.get(rows[0])
    elif not squares and len(labels) == 2 and labels[0] == labels[1]:
        fact = square_of_product(ctx, *(value for value, _ in terms if value in rows))
    numbers = [(value, term) for value, term in terms if value not in rows]
    if not isinstance(fact, Square) or len(set(labels[0])) < len(labels[0]):
        return
    summed = [label for label in labels[0] if label not in result]
    added: list[str] = []  # the axis of a column, or of a square matrix
    for value, term in numbers:
        added += [label for label in term if label not in labels[0]]
        scaled = _times_numbers(ctx, fact, value, term, labels[0])
        if scaled is None or (term and summed != labels[0][-1:]):
            return
        fact = scaled
    if [*(label for label in labels[0] if label in result), *added] != result or len(added) > 1:
        return
    if not summed:
        ctx.facts[node.outputs[0]] = fact
    elif "..." not in labels[0][labels[0].index(summed[0]) :]:
        axes = tuple(labels[0].index(label) - len(labels[0]) for label in summed)
        _reduce(ctx, node, fact, axes, kept=bool(added))


def _equation(node: ir.Node) -> tuple[list[tuple[ir.Value, list[str]]], list[str]] | None:
    """Return the operands of an Einsum with their labels, and those of the result."""
    operands, arrow, result = node.attributes.get_string("equation", "").partition("->")
    terms = [[*_LABEL.findall(term)] for term in operands.split(",")]
    values = [value for value in node.inputs if value is not None]
    if len(values) != len(terms):
        return None
    kept = _LABEL.findall(result)
    if not arrow:  # those that stand once, in the order of the alphabet
        labels = [label for term in terms for label in term]
        kept = sorted({x for x in labels if x == "..." or labels.count(x) == 1})
    return [*zip(values, terms, strict=True)], kept


def _times_numbers(
    ctx: Context, fact: Square, value: ir.Value, term: list[str], row: list[str]
) -> Square | None:
    """Return the squares times numbers along the row; None of a layer behind them.

    Numbers along a row of one repeat its square.
    """
    shape, n = ctx.types.shape(value), (ctx.types.shape(fact.x.root) or (None,))[-1]
    along = [label for label in term if label in row]
    if shape is None or len(shape) != len(term) or (term and along != row[-1:]):
        return None
    sizes = dict(zip(term, shape, strict=True))
    others = {size for label, size in sizes.items() if label not in row}
    if not others <= {1, n}:
        return None
    fits = all(size in (1, n) for size in sizes.values())
    return scaled_square(ctx, fact, value, ctx.constants.repeated(value) if fits else None)


_LABEL = re.compile(r"\.\.\.|[A-Za-z]")


def _reduce(
    ctx: Context, node: ir.Node, fact: Square, axes: tuple[int, ...] | None, *, kept: bool
) -> None:
    """``node`` is the mean of the squares in ``fact``, their sum, or the root of it."""
    op = node.op_type
    candidate = ctx.candidate(node)
    candidate.centred = centred(ctx, fact.x.root)
    if fact.flaw is not None:
        ctx.flaw(candidate, node, *fact.flaw)
    axis, last = row_axes(ctx, node, axes, fact.x, candidate) or (None, -1)
    dims, others = ctx.types.shape(fact.x.root), candidate.axes
    size = row_size(dims, axis, last)
    if dims is not None and others and -len(dims) <= others[0] <= others[-1] < 0:
        size = row_size(tuple(dims[other] for other in others), -len(others))
    factor = fact.factor
    if size == 0:
        ctx.flaw(
            candidate, node, "empty-row", "the rows have no elements",
            ctx.describe(fact.x.root), "nothing is computed here; check the export",
        )  # fmt: skip
    spoiled = candidate.flaw is not None or (op not in _MEANS and size is None)
    if op not in _MEANS:
        if size is None:
            ctx.flaw(candidate, node, *length_unknown(ctx, fact.x))
        factor *= size or 1
    radial = Radial(
        fact.x, candidate, node.graph, axis if axis is not None else -1, size, kept,
        fact.dtype, fact.dtype, a=factor, narrow=fact.narrow, slack=fact.slack, last=last,
    )  # fmt: skip
    if op in _ROOTS:
        radial = dataclasses.replace(radial, rooted=True, length=int(op == "ReduceL2"))
    radial.plain = op in ("ReduceMean", "ReduceL2") and fact.factor == 1.0 and not fact.plus
    radial.b = fact.plus * (1 if op in _MEANS else size or 1)
    radial.epsilons = int(fact.plus > 0)
    radial.beyond = fact.beyond or (node if "Log" in op else None)
    if fact.factor != 1.0:
        radial.edges = ("squares that are scaled before they are summed",)
    radial.spoiled = spoiled
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
