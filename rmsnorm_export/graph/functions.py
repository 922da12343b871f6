"""Functions put in the place of their calls, within bounds, and listed as readers need them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx
import onnx_ir as ir

from rmsnorm_export.graph.order import all_graphs, nodes_of
from rmsnorm_export.recognize.functions import callees_first, inlined_size, is_own
from rmsnorm_export.recognize.refusal import name_of

_MOST_NODES = 20_000
"""Nodes that may come of a small model: putting them in place takes some seconds."""

_MOST_TIMES = 16
"""How many times larger a large model may become."""


def inline(model: ir.Model, keys: Collection[ir.OperatorIdentifier] | None = None) -> ir.Model:
    """Return ``model``, changed, with bodies of functions (all, or these) for their calls.

    These functions go, those that nothing calls as well.

    Raises:
        ValueError: the functions do not fit their calls, or there are too many calls of calls.
    """
    stored = sum(map(len, all_graphs(model)))
    if inlined_size(model) > max(_MOST_NODES, _MOST_TIMES * stored):
        raise ValueError("its functions call too many others to be put in the place of their calls")
    from onnx_ir.passes import PassError
    from onnx_ir.passes.common import InlinePass

    gone = [*(model.functions if keys is None else keys)]
    for key in gone:
        for node in model.functions[key].all_nodes():
            node.name = name_of(node)  # the pass would invent one, which the file does not know
    complete_calls(model, gone)
    try:
        model = InlinePass(criteria=lambda f: keys is None or f.identifier() in keys)(model).model
    except (PassError, RecursionError) as error:
        raise ValueError(str(error)) from error
    for key in gone:
        model.functions.pop(key, None)  # the pass leaves what it found no call of
    return model


def complete_calls(model: ir.Model, keys: Collection[ir.OperatorIdentifier]) -> None:
    """Name the outputs of functions that calls omit, which onnx_ir's pass wants, in place."""
    for node in nodes_of(model):
        if (key := node.op_identifier()) in keys:
            name = next((value.name for value in node.outputs if value.name), name_of(node))
            node.resize_outputs(len(model.functions[key].outputs))
            for index, value in enumerate(node.outputs):
                value.name = value.name or f"{name}.omitted_{index}"


def write_out(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Return a model with ONNX's own bodies of the operators that ``opset`` lacks.

    Operators without a body stay.
    """
    import onnx.inliner

    schemas = onnx.defs.get_all_schemas()
    names = {one.name for one in schemas if not one.domain and not onnx.defs.has(one.name, opset)}
    lacking = [("", name) for name in sorted(names)]
    return onnx.inliner.inline_selected_functions(model, lacking, inline_schema_functions=True)


def own_functions(model: ir.Model) -> Iterator[ir.Function]:
    """Return the bodies of this package's operators."""
    return (function for function in model.functions.values() if is_own(function))


def count_nodes(model: ir.Model) -> int:
    """Count the nodes, without the bodies of this package's own operators."""
    own = (g for f in own_functions(model) for g in (f.graph, *f.subgraphs()))
    return sum(map(len, all_graphs(model))) - sum(map(len, own))


def sort_functions(model: ir.Model) -> None:
    """List every function after those that it calls, as some readers need them."""
    ordered = {key: model.functions[key] for key in callees_first(model)}
    model.functions.clear()
    model.functions.update(ordered)
