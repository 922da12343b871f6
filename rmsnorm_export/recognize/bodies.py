"""The bodies of If, Loop and Scan: what goes into them, and what comes out.

A body runs any number of times, with other sizes each time: what comes out of a Loop may have the
dimensions of what went in, or those of the body's output, and only what both say is known of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rmsnorm_export.recognize.consts import standard
from rmsnorm_export.recognize.shape_rules import UNKNOWN, Info
from rmsnorm_export.recognize.shape_values import common, outside

FLOW = ("If", "Loop", "Scan")
_GRAPH, _NESTED = ir.AttributeType.GRAPH, (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def bodies_of(node: ir.Node) -> list[tuple[str, ir.Graph]]:
    """The graphs in the attributes of ``node``, with the names of these."""
    return [
        (attribute.name, graph)
        for attribute in node.attributes.data.values()  # the dict itself: asked of every node
        if attribute.type in _NESTED and not attribute.is_ref()
        for graph in ([attribute.value] if attribute.type == _GRAPH else attribute.value)
    ]


def inputs_of(node: ir.Node) -> Sequence[ir.Value | None]:
    """Return the inputs of ``node``, and the values from outside that the graphs in it read."""
    bodies = [body for _, body in bodies_of(node)]
    if not bodies:
        return node.inputs
    own: set[ir.Value | None] = {None}
    read: dict[ir.Value | None, None] = {}
    while bodies:
        body = bodies.pop()
        own.update(body.inputs, body.initializers.values())
        for inner in body:
            own.update(inner.outputs)
            read |= dict.fromkeys(inner.inputs)
            bodies += [graph for _, graph in bodies_of(inner)]
        read |= dict.fromkeys(body.outputs)
    return (*node.inputs, *(value for value in read if value not in own))


def all_bodies(model: ir.Model) -> dict[ir.Graph, ir.Node]:
    """Every graph in an attribute of a node of ``model``, and the node."""
    holders: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    return {
        body: node
        for holder in holders
        for node in holder.all_nodes()
        for _, body in bodies_of(node)
    }


def needs_of_output(node: ir.Node, index: int) -> list[ir.Value]:
    """The values that one of which becomes an output of an If, Loop or Scan: of each body its own,
    and what goes into a Loop that does not run."""
    bodies = [body for _, body in bodies_of(node)]
    place = index + 1 if node.op_type == "Loop" else index
    values = [body.outputs[place] for body in bodies if place < len(body.outputs)]
    if node.op_type == "Loop" and index + 2 < len(node.inputs):
        start = node.inputs[index + 2]
        values += [] if start is None else [start]
    return values


def info_of_output(node: ir.Node, index: int, infos: list[Info]) -> Info:
    """Infer an output from what is known of ``needs_of_output``."""
    dtypes = {dtype for dtype, _ in infos}
    if len(infos) != len(needs_of_output(node, index)) or len(dtypes) != 1:
        return UNKNOWN
    dtype, shapes = dtypes.pop(), [outside(dims) for _, dims in infos]
    if node.op_type == "Loop" and index + 2 >= len(node.inputs):  # one row for every run
        return (dtype, None if shapes[0] is None else (None, *shapes[0]))
    if node.op_type == "Scan" and index >= _states(node):
        axes = node.attributes.get_ints("scan_output_axes", ())
        axis = axes[index - _states(node)] if axes else 0
        return (dtype, None if axis or shapes[0] is None else (None, *shapes[0]))
    return (dtype, common(shapes))


def source_of_input(node: ir.Node, index: int) -> ir.Value | None:
    """Return what goes into a body of ``node`` as its input of this index at first."""
    index += {"Loop": 0, "Scan": 0}.get(standard(node), len(node.inputs))
    return node.inputs[index] if index < len(node.inputs) else None


def info_of_input(node: ir.Node, index: int, source: Info) -> Info:
    """Infer an input of a body from what goes into it at first."""
    if node.op_type == "Loop":
        if index < 2:
            return (ir.DataType.INT64 if index == 0 else ir.DataType.BOOL, ())
        return (source[0], None)
    dtype, dims = source
    if dims is None or index < _states(node):
        return source
    axes = node.attributes.get_ints("scan_input_axes", ())
    axis = axes[index - _states(node)] if axes else 0
    if not -len(dims) <= axis < len(dims):
        return (dtype, None)
    axis %= len(dims)
    return (dtype, (*dims[:axis], *dims[axis + 1 :]))


def _states(node: ir.Node) -> int:
    return len(node.inputs) - node.attributes.get_int("num_scan_inputs", 0)
