"""The attentions of a decoder's graph, and why one of them does not become one node."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

import onnx_ir as ir
from onnx_ir.passes import common as passes

from rmsnorm_export.proof.comparison import WrongError
from rmsnorm_export.recognize.consts import Constants, producer_of

ATTENTION = "GroupQueryAttention"
_PRODUCTS = ("MatMul", "FusedMatMul")
VIEWS = ("Transpose", "Reshape", "Expand", "Unsqueeze", "Squeeze", "Mul", "Div", "Identity")
"""What stands between a cache and the products of an attention that reads it."""
_JOINS = ("Concat", "ScatterND")
"""What puts keys together of parts, e.g. those that are rotated and the others."""
_WRITES = ("ScatterND", "ScatterElements")
_BIAS = 10
"""The input of an attention node that is added to its scores."""
_FAR = 16
"""More than there are nodes on a way through one attention."""

UNKNOWN = "the number of its heads is computed in the graph, as TorchScript's exporter writes it"
WRITTEN = "its cache of fixed size is written by rows, which comes after fusions: export with them"
_FORM = "its form is none that transformers' fusions know"
_BETWEEN = {
    "Tanh": "its scores are capped (Tanh)",
    "Concat": "a sink stands beside its scores, which transformers' fusions do not take in",
}
"""What an operator between the scores and the Softmax says."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """One attention that is spelled out, over the cache of a layer.

    Attributes:
        query: of its scores.
        keys, values: the outputs of the graph that it reads.
        between: operators from its scores to its Softmax.
        derived: its keys or values are computed from what is cached.
    """

    query: ir.Value
    keys: ir.Value
    values: ir.Value
    between: tuple[ir.Node, ...]
    derived: bool

    @property
    def layer(self) -> str:
        """Its number, as the name of its keys has it."""
        number = re.search(r"\.(\d+)\.", str(self.keys.name))
        return number[1] if number else str(self.keys.name)

    @property
    def heads_are_known(self) -> bool:
        """Return whether the graph declares how many heads ask."""
        shape = self.query.shape
        return shape is not None and len(shape) == 4 and isinstance(shape[1], int)

    def reason(self) -> str:
        """Return why transformers' fusions leave it, as far as is known."""
        widths = [_last(self.keys), _last(self.values)]
        if not self.heads_are_known:
            return UNKNOWN
        if self.derived:
            return "its keys and values are computed from what is cached"
        if widths[0] != widths[1]:
            return f"its keys are {widths[0]} wide, its values {widths[1]}"
        if isinstance(widths[0], int) and widths[0] % 8:
            return f"its heads are {widths[0]} wide, which is no multiple of 8"
        operators = {node.op_type for node in self.between}
        named = [why for name, why in _BETWEEN.items() if name in operators]
        writer = self.keys.producer()
        by_rows = writer is not None and writer.op_type == "ScatterElements"
        return named[0] if named else WRITTEN if by_rows else _FORM


def attentions(graph: ir.Graph) -> list[Attention]:
    """Return the attentions over a cache that are spelled out, in their order."""
    softmaxes = (node for node in graph if node.op_type == "Softmax")
    found = (_attention(softmax) for softmax in softmaxes)
    return [one for one in found if one is not None]


def left_apart(before: ir.Graph, after: ir.Graph) -> dict[str, tuple[str, ...]]:
    """Map reasons to the layers whose attention is still spelled out after the fusions."""
    left = {one.keys.name for one in attentions(after)}
    reasons: dict[str, tuple[str, ...]] = {}
    for one in attentions(before):
        if one.keys.name in left:
            reasons[one.reason()] = (*reasons.get(one.reason(), ()), one.layer)
    return reasons


def _attention(softmax: ir.Node) -> Attention | None:
    scores, between = _product_above(softmax)
    weighted = next(_below(softmax), None)
    if scores is None or weighted is None or scores.inputs[0] is None:
        return None
    keys, first = _cached(scores.inputs[1])
    values, second = _cached(weighted.inputs[1])
    if keys is None or values is None:
        return None
    return Attention(scores.inputs[0], keys, values, between, first or second)


def _product_above(softmax: ir.Node) -> tuple[ir.Node | None, tuple[ir.Node, ...]]:
    """Return the product of two computed values of which a Softmax is taken, and what is between.

    The nearest one: a mask is made by operators of other kinds.
    """
    ways: list[tuple[ir.Value | None, tuple[ir.Node, ...]]] = [(softmax.inputs[0], ())]
    for value, between in ways:
        node = None if value is None else value.producer()
        if node is None or len(between) > _FAR // 2:
            continue
        if node.op_type in _PRODUCTS and node.inputs[1] and node.inputs[1].producer():
            return node, between
        if node.op_type not in _PRODUCTS:
            ways += [(one, (*between, node)) for one in node.inputs]
    return None, ()


def _below(softmax: ir.Node) -> Iterator[ir.Node]:
    """Yield the products of values by what a Softmax gives."""
    ways = [softmax.outputs[0]]
    for value in ways:
        for use in value.uses():
            if use.node.op_type in _PRODUCTS:
                yield use.node
            elif len(ways) < _FAR:
                ways.append(use.node.outputs[0])


def _cached(value: ir.Value | None) -> tuple[ir.Value | None, bool]:
    """Return the output of the graph of which keys or values are views; and whether they are more.

    A prompt without a cache gives its keys, or writes them into one, and reads them as they are.
    """
    ways = [(value, False)]
    for one, derived in ways:
        cache = None if one is None else cache_of(one)
        if cache is not None:
            return cache, derived
        node = None if one is None else one.producer()
        if node is not None and len(ways) < 4 * _FAR:
            parts = node.inputs if node.op_type in _JOINS else node.inputs[:1]
            ways += [(part, derived or node.op_type not in VIEWS) for part in parts]
    return None, False


def cache_of(keys: ir.Value) -> ir.Value | None:
    """Return the output of the graph that keys or values are, or into which they are written."""
    if keys.is_graph_output():
        return keys
    ways = [(keys, False)]
    for value, is_written in ways:
        if is_written and value.is_graph_output():
            return value
        for use in value.uses():
            writes = use.node.op_type in _WRITES and use.idx == 2
            if writes or use.node.op_type == "Transpose":
                ways.append((use.node.outputs[0], is_written or writes))
    return None


def _last(value: ir.Value) -> int | ir.SymbolicDim | None:
    return value.shape[-1] if value.shape else None


def cap_of(graph: ir.Graph) -> float | None:
    """Return the cap of ``cap * tanh(scores / cap)`` where every attention has it."""
    constants = Constants()
    caps = [_cap(one.between, constants) for one in attentions(graph)]
    return caps[0] if caps and len(set(caps)) == 1 else None


def lift_caps(model: ir.Model) -> None:
    """Take the caps off the scores, in place; `put_caps` has to follow."""
    constants = Constants()
    for one in attentions(model.graph):
        if _cap(one.between, constants) is not None:
            scaled, tanh, division = _capping(one.between)
            scores = division.inputs[0]
            assert scores is not None
            scaled.outputs[0].replace_all_uses_with(scores)
            model.graph.remove([scaled, tanh, division], safe=True)


def put_caps(model: ir.Model, cap: float, count: int) -> None:
    """Let attention nodes cap their scores, in place.

    Raises:
        WrongError: there are fewer of them than attentions that had the cap.
    """
    nodes = [node for node in model.graph.all_nodes() if node.op_type == ATTENTION]
    if len(nodes) != count:
        raise WrongError(f"{len(nodes)} of {count} attentions that cap their scores are one node")
    for node in nodes:
        node.attributes["softcap"] = ir.AttrFloat32("softcap", cap)


def _capping(between: Sequence[ir.Node]) -> list[ir.Node]:
    """Return the three nodes of a cap, the last one first; others where it is none."""
    place = next((i for i, node in enumerate(between) if node.op_type == "Tanh"), 0)
    return [*between[max(place - 1, 0) : place + 2]]


def _cap(between: Sequence[ir.Node], constants: Constants) -> float | None:
    nodes = _capping(between)
    if [node.op_type for node in nodes] != ["Mul", "Tanh", "Div"]:
        return None
    scaled, tanh, division = nodes
    alone = all(len(node.outputs[0].uses()) == 1 for node in nodes)
    factors = [constants.scalar(v) for v in scaled.inputs if v is not tanh.outputs[0]]
    cap = constants.scalar(division.inputs[1])
    return cap if alone and cap is not None and cap > 0 and factors == [cap] else None


def leave_unseen_rows(model: ir.Model) -> None:
    """Take away the zeros that PyTorch puts in rows to which the mask shows nothing, in place.

    A token sees itself, so that such rows are padding, which nothing sees: where a mask says it of
    columns, ``[batch, tokens]``. Of finite numbers attention nodes give something finite there, the
    mean of all values, or zeros (ONNX Runtime 1.31). The choice took 2 % of a token in 4 bits.
    """
    ranks = {str(value.name): len(value.shape or ()) for value in model.graph.inputs}
    if ranks.get("attention_mask") != 2:  # the caller's own rows
        return
    constants = Constants()
    for node in [node for node in model.graph if node.op_type == "Where"]:
        attention = node.inputs[2].producer() if node.inputs[2] is not None else None
        if attention is None or attention.op_type != ATTENTION or len(attention.inputs) <= _BIAS:
            continue
        shown = _shown_by(attention.inputs[_BIAS], constants)
        zeros = constants.scalar(node.inputs[1]) == 0
        if zeros and shown is not None and _counted(node.inputs[0], constants) is shown:
            rows, chosen = attention.outputs[0], node.outputs[0]
            rows.type, rows.shape = chosen.type, chosen.shape  # which quantizing asks for
            chosen.replace_all_uses_with(rows)
    passes.RemoveUnusedNodesPass()(model)


def _shown_by(bias: ir.Value | None, constants: Constants) -> ir.Value | None:
    """Return the mask by which a bias is chosen between two finite numbers."""
    choice = producer_of(bias, "Where")
    hidden = None if choice is None else producer_of(choice.inputs[0], "Not")
    if choice is None or hidden is None or choice.inputs[1] is None:
        return None
    is_finite = None not in map(constants.scalar, choice.inputs[1:])
    return hidden.inputs[0] if is_finite and choice.inputs[1].dtype == ir.DataType.FLOAT else None


def _counted(condition: ir.Value | None, constants: Constants) -> ir.Value | None:
    """Return the mask of which a condition says that a row shows nothing."""
    while (view := producer_of(condition, "Reshape", "Transpose")) is not None:
        condition = view.inputs[0]
    less = producer_of(condition, "Less")
    counts = None if less is None else producer_of(less.inputs[0], "ReduceSum")
    if less is None or counts is None or constants.scalar(less.inputs[1]) != 1:
        return None
    cast = producer_of(counts.inputs[0], "Cast")
    by_rows = constants.ints(counts.inputs[1]) == (-1,)
    return cast.inputs[0] if cast is not None and by_rows else None
