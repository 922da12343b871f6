"""Transfer functions for Mul, Div and Add: normalised rows and what is done to them."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.spec import HALF_TYPES
from rmsnorm_export.recognize import radial as radials
from rmsnorm_export.recognize.addition import add_epsilon
from rmsnorm_export.recognize.complete import complete, is_unit, unit_row
from rmsnorm_export.recognize.consts import producer_of, standard
from rmsnorm_export.recognize.context import Context
from rmsnorm_export.recognize.facts import (
    Activated,
    Event,
    Norm,
    Radial,
    View,
    Weight,
    WeightedInverse,
)
from rmsnorm_export.recognize.numerator import part_squared, whole_row
from rmsnorm_export.recognize.refusal import name_of
from rmsnorm_export.recognize.shape_rules import row_size
from rmsnorm_export.recognize.sums import length_unknown, not_trailing, row_axes
from rmsnorm_export.recognize.weights import as_gain, as_weight

_MOST_SCALES = 4
"""Of one row. Two norms of [128, 1024] take 122 us on a CPU, one and two products 178; four 288 and
287; eight 626 and 527."""


def mul(ctx: Context, node: ir.Node) -> None:
    a, b = node.inputs[0], node.inputs[1]
    if a is None or b is None:
        return
    facts = ctx.facts
    fact_a, fact_b = facts.get(a), facts.get(b)
    if ctx.may_be_same(a, b) and ctx.same(a, b):
        if isinstance(fact_a, Radial):
            radials.squared_again(ctx, node, fact_a)
        elif not isinstance(fact_a, WeightedInverse):
            radials.square(ctx, node, a)
        return
    if fact_a is None and fact_b is None:
        return
    # Before squares and norms: the row that is divided may itself be one, on either side.
    for fact, other in ((fact_a, b), (fact_b, a)):
        if isinstance(fact, Radial):
            multiply_radial(ctx, node, fact, other)
            return
        if isinstance(fact, WeightedInverse):
            _meet(ctx, node, other, fact)
            return
    for value, fact, other in ((a, fact_a, b), (b, fact_b, a)):
        if isinstance(fact, Norm):
            multiply_norm(ctx, node, value, fact, other)
            return
    for fact, other in ((fact_a, b), (fact_b, a)):
        if (
            isinstance(fact, Activated)
            and fact.activation == "sigmoid"
            and ctx.view(other).root is fact.z.root
        ):
            facts[node.outputs[0]] = dataclasses.replace(fact, activation="silu")
            return


def div(ctx: Context, node: ir.Node) -> None:
    a, b = node.inputs[0], node.inputs[1]
    if a is None or b is None:
        return
    fact_a, fact_b = ctx.facts.get(a), ctx.facts.get(b)
    if isinstance(fact_b, Radial):
        array, number = ctx.constants.array(a), ctx.constants.scalar(a)
        if number is not None and array is not None and ctx.fits(array.ndim, fact_b):
            radials.inverse_of(ctx, node, fact_b, number, a)
        elif not fact_b.rooted and not fact_b.inverse:
            _count_not_constant(ctx, node, fact_b, a)
        elif not fact_b.inverse:
            inverse = dataclasses.replace(fact_b, inverse=True, m=1.0)
            normalise(ctx, node, a, inverse, None)
            _as_inverse(ctx, node, a, inverse)
        return
    number = ctx.constants.scalar(b)
    if not number:
        if isinstance(fact_a, Radial) and (length := _counted(ctx, b, fact_a, a)):
            _rescaled(ctx, node, fact_a, 1.0 / length)
        elif isinstance(fact_a, Radial) and not fact_a.rooted:
            _count_not_constant(ctx, node, fact_a, b)
        return
    if isinstance(fact_a, Radial):
        rescale(ctx, node, fact_a, b, 1.0 / number)
    elif isinstance(fact_a, Norm) and _of_length_one(a, fact_a, node):
        _root_of_n(ctx, node, fact_a, b, 1.0 / number)


def add(ctx: Context, node: ir.Node) -> None:
    """Add, or Sum of two tensors."""
    a, b, *more = (*node.inputs, None)
    if a is None or b is None or any(more):
        return
    pairs = [(value, ctx.facts.get(value), other) for value, other in ((a, b), (b, a))]
    for _, fact, other in pairs:
        if isinstance(fact, Radial):
            add_epsilon(ctx, node, fact, other)
            return
    for value, fact, other in pairs:
        if isinstance(fact, Norm) and fact.radial and fact.bias is None and fact.gate is None:
            bias = _factor(ctx, fact, other)
            if bias is not None and bias.offset:
                bias = dataclasses.replace(bias, stored=bias.value, offset=0.0)
            if bias is not None and ctx.exclusive(value, node):
                step = _with_event(fact, "bias")
                extend(ctx, node, dataclasses.replace(step, bias=bias))
                return


def _counted(ctx: Context, count: ir.Value, radial: Radial, sums: ir.Value) -> int:
    """Return the length of rows where ``count`` adds up ones as ``sums`` their squares, else 0."""
    node = ctx.maker(count, "ReduceSum")
    ones = None if node is None else ctx.maker(node.inputs[0], "ConstantOfShape", "Expand")
    if ones is None or radial.inverse or not radial.size:
        return 0
    fill, number = ones.attributes.get("value"), ctx.constants.scalar(ones.inputs[0])
    if ones.op_type == "ConstantOfShape":
        number = 0.0 if fill is None else float(fill.as_tensor().numpy().flat[0])
    shape = ctx.types.shape
    pairs = ((shape(ones.outputs[0]), shape(radial.x.root)), (shape(count), shape(sums)))
    same = all(one == other and one is not None and None not in one for one, other in pairs)
    exact = radial.size <= (256 if radial.dtype in HALF_TYPES else 1 << 24)
    return radial.size if same and exact and number == 1.0 else 0


def _count_not_constant(ctx: Context, node: ir.Node, radial: Radial, other: ir.Value) -> None:
    if ctx.of_one_source(other, radial.x.root):
        ctx.spoil(
            node, radial, "count-of-the-row",
            "the sum of squares is scaled by what is computed from the values of the row",
            ctx.describe(other), "an RMSNorm divides it by the row length",
        )  # fmt: skip
        return
    ctx.spoil(
        node, radial, "count-not-constant",
        "the sum of squares is scaled by a number that is not constant", ctx.describe(other),
        "use ReduceMean, or export with static sizes, which make it a constant",
    )  # fmt: skip


def rescale(ctx: Context, node: ir.Node, radial: Radial, constant: ir.Value, factor: float) -> None:
    """``factor * radial`` for a constant scalar."""
    array = ctx.constants.array(constant)
    if factor == 0 or array is None or not ctx.fits(array.ndim, radial):
        return
    if radial.inverse:
        ctx.set_radial(node.outputs[0], radials.times(ctx, radial, constant, factor))
        return
    slack = radials.slack_with(ctx, radial, constant)
    _rescaled(ctx, node, dataclasses.replace(radial, slack=slack), factor)


def _rescaled(ctx: Context, node: ir.Node, radial: Radial, factor: float) -> None:
    step = dataclasses.replace(radial, plain=False)
    step.floor *= factor  # a negative one would make a maximum of it: refused by its sign
    if radial.rooted:
        step.c, step.d = radial.c * factor, radial.d * factor
    else:
        step.a, step.b = radial.a * factor, radial.b * factor
    ctx.set_radial(node.outputs[0], step)


def multiply_radial(ctx: Context, node: ir.Node, radial: Radial, other: ir.Value) -> None:
    number = ctx.constants.scalar(other)
    array = ctx.constants.array(other)
    # In rows of one element the weight is a constant scalar too, known by its axis.
    row_of_one = radial.size == 1 and radial.inverse and array is not None and array.ndim
    if number is not None and not (row_of_one and number != 1.0):
        rescale(ctx, node, radial, other, number)
        return
    if not radial.rooted:
        _count_not_constant(ctx, node, radial, other)
        return
    if not radial.inverse:
        return
    if not ctx.same(other, radial.x.root) and ctx.types.dtype(other) is not None:
        scale = as_weight(ctx, other, whole_row(radial), radial.axis, radial.last)
        if scale is not None and radial.kept:
            ctx.facts[node.outputs[0]] = WeightedInverse(radial, scale, radial.dtype)
            return
    normalise(ctx, node, other, radial, None)
    _as_inverse(ctx, node, other, radial)


def _as_inverse(ctx: Context, node: ir.Node, gain: ir.Value, radial: Radial) -> None:
    """``gain / rms`` of what is no row that was squared: x may follow."""
    if node.outputs[0] in ctx.facts or not radial.kept:
        return
    if ctx.view(gain).root is not ctx.view(radial.x.root).root:
        scale = as_gain(ctx, gain, whole_row(radial))
        ctx.facts[node.outputs[0]] = WeightedInverse(radial, scale, radial.dtype)


def _meet(ctx: Context, node: ir.Node, x: ir.Value, weighted: WeightedInverse) -> None:
    """``x * (scale / rms)``, the inner product in the type of x or rounded to it."""
    radial, candidate = weighted.radial, weighted.radial.candidate
    if weighted.scale is None and part_squared(ctx, ctx.view(x), radial) is not None:
        candidate.flaw = None  # that of the product without x
        ctx.flaw(
            candidate, node, "scale-shape", "what 1 / rms is multiplied with is not known to leave "
            "the shape of x", ctx.describe(x), "store shapes in the model (value_info)",
        )  # fmt: skip
    elif weighted.scale is not None:
        normalise(ctx, node, x, radial, weighted.scale, rounded=weighted.rounded)


def normalise(
    ctx: Context,
    node: ir.Node,
    numerator: ir.Value,
    radial: Radial,
    scale: Weight | None,
    *,
    rounded: bool = False,
) -> None:
    """``numerator * (1 / rms)``: the place where a chain becomes a norm, or does not."""
    candidate = radial.candidate
    view = ctx.view(numerator)
    association = 0 if scale is None else 3 if rounded else 1
    part = part_squared(ctx, view, radial)
    if part is None and scale is None:
        product_of_x = _multiplied(ctx, numerator, radial)
        if product_of_x is not None:
            view, radial, scale, part = product_of_x
            association = 0 if scale is None else 2
    if part is None and (both := radials.both_unrounded(ctx, view, radial)) is not None:
        (view, radial), part = both, 0
    if part is None:
        flat = producer_of(radial.x.root, "Reshape", "Flatten")
        source = None if flat is None else flat.inputs[0]
        if source and ctx.same(source, view.root) and ctx.types.rank(radial.x.root) == 1:
            candidate.flaw = None  # no row of unknown length, but the whole tensor
        ctx.flaw(
            candidate, node, "different-numerator",
            "what is divided by the root is not what was squared",
            f"squared {ctx.describe(radial.x.root)}, divided {ctx.describe(numerator)}",
            "square the same tensor that is divided; if they are equal by another way, "
            "let them be one value",
        )  # fmt: skip
        return
    candidate.divides = True
    if not _sound(ctx, node, view, radial):
        return
    if scale is not None and not scale.per_feature:
        scale = as_gain(ctx, scale.value, view.root)
    elif scale is not None:
        scale = as_weight(ctx, scale.value, view.root, radial.axis, radial.last)
    dtype = ctx.types.dtype(numerator)
    if dtype is None or (association and scale is None):
        return
    product = radial.stash if rounded else dtype
    events: tuple[Event, ...] = () if scale is None else (("scale", product),)
    if rounded:
        events = (*events, ("cast", dtype))
    norm = Norm(view, radial, product, dtype, events, scale, partial=part, association=association)
    norm.inverted = node.op_type == "Mul"
    extend(ctx, node, norm)


def _sound(ctx: Context, node: ir.Node, view: View, radial: Radial) -> bool:
    """The mean square is that of an RMSNorm: factor 1, axes kept, one graph, nothing spoiled."""
    if not is_unit(radial):
        # Told unless a factor that makes it one follows.
        ctx.flaw(
            radial.candidate, node, "not-the-mean",
            "the sum of squares is not divided by the row length",
            f"the row comes out {radial.unit:.15g} times an RMSNorm (row length {radial.size})",
            "divide by the number of normalised elements, or multiply by the root of it",
        )  # fmt: skip
    problems: list[tuple[str, str, str, str]] = []
    if not radial.kept and ctx.types.rank(view.root) != -radial.axis:
        problems.append((
            "axes-dropped",
            "the reduced axes were removed (keepdims = 0) and not restored, so the division pairs "
            "other axes", name_of(radial.candidate.node), "use keepdims = 1, or Unsqueeze the axes",
        ))  # fmt: skip
    if not ctx.in_branch_of(node.graph, radial.graph):
        problems.append((
            "crosses-subgraph", "the chain crosses a subgraph boundary",
            f"mean in one graph, division {name_of(node)!r} in another",
            "keep the whole norm inside or outside the branch",
        ))  # fmt: skip
    centred = radials.centred(ctx, view.root)
    if centred is not None:
        problems.append((
            "layer-norm", "the row is centred first: this is a LayerNorm",
            f"{name_of(centred)!r} subtracts the mean", "LayerNormalization is the better node",
        ))  # fmt: skip
    if radial.candidate.axes:
        problems.append(not_trailing(ctx, radial))
    for problem in problems:
        ctx.flaw(radial.candidate, node, *problem)
    return not problems and not radial.spoiled and radial.epsilon >= 0


def _multiplied(
    ctx: Context, numerator: ir.Value, radial: Radial
) -> tuple[View, Radial, Weight | None, int] | None:
    """``x * w`` with the x that was squared, or ``x * c``: c times the norm, as
    ``x * sqrt(n) / ||x||``."""
    node = ctx.maker(numerator, "Mul")
    if node is None or node.graph is not radial.graph:
        return None
    for x, other in (node.inputs, node.inputs[::-1]):
        part = None if x is None else part_squared(ctx, ctx.view(x), radial)
        if x is None or other is None or part is None:
            continue
        root = ctx.view(x).root
        scale = as_weight(ctx, other, root, radial.axis, radial.last)
        if scale is None and ctx.view(other).root is not root:
            scale = as_gain(ctx, other, root)
        if scale is not None:
            return ctx.view(x), radial, scale, part
        array, number = ctx.constants.array(other), ctx.constants.scalar(other)
        if array is None or array.ndim > 1 or (number or 0) <= 0:
            continue
        step, dtype = radials.times(ctx, radial, other, number or 0), ctx.types.dtype(x)
        step.edges = (*radial.edges, "x that is multiplied with a constant first")
        if dtype in HALF_TYPES:
            step.narrow = (*radial.narrow, f"x times a constant rounded to {type_name(dtype)}")
        return ctx.view(x), step, None, part
    return None


def multiply_norm(
    ctx: Context, node: ir.Node, value: ir.Value, norm: Norm, other: ir.Value
) -> None:
    """A scale, a gate, or something that ends the norm."""
    if norm.radial is None:
        return
    number = ctx.constants.scalar(other)
    if number is not None and _of_length_one(value, norm, node):
        _root_of_n(ctx, node, norm, other, number)
        return
    if not ctx.exclusive(value, node) and not _each_scales(ctx, value, norm):
        return
    fact = ctx.facts.get(other)
    if norm.scale is None and norm.bias is None and norm.gate is None:
        scale = _factor(ctx, norm, other)
        if scale is None and _of_length_one(value, norm, node):
            scale = as_gain(ctx, other, norm.x.root)
        if scale is not None:
            extend(ctx, node, dataclasses.replace(_with_event(norm, "scale"), scale=scale))
            return
    if isinstance(fact, Activated) and norm.gate is None and norm.bias is None:
        extend(ctx, node, dataclasses.replace(_with_event(norm, "gate"), gate=fact))


def _each_scales(ctx: Context, value: ir.Value, norm: Norm) -> bool:
    """Every reader multiplies with a scale of its own: each of them gets a norm."""
    readers = ctx.read_by(value)
    if norm.scale or norm.bias or len(readers) > _MOST_SCALES or value.is_graph_output():
        return False
    others = [r.inputs[r.inputs[0] is value] for r in readers if standard(r) == "Mul"]
    graphs = {r.graph for r in (value.producer(), *readers) if r is not None}
    weights = [v is not None and _factor(ctx, norm, v) is not None for v in others]
    return len(weights) == len(readers) and len(graphs) == 1 and all(weights)


def _of_length_one(value: ir.Value, norm: Norm, node: ir.Node) -> bool:
    """Return whether this graph divides a row by a multiple of its root mean square so far."""
    producer = value.producer()
    here = producer is not None and producer.graph is node.graph
    return here and norm.radial is not None and not is_unit(norm.radial)


def _root_of_n(ctx: Context, node: ir.Node, norm: Norm, constant: ir.Value, factor: float) -> None:
    """``x / ||x|| * sqrt(n)``: the factor that makes an RMSNorm of a row of length one."""
    array, radial = ctx.constants.array(constant), norm.radial
    if array is None or radial is None or norm.bias is not None or norm.gate is not None:
        return
    rank = ctx.types.rank(norm.x.root)
    if factor <= 0 or (array.ndim > 1 and (rank is None or array.ndim > rank)):
        return
    narrow = radial.narrow
    if any(kind == "cast" for kind, _ in norm.events):
        narrow = (*narrow, f"a row of length one rounded to {type_name(int(norm.dtype))}")
    step = radials.times(ctx, radial, constant, factor)
    step.narrow = narrow
    extend(ctx, node, dataclasses.replace(norm, radial=step))
    candidate = radial.candidate
    if candidate.taken or not is_unit(step):
        return
    # In another type than x no operator has the factor; the row of length one may be a node.
    if norm.unit is not None:
        ctx.matches[norm.unit.output], candidate.taken = norm.unit, True
    elif norm.x.first.get(norm.dtype) is None:
        candidate.flaw = None  # that of the row without its factor
        ctx.flaw(
            candidate, node, "lossy-cast", "the row of length one is rounded before it meets its "
            "factor in another type", ctx.describe(node.outputs[0]),
            "multiply in the type of x, or convert the model to half precision anew",
        )  # fmt: skip


def _factor(ctx: Context, norm: Norm, other: ir.Value) -> Weight | None:
    x = norm.group[0].value if norm.group is not None else norm.x.value
    axis, last = (norm.radial.axis, norm.radial.last) if norm.radial is not None else (-1, -1)
    return as_weight(ctx, other, x, axis, last)


def _with_event(norm: Norm, kind: str) -> Norm:
    event: Event = (kind, norm.dtype)  # type: ignore[assignment]
    return dataclasses.replace(norm, events=(*norm.events, event))


def extend(ctx: Context, node: ir.Node, norm: Norm) -> None:
    """The first output of ``node`` is ``norm``."""
    output = node.outputs[0]
    norm = dataclasses.replace(norm, unit=norm.unit or unit_row(ctx, norm, output))
    ctx.advance(output, norm, complete(ctx, norm, output))


def lp_normalization(ctx: Context, node: ir.Node) -> None:
    """``LpNormalization(x)``: a row of length one, which ``sqrt(n)`` makes an RMSNorm."""
    x, attributes = node.inputs[0], node.attributes
    if x is None or attributes.get_int("p", 2) != 2:
        return
    view, candidate = ctx.view(x), ctx.candidate(node)
    candidate.rooted = candidate.divides = True
    axes = row_axes(ctx, node, (attributes.get_int("axis", -1),), view, candidate)
    dtype = ctx.types.dtype(x)
    if axes is None or dtype is None:
        return
    axis, last = axes
    size = row_size(ctx.types.shape(x), axis, last)
    if not size:
        ctx.flaw(candidate, node, *length_unknown(ctx, view))
        return
    radial = Radial(
        view, candidate, node.graph, axis, size, True, dtype, dtype, a=float(size), rooted=True,
        inverse=True, zero_safe=True, length=int(dtype != ir.DataType.DOUBLE), last=last,
    )  # fmt: skip
    normalise(ctx, node, x, radial, None)
