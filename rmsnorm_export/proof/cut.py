"""Cut a few nodes out of a model into a small model of their own; the source is never changed.

Names in the small model are given in the order of the walk, so equal cuts of different layers
serialise to equal bytes: a proof or a session made for one serves all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass

from rmsnorm_export.errors import InputError
from rmsnorm_export.recognize.bodies import inputs_of
from rmsnorm_export.recognize.consts import Constants, standard
from rmsnorm_export.recognize.shape_values import static
from rmsnorm_export.recognize.types import Types

MAX_CONSTANT = 64
"""Largest constant, in elements, that is copied: epsilon, axes, shapes; never a weight."""

MAX_NODES = 512
"""A norm has a few dozen nodes; a walk beyond this has missed its inputs."""

_MOST_PENDING = 1 << 16
"""Values that wait for their nodes: only a cycle has more."""

TypeOf = Callable[[ir.Value], int | None]
SizesOf = Callable[[ir.Value], Sequence[int | None] | None]


def cut(
    outputs: Sequence[ir.Value],
    inputs: Sequence[ir.Value],
    *,
    opset_imports: Mapping[str, int],
    functions: Sequence[ir.Function] = (),
    type_of: TypeOf = lambda value: value.dtype,
    sizes_of: SizesOf = lambda _: None,
    constants: Iterable[ir.Value] = (),
    aliases: Mapping[ir.Value, ir.Value] | None = None,
) -> ir.Model:
    """Return a model that computes ``outputs`` from ``inputs``: copies of the nodes between them.

    Works on values of the main graph, of a subgraph and of a function body alike, and on nodes that
    are in no graph yet: producers are followed, wherever they are. Constants of at most 64
    elements, or of one number alone, are copied; nothing else is read.

    Args:
        outputs: values to compute; named ``y0``, ``y1``, ... in the new model.
        inputs: values at which the walk stops; graph inputs ``x0``, ``x1``, ... of the new model,
            whether they are used or not.
        opset_imports: domain -> version, those of the graph or function that holds the nodes.
        functions: model-local functions of the source; the ones that are called come along.
        type_of: ONNX element type of any value, where it is known.
        sizes_of: the sizes that a value has in the runs of the new model, where they are known:
            what depends on the shape of a value alone does not need the value.
        constants: initializers that are copied whatever their size, such as those that a rewrite
            has made.
        aliases: values at which the walk stops as well -> the input that has their elements.

    Raises:
        InputError: the walk reached a value that is neither given nor a small constant (a graph
            input, a weight), a reference to an attribute of the function that holds it, or more
            than 512 nodes.
    """
    walk = _Walk(inputs, frozenset(constants), aliases or {}, type_of, sizes_of)
    walk.reach(outputs)
    for value, new in zip(inputs, walk.inputs, strict=True):
        new.type = _tensor_type(type_of(value))
    new_outputs = [walk.output(value, f"y{index}") for index, value in enumerate(outputs)]
    graph = ir.Graph(
        walk.inputs,
        new_outputs,
        nodes=walk.nodes,
        initializers=walk.constants,
        opset_imports=dict(opset_imports),
        name="cut",
    )
    model = ir.Model(graph, ir_version=10, functions=functions)
    RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    return model


def sizes_by(types: Types, names: Mapping[str, int]) -> SizesOf:
    """Return the sizes of any value where those of these names are known, None for unknown ones."""

    def sizes_of(value: ir.Value) -> list[int | None] | None:
        dims = types.shape(value)
        return None if dims is None else [names.get(d) if isinstance(d, str) else d for d in dims]

    return sizes_of


class _Walk:
    """Copies of the nodes between ``inputs`` and the values asked for, in topological order."""

    def __init__(
        self,
        inputs: Sequence[ir.Value],
        allowed: frozenset[ir.Value],
        aliases: Mapping[ir.Value, ir.Value],
        type_of: TypeOf,
        sizes_of: SizesOf,
    ) -> None:
        self._allowed, self._type_of, self._sizes_of = allowed, type_of, sizes_of
        self.inputs = [ir.Value(name=f"x{index}") for index in range(len(inputs))]
        self.nodes: list[ir.Node] = []
        self.constants: list[ir.Value] = []
        self._copies: dict[ir.Value, ir.Value] = dict(zip(inputs, self.inputs, strict=True))
        self._copies.update({alias: self._copies[value] for alias, value in aliases.items()})
        # A source may cast one value twice, once for the square and once for the numerator.
        self._views = {_view(value): copy for value, copy in self._copies.items()}
        self._names = map("t{}".format, itertools.count())
        self._count = 0

    def reach(self, outputs: Sequence[ir.Value]) -> None:
        """Copy everything that ``outputs`` need. Iterative: a chain may be deep."""
        stack: list[tuple[ir.Value, bool]] = [(value, False) for value in reversed(outputs)]
        while stack:
            value, ready = stack.pop()
            if value in self._copies:
                continue
            node = value.producer()
            if (same := self._views.get(_view(value))) is not None:
                self._copies[value] = same
            elif node is None:
                self._copies[value] = self._constant(value)
            elif ready:
                self._copy(node)
            elif len(stack) > _MOST_PENDING:
                raise _endless(node)
            else:
                stack.append((value, True))
                sources = self._sources(node)
                stack.extend((source, False) for source in sources if source is not None)

    def output(self, value: ir.Value, name: str) -> ir.Value:
        """Return a copy of ``value`` as graph output of this name: an Identity, as a value that is
        also an input, or is asked for twice, must have a second name."""
        new = ir.Value(name=name, type=_tensor_type(self._type_of(value)))
        node = ir.Node("", "Identity", [self._copies[value]], outputs=[new], name=f"out_{name}")
        self.nodes.append(node)
        return new

    def _copy(self, node: ir.Node) -> None:
        self._count += 1
        if self._count > MAX_NODES:
            raise _endless(node)
        op_type, sources = node.op_type, self._sources(node)[: len(node.inputs)]
        attributes = [self._attribute(node, attribute) for attribute in node.attributes.values()]
        if len(sources) < len(node.inputs):
            sizes = self._run_sizes(node)
            op_type = "Cast" if sizes is None else "Constant"
            attributes = [ir.AttrInt64("to", self._type_of(node.outputs[0]) or 0)]
            if sizes is not None:
                attributes = [ir.AttrTensor("value", ir.tensor(np.array(sizes, np.int64)))]
        new = ir.Node(
            node.domain,
            op_type,
            [None if source is None else self._copies[source] for source in sources],
            attributes,
            overload=node.overload,
            outputs=[
                ir.Value(name=next(self._names) if out.name != "" else "") for out in node.outputs
            ],
            name=f"n{len(self.nodes)}",
        )
        self.nodes.append(new)
        self._copies.update(zip(node.outputs, new.outputs, strict=True))

    def _attribute(self, node: ir.Node, attribute: ir.Attr) -> ir.Attr:
        """Return the attribute for a copy of the node.

        Raises:
            InputError: it is given from outside.
        """
        if attribute.is_ref():
            label = f"node {_node_name(node)}"
            where = f"attribute {attribute.name} of {label} refers to {attribute.ref_attr_name}"
            why = "an attribute depends on the function's caller"
            raise _no_cut(why, where, "inline the function first")
        if attribute.type != ir.AttributeType.GRAPH:
            return attribute
        return ir.AttrGraph(attribute.name, self._body(attribute.as_graph()))

    def _body(self, graph: ir.Graph) -> ir.Graph:
        """Return a copy of a body of control flow, whose values from outside are copied already."""
        outer, self.nodes = self.nodes, []
        types = map(_tensor_type, map(self._type_of, graph.inputs))
        inputs = [ir.Value(name=next(self._names), type=one) for one in types]
        self._copies |= dict(zip(graph.inputs, inputs, strict=True))
        self._copies |= {value: self._constant(value) for value in graph.initializers.values()}
        for node in graph:
            self._copy(node)
        outputs = [self.output(value, next(self._names)) for value in graph.outputs]
        body, self.nodes = ir.Graph(inputs, outputs, nodes=self.nodes, name="body"), outer
        return body

    def _sources(self, node: ir.Node) -> Sequence[ir.Value | None]:
        """Return the inputs whose elements matter: not the model of a CastLike of known type, nor a
        value of known sizes of which only the shape is asked. Either may come from before the cut.
        """
        if standard(node) == "CastLike" and self._type_of(node.outputs[0]) is not None:
            return node.inputs[:1]
        return inputs_of(node) if self._run_sizes(node) is None else ()

    def _run_sizes(self, node: ir.Node) -> Sequence[int] | int | None:
        """Return the result of a Shape or Size in the runs of the new model, where it is known."""
        value = node.inputs[0] if standard(node) in ("Shape", "Size") else None
        sizes = None if value is None or value in self._copies else self._sizes_of(value)
        if sizes is None:
            return None
        start = node.attributes.get_int("start", 0)
        numbers = static(sizes[start : node.attributes.get_int("end", None)])
        return numbers if numbers is None or node.op_type != "Size" else math.prod(numbers)

    def _constant(self, value: ir.Value) -> ir.Value:
        tensor, missing = value.const_value, ""
        if tensor is None or value.is_graph_input():
            missing = f"{value.name!r}, an input of the graph or function"
        elif not (
            tensor.size <= MAX_CONSTANT
            or value in self._allowed
            or Constants().repeated(value) is not None
        ):
            missing = f"{value.name!r}, an initializer of {tensor.size} elements"
        if tensor is None or missing:
            why, fix = "they need a value that is not given", "give it among the inputs of the cut"
            raise _no_cut(why, missing, fix)
        if tensor.dtype != ir.DataType.STRING:
            try:
                # A copy: an external tensor would tie the new model to the folder of the old one.
                tensor = ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype)
            except (OSError, ValueError, TypeError) as error:
                where, fix = f"{value.name!r}: {error}", "check the external data of the model"
                raise _no_cut("a constant cannot be read", where, fix) from error
        self.constants.append(ir.val(f"c{len(self.constants)}", const_value=tensor))
        return self.constants[-1]


def _tensor_type(element: int | None) -> ir.TensorType | None:
    return None if element is None else ir.TensorType(ir.DataType(element))


def _view(value: ir.Value) -> tuple[ir.Value, tuple[int, ...]]:
    """Return the value before Identity and Cast nodes, and the types that it was cast to."""
    casts: list[int] = []
    for _ in range(MAX_NODES):
        node = value.producer()
        if node is None or node.domain or len(node.inputs) != 1:
            break
        source, to = node.inputs[0], node.attributes.get("to")
        if source is None or node.op_type not in ("Identity", "Cast"):
            break
        if node.op_type == "Cast":
            if to is None or to.is_ref():
                break
            casts.append(to.as_int())
        value = source
    return value, tuple(casts)


def _endless(node: ir.Node) -> InputError:
    return _no_cut(
        "the walk does not end at the given inputs",
        f"more than {MAX_NODES} nodes, the last {_node_name(node)}",
        "give the values at which the cut has to stop",
    )


def _no_cut(why: str, found: str, fix: str) -> InputError:
    return InputError(f"The nodes cannot be cut out: {why}.", found=found, fix=fix)


def _node_name(node: ir.Node) -> str:
    return repr(node.name) if node.name else f"of type {node.op_type}"
