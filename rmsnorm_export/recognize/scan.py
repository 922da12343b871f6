"""The pass: one visit to every node in topological order, subgraphs and functions included."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping

import onnx_ir as ir

from rmsnorm_export.op import native as operators
from rmsnorm_export.op.spec import DOMAIN
from rmsnorm_export.recognize import product, structural, sums
from rmsnorm_export.recognize import radial as radials
from rmsnorm_export.recognize.addition import subtract
from rmsnorm_export.recognize.bodies import bodies_of
from rmsnorm_export.recognize.clamp import clamp
from rmsnorm_export.recognize.consts import Constants, depends_on_caller, standard
from rmsnorm_export.recognize.context import Context
from rmsnorm_export.recognize.facts import Candidate, Norm, Radial, Square, WeightedInverse
from rmsnorm_export.recognize.finish import Fold, finish, unmatched
from rmsnorm_export.recognize.functions import callees_first, is_own, reached
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.native import native
from rmsnorm_export.recognize.neutral import NEUTRAL, earlier
from rmsnorm_export.recognize.refusal import Refusal, refuse
from rmsnorm_export.recognize.shape_rules import UNKNOWN, Info
from rmsnorm_export.recognize.shape_values import common
from rmsnorm_export.recognize.types import Types

Transfer = Callable[[Context, ir.Node], None]

_STANDARD: dict[str, Transfer] = {
    "Pow": radials.power,
    **dict.fromkeys(sums.REDUCTIONS, sums.reduce),
    **dict.fromkeys(("Sqrt", "Reciprocal"), radials.root_or_inverse),
    **dict.fromkeys(("Max", "Min", "Clip", "Relu"), clamp),
    "Mul": product.mul,
    "Div": product.div,
    **dict.fromkeys(("Add", "Sum"), product.add),
    "Sub": subtract,
    "LpNormalization": product.lp_normalization,
    **dict.fromkeys(("Cast", "CastLike"), structural.cast),
    "Gather": structural.gather,
    **dict.fromkeys(("Unsqueeze", "Squeeze", "Reshape", "Expand"), structural.reshape),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), radials.quantize),
    **dict.fromkeys(("Sigmoid", "Swish"), structural.activation),
    **dict.fromkeys((operators.RMS_NORMALIZATION, operators.SIMPLIFIED), native),
}
_QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "QLinear")
"""Operators of ONNX Runtime that quantize, or compute with quantized numbers."""

_KNOWN = frozenset((*_STANDARD, *NEUTRAL))
"""Operators of the default domain that a norm may be made of."""

NATIVE = frozenset(((operators.MICROSOFT_DOMAIN, operators.SKIP_SIMPLIFIED, ""),))
"""Read as an operator, as ONNX Runtime does, even where the file has a function of this name."""

_SMALL = 32
"""Nodes of a function that goes with those that hold a part, if it could be the next part."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Recognition:
    """The outcome of the pass.

    Attributes:
        matches: the norms, in graph order.
        opaque: nodes that are a norm by their operator, in a form that is not understood.
        sums: the mean squares of the matches.
        told: a reason for every other value that looked like a norm.
        types: element types and shapes, as far as they were asked for.
        crossed: functions that hold a part of what may be a norm, the rest of which does not stand
            in the same function.
    """

    matches: tuple[Match, ...]
    opaque: tuple[Refusal, ...]
    sums: tuple[Candidate, ...]
    told: Mapping[Candidate, Refusal]
    types: Types
    crossed: frozenset[ir.OperatorIdentifier]


def recognize(model: ir.Model, folds: Collection[Fold] = ("residual", "gate")) -> Recognition:
    """Find every RMSNorm of ``model``; the model is not changed.

    Args:
        model: any valid ONNX model; nodes in topological order.
        folds: what a match may take in of what is around it.
    """
    ctx = read_facts(model)
    told = unmatched(ctx)
    matches = finish(ctx, folds)
    sums = tuple(candidate for candidate in ctx.candidates if candidate.taken)
    return Recognition(matches, tuple(ctx.opaque), sums, told, ctx.types, frozenset(ctx.crossed))


def read_facts(model: ir.Model) -> Context:
    """Return the facts of every value, as far as it has one; norms have ended with their scale."""
    constants = Constants()
    foreign = frozenset(key for key, f in model.functions.items() if not is_own(f))
    ctx = Context(constants, Types(model, constants), foreign=foreign)
    constants.info_of = ctx.types.info
    _graph(ctx, model.graph, "main", model)
    live = reached(model, NATIVE)
    for identifier in reversed(callees_first(model)):
        function = model.functions[identifier]
        if identifier not in foreign or identifier not in live:
            continue
        _seed(ctx, function, ctx.calls.get(identifier, []))
        scope = "::".join(part for part in identifier if part)
        before = len(ctx.candidates)
        _graph(ctx, function, scope, model)
        if any(_is_part(ctx, value) for value in function.outputs) or any(
            not candidate.taken for candidate in ctx.candidates[before:]
        ):
            ctx.crossed.add(identifier)
    return ctx


def could_be_part(function: ir.Function) -> bool:
    """Return whether it is of a few operators that a norm is made of: where a chain goes on."""
    used, known = {(node.domain, node.op_type) for node in function}, (*_KNOWN, "Constant")
    fits = all(not d and op in known for d, op in used)
    return fits and not is_own(function) and len(function) <= _SMALL


def _is_part(ctx: Context, value: ir.Value) -> bool:
    """Return whether a value is no norm yet and may become one."""
    fact = ctx.facts.get(value)
    if isinstance(fact, Norm):
        return fact.owner is None
    if fact is None:
        return standard(value.producer()) == "LpNormalization"
    return isinstance(fact, Square | Radial | WeightedInverse)


def _graph(ctx: Context, graph: ir.Graph | ir.Function, scope: str, model: ir.Model) -> None:
    stack: list[tuple[Iterable[ir.Node], str, ir.Graph | None]] = [(iter(graph), scope, None)]
    in_function = isinstance(graph, ir.Function)
    while stack:
        nodes, where, inner = stack[-1]
        ctx.scope = where
        for node in nodes:
            domain = node.domain
            if not domain:
                if node.inputs and node.outputs:
                    _transfer(ctx, node, in_function)
                if node.op_type in _KNOWN:
                    continue
            elif domain == DOMAIN and node.op_identifier() not in ctx.foreign:
                if node.op_type.startswith((*operators.KINDS, *operators.QUANTIZED_KINDS)):
                    native(ctx, node)
            elif domain == operators.MICROSOFT_DOMAIN and node.op_type == operators.SKIP_SIMPLIFIED:
                native(ctx, node)
            elif (called := node.op_identifier()) in model.functions:
                if any(v is not None and _is_part(ctx, v) for v in node.inputs):
                    ctx.crossed.add(called)
                ctx.calls.setdefault(called, []).append([_passed(ctx, v) for v in node.inputs])
            elif domain == operators.MICROSOFT_DOMAIN and node.op_type.startswith(_QUANTIZED):
                radials.quantize(ctx, node)
            subgraphs = bodies_of(node)
            if subgraphs:
                # The rest of this graph waits: what the subgraph captures is known by now.
                name = node.name or node.op_type
                for label, subgraph in reversed(subgraphs):
                    ctx.owners[subgraph] = node
                    stack.append((iter(subgraph), f"{where}/{name}.{label}", subgraph))
                break
        else:
            stack.pop()
            if inner is not None:
                structural.leave(ctx, ctx.owners[inner], inner)


def _passed(ctx: Context, value: ir.Value | None) -> Info:
    return UNKNOWN if value is None else (ctx.types.dtype(value), ctx.types.shape(value))


def _transfer(ctx: Context, node: ir.Node, in_function: bool) -> None:
    """Make the fact of the output from those of the operands."""
    if in_function and depends_on_caller(node):
        radials.by_reference(ctx, node)
        return
    try:
        source = earlier(ctx, node)
        if source is not None:
            structural.unchanged(ctx, node, source)
        elif (transfer := _STANDARD.get(node.op_type)) is not None:
            transfer(ctx, node)
    except Exception as error:  # a defect of ours, told as one, costs one norm and not the command
        ctx.opaque.append(refuse(
            node, "recognition-failed", "recognition failed at this node",
            f"{type(error).__name__}: {error}", "please report this model", ctx.scope,
        ))  # fmt: skip


def _seed(ctx: Context, function: ir.Function, calls: list[list[Info]]) -> None:
    """Types and shapes of a function's inputs where all its calls agree."""
    if not calls:
        return
    for position, value in enumerate(function.inputs):
        seen = [call[position] if position < len(call) else UNKNOWN for call in calls]
        dtypes = {info[0] for info in seen}
        dtype = dtypes.pop() if len(dtypes) == 1 else None
        ctx.types.seed(value, (dtype, common([info[1] for info in seen])))
