"""Transfer functions for casts, reshapes and activations."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.spec import Activation
from rmsnorm_export.recognize import radial as radials
from rmsnorm_export.recognize.consts import producer_of
from rmsnorm_export.recognize.context import FLOATS, Context, widens
from rmsnorm_export.recognize.facts import Activated, Fact, Norm, Radial, Square, WeightedInverse
from rmsnorm_export.recognize.product import extend
from rmsnorm_export.recognize.refusal import name_of


def cast(ctx: Context, node: ir.Node, source: ir.Value | None = None) -> None:
    """Cast, CastLike, of ``source`` where that is not the input: the same number, or one rounding
    step."""
    source, output = source or node.inputs[0], node.outputs[0]
    fact = ctx.fact(source)
    if fact is None:
        return
    to = ctx.types.dtype(output)
    if to is None or to not in FLOATS:
        if isinstance(fact, Radial):
            _lossy(ctx, node, fact, "an integer or unknown type")
        return
    if isinstance(fact, Norm):
        if source is None or not ctx.exclusive(source, node):
            return
        if fact.wide is not None and not fact.events:
            fact = fact.wide
        extend(ctx, node, dataclasses.replace(fact, dtype=to, events=(*fact.events, ("cast", to))))
    elif isinstance(fact, Radial):
        _cast_radial(ctx, node, fact, to)
    elif isinstance(fact, WeightedInverse):
        if not fact.rounded and fact.dtype == fact.radial.stash and not widens(fact.dtype, to):
            ctx.facts[output] = dataclasses.replace(fact, dtype=to, rounded=True)
        else:
            _lossy(ctx, node, fact.radial, "the product of 1 / rms with the scale")
    elif isinstance(fact, Square):
        low = fact.dtype if widens(fact.dtype, to) else to
        narrow = tuple(dict.fromkeys((*fact.narrow, f"square rounded to {type_name(int(low))}")))
        ctx.facts[output] = dataclasses.replace(fact, dtype=to, narrow=narrow)


def _cast_radial(ctx: Context, node: ir.Node, radial: Radial, to: ir.DataType) -> None:
    """The operator rounds 1 / rms at most; any other rounding is noted as narrow."""
    note = f"mean square computed in {type_name(int(radial.dtype))}"
    if widens(radial.dtype, to) and radial.dtype == radial.stash:
        step = dataclasses.replace(radial, dtype=to, stash=to, narrow=(*radial.narrow, note))
        if radial.dtype == ir.DataType.FLOAT:
            step.before_double = radial.narrow
    elif to == ir.DataType.FLOAT and radial.before_double is not None:
        step = dataclasses.replace(
            radial, dtype=to, stash=to, narrow=radial.before_double, before_double=None
        )
    elif to == radial.stash:  # and back
        rounded = f"1 / rms rounded to {type_name(int(radial.dtype))}"
        narrow = (*radial.narrow, *(() if radial.inverse_cast is None else (rounded,)))
        step = dataclasses.replace(radial, dtype=to, inverse_cast=None, narrow=narrow)
    elif widens(radial.dtype, to):
        _lossy(ctx, node, radial, radial.dtype.name)
        return
    elif radial.inverse and radial.rooted and radial.inverse_cast is None:
        step = dataclasses.replace(radial, dtype=to, inverse_cast=to)
    else:
        what = "rms" if radial.rooted else "mean square"
        note = f"{what} rounded to {type_name(int(to))}"
        step = dataclasses.replace(radial, dtype=to, narrow=(*radial.narrow, note))
    ctx.set_radial(node.outputs[0], step)


def _lossy(ctx: Context, node: ir.Node, radial: Radial, through: str) -> None:
    ctx.spoil(
        node, radial, "lossy-cast", "the mean square is rounded to a smaller type and back",
        f"{name_of(node)!r} casts {ctx.describe(node.inputs[0])} after {through}",
        "keep the mean square in the type in which it was summed",
    )  # fmt: skip


def unchanged(ctx: Context, node: ir.Node, source: ir.Value) -> None:
    """The numbers of ``source``, in its shape: its fact is that of the output."""
    ctx.earlier[node.outputs[0]] = source
    recast = ctx.types.dtype(node.outputs[0]) != ctx.types.dtype(source)
    if not recast:
        ctx.constants.earlier[node.outputs[0]] = source
    fact = ctx.facts.get(source)
    if fact is None:
        return
    if recast:
        cast(ctx, node, source)
    elif isinstance(fact, Norm):
        if ctx.exclusive(source, node):
            extend(ctx, node, fact)
    elif isinstance(fact, Radial):
        ctx.set_radial(node.outputs[0], fact)
    else:
        ctx.facts[node.outputs[0]] = fact


def leave(ctx: Context, owner: ir.Node, graph: ir.Graph) -> None:
    """Follow what a branch or a loop body computes behind it, as no norm, with the reason."""
    skipped = 1 if owner.op_type == "Loop" else 0  # the condition
    for value, outside in zip(graph.outputs[skipped:], owner.outputs, strict=False):
        _lost(ctx, owner, ctx.facts.get(value), outside)


def gather(ctx: Context, node: ir.Node) -> None:
    """One step of what a loop has computed."""
    fact = ctx.fact(node.inputs[0])
    if (isinstance(fact, Square) and fact.flaw) or (isinstance(fact, Radial) and fact.spoiled):
        _lost(ctx, node, fact, node.outputs[0])


def _lost(ctx: Context, node: ir.Node, fact: Fact | None, outside: ir.Value) -> None:
    flaw = (
        "crosses-subgraph", "the chain crosses a subgraph boundary",
        f"a part is computed in {node.op_type} {name_of(node)!r}",
        "keep the whole norm inside or outside the branch",
    )  # fmt: skip
    radials.hide(ctx, node, fact, flaw, outside)


def reshape(ctx: Context, node: ir.Node) -> None:
    """Unsqueeze, Reshape, Expand: axes restored, or the groups of a row joined again."""
    source = node.inputs[0]
    fact = ctx.fact(source)
    if isinstance(fact, Radial):
        radials.restore_axes(ctx, node, fact)
    elif isinstance(fact, Norm) and node.op_type == "Reshape" and source is not None:
        joined = _joined(ctx, node, fact) if ctx.exclusive(source, node) else None
        if joined is not None:
            extend(ctx, node, joined)


def _joined(ctx: Context, node: ir.Node, norm: Norm) -> Norm | None:
    """The row as it was before a Reshape cut it in groups (or flattened the rows)."""
    cut = producer_of(norm.x.root, "Reshape")
    if cut is None or cut.inputs[0] is None or norm.partial:
        return None
    if norm.radial is None or norm.radial.axis != -1 or norm.scale or norm.bias or norm.gate:
        return None
    source = cut.inputs[0]
    before, after = ctx.types.shape(source), ctx.types.shape(node.outputs[0])
    size = ctx.types.static_last(norm.x.root)
    if before is None or after is None or size is None or len(before) != len(after) or not before:
        return None
    n = before[-1]
    if not isinstance(n, int) or n != after[-1] or size == 0 or n % size:
        return None
    alike = radials.same_dims(before[:-1], after[:-1], unnamed=1)
    return dataclasses.replace(norm, group=(ctx.view(source), n)) if alike else None


def activation(ctx: Context, node: ir.Node) -> None:
    """Sigmoid, and ai.onnx Swish-24: x * sigmoid(alpha * x)."""
    z = node.inputs[0]
    dtype = None if z is None else ctx.types.dtype(z)
    if z is not None and dtype is not None and node.attributes.get_float("alpha", 1.0) == 1.0:
        kind: Activation = "sigmoid" if node.op_type == "Sigmoid" else "silu"
        ctx.facts[node.outputs[0]] = Activated(ctx.view(z), kind, dtype)
