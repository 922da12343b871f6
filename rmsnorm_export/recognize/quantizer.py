"""Nodes that make codes of a norm: QuantizeLinear, or a scale for each row and a division."""

from __future__ import annotations

import dataclasses
from collections.abc import Set
from typing import get_args

import numpy as np
import onnx_ir as ir

from rmsnorm_export.op.spec import CODE_TYPES, FLOAT, HALF_TYPES, Quantize, scaled_by
from rmsnorm_export.recognize.consts import producer_of, standard
from rmsnorm_export.recognize.context import Context
from rmsnorm_export.recognize.match import Match, Quantized
from rmsnorm_export.recognize.refusal import Refusal, refuse
from rmsnorm_export.recognize.shape_rules import axes_of

_WAYS: dict[tuple[int, str], Quantize] = {
    (CODE_TYPES[how.partition("_")[0]][0], scaled_by(how)): how for how in get_args(Quantize)
}
"""Element type of codes, and what has a scale of its own -> the name of both."""


_OF_BLOCKS = ("trt", "TRT_MXFP8DynamicQuantize")
"""Domain and type of a node that TensorRT's parser knows and ModelOpt writes."""


def quantizer(ctx: Context, match: Match) -> Match | Refusal | None:
    """Return ``match`` with what makes codes of it, or why that stays by itself; None: nothing."""
    y = match.output
    for node in ctx.read_by(y):
        if standard(node) == "Cast" and match.dtype in HALF_TYPES and node.inputs[0] is y:
            wide = node.outputs[0]
            readers = {standard(reader) for reader in ctx.read_by(wide)}
            if ctx.types.dtype(wide) == FLOAT and readers & {"QuantizeLinear", "Div"}:
                y = wide
                break
    for node in ctx.read_by(y):
        if standard(node) == "QuantizeLinear" and node.inputs[0] is y:
            return _static(ctx, match, y, node)
        if node.op_identifier()[:2] == _OF_BLOCKS and node.op_identifier() not in ctx.foreign:
            return kept(match, node, "its blocks have a scale each", node.op_type,
                         "quantize per tensor, or row by row")  # fmt: skip
    for node in ctx.read_by(y):
        if standard(node) == "Div" and node.inputs[0] is y:
            codes = _per_row(ctx, match, y, node)
            if codes is not None:
                return codes
    return None


def kept(match: Match, node: ir.Node, why: str, found: str, hint: str) -> Refusal:
    """The refusal of what quantizes a norm."""
    message = f"what quantizes the norm is not folded: {why}"
    return refuse(node, "quantizer-kept", message, found, hint, match.scope)


def _static(ctx: Context, match: Match, y: ir.Value, node: ir.Node) -> Match | Refusal:
    """One QuantizeLinear with one scale for all rows."""
    _, scale, zero = (*node.inputs, None, None)[:3]
    codes, plain = node.outputs[0], node.attributes
    dtype = ctx.types.dtype(codes) or (None if zero is None else ctx.types.dtype(zero))
    if dtype is None or (int(dtype), "tensor") not in _WAYS or scale is None:
        found = "uint8" if dtype is None and zero is None else str(dtype)
        return kept(match, node, "the codes are neither int8 nor float8e4m3fn", found,
                     "quantize to one of these, symmetrically")  # fmt: skip
    dims = ctx.types.shape(scale)
    if dims is None or any(size != 1 for size in dims):
        return kept(match, node, "it has no single scale", ctx.describe(scale),
                     "quantize per tensor, or row by row")  # fmt: skip
    if zero is not None and ctx.constants.scalar(zero) != 0:
        return kept(match, node, "its zero point is not the constant 0", ctx.describe(zero),
                     "quantize symmetrically")  # fmt: skip
    odd = {"saturate": (1,), "block_size": (0,), "precision": (0, FLOAT)}
    for name, usual in odd.items():
        if plain.get_int(name, usual[0]) not in usual:
            return kept(match, node, f"the node has no counterpart of its {name}",
                         f"{name} {plain.get_int(name)}", "omit that attribute")  # fmt: skip
    # An exporter that quantizes the input of every Linear writes one node for each of them.
    repeated = [n for n in ctx.read_by(y) if n is not node and ctx.same(n.outputs[0], codes)]
    twins = [n for n in repeated if not n.outputs[0].is_graph_output()]
    if (apart := shared(ctx, match, y, {node, *twins})) is not None:
        return apart
    own = ctx.types.dtype(scale)
    # With a scale of a half type the definition rounds the quotient to it.
    edges = () if own == FLOAT else ("a quotient that is rounded before the codes are",)
    how, same = _WAYS[int(dtype), "tensor"], tuple((n.outputs[0], codes) for n in twins)
    quantized, edges = Quantized(how, scale=scale, twins=same), (*match.edges, *edges)
    return dataclasses.replace(match, output=codes, quantized=quantized, edges=edges)


def shared(ctx: Context, match: Match, y: ir.Value, nodes: Set[ir.Node]) -> Refusal | None:
    """Return why the norm is needed beside its codes, made by ``nodes``; None: it is not."""
    first, graph = next(iter(nodes)), match.output.producer()
    readers = {*ctx.read_by(y), *ctx.read_by(match.output)} - {y.producer()}
    if readers <= nodes and not y.is_graph_output() and not match.output.is_graph_output():
        same = graph is not None and all(node.graph is graph.graph for node in nodes)
        return None if same else kept(match, first, "it is in another graph than the norm",
                                       match.scope, "keep both in one graph")  # fmt: skip
    others = [f"{n.op_type} {n.name!r}" for n in readers - nodes] or ["an output of the graph"]
    return kept(match, first, "the norm is read by others, too", ", ".join(sorted(others)[:4]),
                 "quantize once for all that read the norm")  # fmt: skip


def _per_row(ctx: Context, match: Match, y: ir.Value, division: ir.Node) -> Match | None:
    """``codes(y / s)`` with ``s = max |y| of the row / 127 or / 448``; other forms are nothing."""
    scales, nodes, least = division.inputs[1], {division}, 0.0
    current, guarded = scales, False
    if (node := producer_of(current, "Where")) is not None:  # 1 for a row of zeros: the definition
        test, one, current = node.inputs
        equal = producer_of(test, "Equal")
        if equal is None or equal.inputs[0] is not current:
            return None
        if ctx.constants.scalar(one) != 1 or ctx.constants.scalar(equal.inputs[1]) != 0:
            return None
        nodes |= {node, equal}
        guarded = True
    current, least = _clamped(ctx, current, nodes)
    node = producer_of(current, "Div")
    largest = None if node is None else ctx.constants.scalar(node.inputs[1])
    if node is None or largest not in (127.0, 448.0):
        return None
    nodes.add(node)
    current, before = _clamped(ctx, node.inputs[0], nodes)
    least = max(least, before / largest)
    top, current = current, _not_dropping(ctx, match, current, nodes)
    node = producer_of(current, "ReduceMax")
    size = None if node is None else producer_of(node.inputs[0], "Abs")
    if node is None or size is None or size.inputs[0] is not y:
        return None
    if not last_axis(ctx, node, match.rank):
        return None
    nodes |= {node, size}
    steps = _zeros_of_nothing(ctx, division.outputs[0], top, nodes)
    codes = _rounded(ctx, steps, largest, nodes)
    if codes is None or scales is None or ctx.types.dtype(y) != FLOAT or match.spec.axis != -1:
        return None
    how = _WAYS.get((int(ctx.types.dtype(codes) or 0), "row"))
    if how is None or CODE_TYPES[how.partition("_")[0]][1] != largest:
        return None
    inside = {v for n in nodes for v in n.outputs} - {codes, scales}
    if any(v.is_graph_output() or not set(ctx.read_by(v)) <= nodes for v in inside):
        return None
    if shared(ctx, match, y, nodes) is not None:
        return None
    edges = () if guarded or least else ("rows of zeros that are divided by a scale of 0",)
    quantized, edges = Quantized(how, scales=scales, least=least), (*match.edges, *edges)
    return dataclasses.replace(match, output=codes, quantized=quantized, edges=edges)


def _not_dropping(
    ctx: Context, match: Match, value: ir.Value | None, nodes: set[ir.Node]
) -> ir.Value | None:
    """The maximum in what a function body writes for a runtime whose maximum drops a NaN."""
    node = producer_of(value, "Where")
    if node is None:
        return value
    test, total, top = node.inputs
    nan, added = producer_of(test, "IsNaN"), producer_of(total, "ReduceSum")
    reduced = producer_of(top, "ReduceMax")
    if nan is None or added is None or reduced is None or nan.inputs[0] is not total:
        return value
    if added.inputs[0] is not reduced.inputs[0] or not last_axis(ctx, added, match.rank):
        return value
    nodes |= {node, nan, added}
    return top


def _zeros_of_nothing(
    ctx: Context, value: ir.Value, top: ir.Value | None, nodes: set[ir.Node]
) -> ir.Value:
    """``value``, or it with zeros where the greatest magnitude of a row is no finite number."""
    readers = ctx.read_by(value)
    if len(readers) != 1 or standard(readers[0]) != "Where" or readers[0].inputs[1] is not value:
        return value
    test = producer_of(readers[0].inputs[0], "Less")
    if test is None or test.inputs[0] is not top:
        return value
    bound, zero = ctx.constants.array(test.inputs[1]), ctx.constants.scalar(readers[0].inputs[2])
    if zero != 0 or bound is None or not np.array_equal(bound, np.inf):
        return value
    nodes |= {readers[0], test}
    return readers[0].outputs[0]


def _clamped(
    ctx: Context, value: ir.Value | None, nodes: set[ir.Node]
) -> tuple[ir.Value | None, float]:
    """Return what a constant bounds from below, and that; ``value`` and 0 where none does."""
    node = producer_of(value, "Max", "Clip")
    if node is None:
        return value, 0.0
    low, high = (*node.inputs, None, None)[1:3]
    least = ctx.constants.scalar(low)
    if high is not None or least is None or least <= 0:
        return value, 0.0
    nodes.add(node)
    return node.inputs[0], least


def last_axis(ctx: Context, node: ir.Node, rank: int | None) -> bool:
    """Return whether a reduction is over the last axis alone and keeps it."""
    last = ((-1,), (rank - 1,)) if rank else ((-1,),)
    keeps = bool(node.attributes.get_int("keepdims", 1))
    return keeps and axes_of(node, ctx.constants) in last


def _rounded(ctx: Context, value: ir.Value, largest: float, nodes: set[ir.Node]) -> ir.Value | None:
    """The codes of ``value``: Round, Clip and Cast, or QuantizeLinear with a scale of 1."""
    rounds = False
    for _ in range(3):
        readers = ctx.read_by(value)
        if len(readers) != 1 or readers[0].inputs[0] is not value:
            return None
        node = readers[0]
        numbers = [ctx.constants.scalar(v) for v in node.inputs[1:]]
        nodes.add(node)
        value, kind = node.outputs[0], standard(node)
        if kind == "QuantizeLinear":
            return value if not rounds and numbers == [1.0, 0.0] else None
        if kind == "Cast":
            return value if rounds == (largest == 127.0) else None
        if kind == "Round" and not rounds:
            rounds = True
        elif kind != "Clip" or numbers not in ([-largest, largest], [-largest - 1, largest]):
            return None
    return None
