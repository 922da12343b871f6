"""Transposes next to float16 norms, so that ONNX Runtime loads the result.

On the CPU it runs a float16 MatMul in float32, between Casts of its own, and a Transpose too, where
the nodes around it have no float16 kernel. A norm and a Cast have one: the Transpose next to them
stays float16. A fusion then swaps it with the Cast before the MatMul before it checks whether
the MatMul can take the transposed operand. Where the first axis moves and the operands differ in
rank it cannot, the graph is not resolved again, and NchwcTransformer follows the null pointer of a
node without a schema. A Transpose between Casts of the file computes the same and is not swapped.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from rmsnorm_export.graph.names import Names
from rmsnorm_export.graph.order import nodes_of
from rmsnorm_export.op.spec import FLOAT, FLOAT16
from rmsnorm_export.printable import plural, short
from rmsnorm_export.recognize.consts import Constants, standard
from rmsnorm_export.recognize.refusal import name_of
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.rewrite.apply import take_over
from rmsnorm_export.runtime.consumers import Consumer
from rmsnorm_export.runtime.support import FACTS

_RUNTIME = FACTS["transposed_casts"]

_NEUTRAL = {"Mul": 1.0, "Div": 1.0, "Add": 0.0, "Sub": 0.0}
"""Operators that ONNX Runtime removes where the other operand is this number."""

_REMOVED = ("Identity", "Dropout", "Expand", "Reshape")
"""Operators that it removes where they change nothing."""


def widen_transposes(
    model: ir.Model,
    types: Types,
    new: Collection[ir.Node],
    runtime: Consumer | None,
    *,
    beside: str = "a norm",
) -> tuple[str, ...]:
    """Put Casts around Transposes that would end ONNX Runtime; return a note on them.

    Args:
        model: changed.
        types: of its values.
        new: the nodes beside which a Transpose was not before.
        runtime: what the model is written for; None: any.
        beside: what those nodes are.
    """
    if runtime is not None and not runtime.name.startswith(_RUNTIME["name"]):
        return ()
    search, unique = _Search(model, types, new), Names(model)
    risky: dict[ir.Node, None] = {}
    for node in nodes_of(model):
        if node.op_type in ("MatMul", "FusedMatMul"):
            risky |= dict.fromkeys(search.transposes(node))
    if not risky:
        return ()
    listed = short(", ".join(map(name_of, risky)), 200)
    for node in risky:
        _widen(node, unique)
    versions = f"{_RUNTIME['since']} to {_RUNTIME['seen'][-1]}"
    note = f"{plural(len(risky), 'Transpose')} between {beside} and a MatMul ({listed}) "
    note += f"put between Casts: ONNX Runtime {versions} ends by a signal at load otherwise"
    return (note,)


class _Search:
    """The nodes between products and the new nodes of a plan."""

    def __init__(self, model: ir.Model, types: Types, new: Collection[ir.Node]) -> None:
        self.model, self.types, self.constants = model, types, Constants()
        self.written = new

    def transposes(self, product: ir.Node) -> list[ir.Node]:
        """Return the Transposes between new nodes and a product, if they are risky."""
        first, second = product.inputs[:2]
        for value, other in ((first, second), (second, first)):
            if value is None or other is None or self.types.dtype(value) != FLOAT16:
                continue
            nodes, source = self._way(value, product.graph)
            moved = [node for node in nodes if node.op_type == "Transpose"]
            order = self._composed(moved)
            equal = self.types.rank(other) == len(order)
            if _moves_batch(order) and not equal and self._is_next_to_new(nodes, source):
                return moved
        return []

    def _way(
        self, value: ir.Value, graph: ir.Graph | ir.Function | None
    ) -> tuple[list[ir.Node], ir.Value]:
        """Return the nodes that rearrange or copy, the last first, and their input."""
        nodes: list[ir.Node] = []
        while (node := value.producer()) is not None and node.graph is graph:
            source = self._rearranged(node)
            if source is None:
                break
            nodes.append(node)
            value = source
        return nodes, value

    def _rearranged(self, node: ir.Node) -> ir.Value | None:
        """Return the input whose elements are a node's output; None where it computes."""
        operator, inputs = standard(node), node.inputs
        if operator == "Transpose" or operator in _REMOVED:
            ranks = {self.types.rank(v) for v in (inputs[0], node.outputs[0]) if v is not None}
            return inputs[0] if len(ranks - {None}) < 2 else None
        pairs = (inputs, inputs[::-1]) if operator in _NEUTRAL else ()
        neutral = (a for a, b in pairs if self.constants.scalar(b) == _NEUTRAL[operator])
        return next(neutral, None)

    def _composed(self, transposes: list[ir.Node]) -> list[int]:
        """Return the order of axes after Transposes, the last of which is first."""
        order: list[int] = []
        for node in reversed(transposes):
            source = node.inputs[0]
            rank = 0 if source is None else self.types.rank(source) or 0
            axes = node.attributes.get_ints("perm", range(rank)[::-1])
            if order and len(axes) != len(order):
                return []
            order = [order[axis] for axis in axes] if order else list(axes)
        return order

    def _is_next_to_new(self, nodes: list[ir.Node], source: ir.Value) -> bool:
        """Return whether a new node with a float16 kernel makes the source, or reads a result."""
        reads = (use.node for node in nodes for use in node.outputs[0].uses())
        maker = source.producer()
        if any(node in self.written for node in reads):
            return True
        if maker is None or maker not in self.written:
            return False
        body = self.model.functions.get(maker.op_identifier())
        if body is not None:
            maker = body.outputs[source.index() or 0].producer()
        return standard(maker) not in _NEUTRAL


def _moves_batch(order: list[int]) -> bool:
    """Return whether the first axis is moved after the others, but for the last one."""
    rank = len(order)
    batch, last = [*range(1, rank - 1)], rank - 1
    return rank > 2 and order in ([*batch, 0, last], [*batch, last, 0])


def _widen(node: ir.Node, unique: Names) -> None:
    """Compute a float16 Transpose in float32, between Casts."""
    source, result, stem = node.inputs[0], node.outputs[0], name_of(node)
    assert source is not None
    assert node.graph is not None
    wide, narrow = (
        ir.val(unique(f"{stem}_{end}"), ir.DataType(dtype), shape)
        for end, dtype, shape in (("wide", FLOAT, source.shape), ("cast", FLOAT16, result.shape))
    )
    named = wide.name, narrow.name  # what computes the result may have its name
    take_over(result, narrow, unique)
    result.dtype = ir.DataType.FLOAT
    node.replace_input_with(0, wide)
    ends = (source, FLOAT, wide), (result, FLOAT16, narrow)
    first, second = (
        ir.node("Cast", [value], {"to": dtype}, outputs=[output], name=name)
        for (value, dtype, output), name in zip(ends, named, strict=True)
    )
    node.graph.insert_before(node, first)
    node.graph.insert_after(node, second)
