"""A model in half precision, functions inlined; what is found there is named as in the file."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from rmsnorm_export.graph.functions import inline, own_functions
from rmsnorm_export.graph.order import graphs_in, values_in
from rmsnorm_export.graph.retype import retype
from rmsnorm_export.op.native import SKIP_SIMPLIFIED
from rmsnorm_export.op.spec import BFLOAT16, FLOAT, FLOAT16
from rmsnorm_export.recognize.refusal import name_of

_SUM = 4
"""Outputs of SkipSimplifiedLayerNormalization, the sum the last."""
_NODE, _OUTPUT, _OWN = (f"rmsnorm_export.{one}" for one in ("node", "output", "own"))
"""On what is made of a node: its name, that of its first output; it is of this package."""


def in_half(source: ir.Model) -> tuple[ir.Model, bool]:
    """Return a copy with bodies in the place of calls, and whether it was converted to float16.

    A model without any float16 is made what a converter makes of it. The bodies of this package's
    operators stay as they are: converters leave their Casts to float32 alone.

    Raises:
        ValueError: there are too many calls, or of functions of another opset.
    """
    model = source.clone()
    own = {function.identifier(): function for function in own_functions(model)}
    for node in model.graph.all_nodes():
        node.metadata_props[_NODE] = name_of(node)
        node.metadata_props[_OUTPUT] = next((v.name for v in node.outputs if v.name), "")
        if node.op_identifier() in own:
            node.metadata_props[_OWN] = ""
        if node.op_type == SKIP_SIMPLIFIED and len(node.outputs) < _SUM:
            node.resize_outputs(_SUM)
            for value in node.outputs:
                value.name = value.name or ""
            node.outputs[-1].name = f"{node.outputs[0].name}.sum"
    stored = (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values())
    converted = all(value.dtype != FLOAT16 for value in stored)
    if converted:
        for key in own:
            del model.functions[key]
        retype(model, dict.fromkeys((FLOAT, BFLOAT16), ir.DataType.FLOAT16))
        model.functions.update(own)
    return inline(model), converted


def node_name(node: ir.Node) -> str:
    """Return the name of a node in the file, of the call that it is of, or of what it rounds."""
    rounded = next(iter(node.inputs), None)
    if _NODE in node.metadata_props or rounded is None:
        return node.metadata_props.get(_NODE) or name_of(node)
    maker = rounded.producer()
    return (rounded.name or "") if maker is None else node_name(maker)


class FileNames:
    """Names of the values of a model ``in_half``.

    Args:
        source: the graph before, whose names they are.
    """

    def __init__(self, source: ir.Graph) -> None:
        self._names = {v.name for graph in graphs_in(source) for v in values_in(graph)}

    def of(self, value: ir.Value) -> str:
        """Return the name of a value, or of what the call that makes it returns."""
        node = value.producer()
        if value.name in self._names or node is None:
            return value.name or ""
        if _OUTPUT not in node.metadata_props and node.inputs and node.inputs[0] is not None:
            return self.of(node.inputs[0])  # a stored weight, cast to float16
        return node.metadata_props.get(_OUTPUT, "")

    def kept(self, nodes: Iterable[ir.Node], *, inside: bool = True) -> tuple[str, ...]:
        """Return the names of what nodes compute that are kept in float32.

        Args:
            nodes: of the model.
            inside: nodes of this package's operators, which say themselves in which type they
                compute, are kept by keeping these.
        """
        own = (node for node in nodes if inside or _OWN not in node.metadata_props)
        names = (self.of(value) for node in own for value in node.outputs)
        return tuple(dict.fromkeys(filter(None, names)))
