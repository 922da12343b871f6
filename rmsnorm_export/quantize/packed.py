"""Queries, keys and values of an attention as one product of blocks.

ONNX Runtime takes less time for one product than for three, and its attention reads what it gives.
Where positions are rotated between, that is split: graphs of one folder keep the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

_COLUMNS = "N"


def pack_attentions(model: ir.Model) -> None:
    """Make one product of the three before each GroupQueryAttention, in place, in opset 13."""
    for attention in [node for node in model.graph if node.op_type == "GroupQueryAttention"]:
        products = [_product(value) for value in attention.inputs[:3]]
        present = [node for node in products if node is not None]
        if len(present) == 3 and _differ_in_weights_alone(present):
            _pack(model.graph, attention, present)
    model.graph.sort()


def _product(value: ir.Value | None) -> ir.Node | None:
    """Return the product of blocks that a value is, as it is or rotated."""
    node = None if value is None else value.producer()
    if node is not None and node.op_type == "RotaryEmbedding" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node if node is not None and node.op_type == "MatMulNBits" else None


def _differ_in_weights_alone(products: Sequence[ir.Node]) -> bool:
    """Return whether products read the same and round alike, and nothing else reads theirs."""
    forms = [
        {name: attribute.value for name, attribute in node.attributes.items() if name != _COLUMNS}
        | {"reads": node.inputs[0], "inputs": len(node.inputs)}
        for node in products
    ]
    own = [value for node in products for value in (*node.inputs[1:], node.outputs[0])]
    alone = all(value is not None and len(value.uses()) == 1 for value in own)
    return alone and forms[0] == forms[1] == forms[2]


def _pack(graph: ir.Graph, attention: ir.Node, products: Sequence[ir.Node]) -> None:
    columns = [node.attributes.get_int(_COLUMNS, 0) for node in products]
    how = {name: attribute.value for name, attribute in products[0].attributes.items()}
    inputs, tape = [products[0].inputs[0]], ir.tape.Tape()
    for values in zip(*(node.inputs[1:] for node in products), strict=True):
        arrays = [value.const_value.numpy() for value in values if value and value.const_value]
        name = f"{values[0].name}_and_others" if values[0] else None
        inputs.append(tape.initializer(ir.tensor(np.concatenate(arrays), name=name)))
        graph.register_initializer(tape.initializers[-1])
    how[_COLUMNS] = sum(columns)
    packed = tape.op("MatMulNBits", inputs, how, domain=products[0].domain, name=products[0].name)
    outputs = [node.outputs[0] for node in products]
    if outputs == list(attention.inputs[:3]) and "qk_norm_epsilon" not in attention.attributes:
        graph.insert_before(products[0], tape.nodes)
        for index, value in enumerate((packed, None, None)):
            attention.replace_input_with(index, value)
    else:
        sizes = tape.op("Constant", [], {"value_ints": columns})
        parts = tape.op_multi_out("Split", [packed, sizes], {"axis": -1}, num_outputs=3)
        graph.insert_before(products[0], tape.nodes)
        for old, new in zip(outputs, parts, strict=True):
            old.replace_all_uses_with(new)
    graph.remove(products, safe=True)
