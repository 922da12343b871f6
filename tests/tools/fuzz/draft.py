"""A model that is being mutated: its nodes, its values, new nodes and constants."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.metrics import is_float
from tests.tools.feeds import Feeds

_AXES_AS_INPUT = {"ReduceSum": 13, "Squeeze": 13, "Unsqueeze": 13}
"""Opset from which an operator takes its axes as an input; 18 for the other reductions."""


class Draft:
    """A copy of a model, changed in place; its values have the shapes of an example.

    Attributes:
        model: the copy.
        feeds: an example for every input, those that a mutation adds as well.
        rng: of the mutation.

    Raises:
        onnx.shape_inference.InferenceError: the shapes of the model do not fit.
    """

    def __init__(
        self, proto: onnx.ModelProto, feeds: Mapping[str, Array], rng: random.Random, tag: int
    ) -> None:
        self.feeds, self.rng = dict(feeds), rng
        self.model = ir.from_proto(_inferred(proto, self.feeds))
        self._declared = {v.name: v for v in (*proto.graph.input, *proto.graph.output)}
        self._names = itertools.count(1000 * tag)  # unlike those of another mutation

    def finished(self) -> onnx.ModelProto:
        """Return the model with the declared inputs, and with outputs as far as they are true."""
        for scope in self.scopes():
            for value in (value for node in scope for value in node.outputs):
                value.shape = None
        proto = ir.to_proto(self.model)
        outputs = _inferred(proto, self.feeds).graph.output
        for value in proto.graph.input:
            if value.name in self._declared:
                value.CopyFrom(self._declared[value.name])
        for value, inferred in zip(proto.graph.output, outputs, strict=True):
            declared = self._declared.get(value.name, value).type.tensor_type
            actual, before = inferred.type.tensor_type, declared.shape.dim
            sizes = [dim.dim_value for dim in actual.shape.dim]
            pairs = zip(before, sizes, strict=False)
            fits = len(before) == len(sizes) and all(d.dim_value in (0, n) for d, n in pairs)
            kind, dims = actual.elem_type or declared.elem_type, [None] * len(sizes)
            unsaid = helper.make_tensor_type_proto(kind, dims).tensor_type
            true = value.name in self._declared and (fits or not actual.HasField("shape"))
            value.type.tensor_type.CopyFrom(declared if true else unsaid)
            value.type.tensor_type.elem_type = kind
        del proto.graph.value_info[:]
        return proto

    # what there is

    def scopes(self) -> list[ir.Graph]:
        """Return the main graph, those of the functions, and all inside them."""
        roots = [self.model.graph, *(f.graph for f in self.model.functions.values())]
        return [scope for root in roots for scope in (root, *root.subgraphs())]

    def nodes(self, *op_types: str) -> list[ir.Node]:
        """Return the nodes of these types; of any when none is given."""
        nodes = (node for scope in self.scopes() for node in scope)
        return [node for node in nodes if node.op_type in op_types or not op_types]

    def is_main(self, node: ir.Node) -> bool:
        """Return whether a node stands in the main graph itself."""
        return node.graph is self.model.graph

    def pick(self, *op_types: str) -> ir.Node:
        """Draw one of the nodes of these types.

        Raises:
            IndexError: there is none.
        """
        return self.rng.choice(self.nodes(*op_types))

    def edge(self, *op_types: str) -> tuple[ir.Node, int, ir.Value]:
        """Draw a node, a position at which it reads a float, and the float.

        Raises:
            IndexError: there is none.
        """
        return self.rng.choice([
            (node, position, value)
            for node in self.nodes(*op_types)
            for position, value in enumerate(node.inputs)
            if value is not None and is_float(dtype_of(value))
        ])  # fmt: skip

    # what is made

    def fresh(self, hint: str) -> str:
        return f"mutant_{hint}_{next(self._names)}"

    def constant(self, node: ir.Node, array: Any) -> ir.Value:
        """Make a constant for a node, as an initializer or as a node."""
        name = self.fresh("constant")
        tensor = ir.tensor(np.asarray(array), name=name)
        if self.is_main(node) and self.rng.random() < 0.5:
            value = ir.val(name, const_value=tensor)
            self.model.graph.register_initializer(value)
            return value
        return self.put(node, "Constant", value=tensor)

    def put(
        self, node: ir.Node, op_type: str, *inputs: ir.Value | Array, **attributes: Any
    ) -> ir.Value:
        """Put a new node in front of this one; arrays among its inputs become constants."""
        values = [v if isinstance(v, ir.Value) else self.constant(node, v) for v in inputs]
        new = ir.node(op_type, values, attributes)
        new.outputs[0].name = self.fresh(op_type.lower())
        node.prepend(new)
        return new.outputs[0]

    def cast(self, node: ir.Node, value: ir.Value | Array, dtype: np.dtype[Any]) -> ir.Value:
        """Put a Cast in front of a node."""
        return self.put(node, "Cast", value, to=helper.np_dtype_to_tensor_dtype(dtype))

    def over(
        self, node: ir.Node, op_type: str, x: ir.Value, axes: Sequence[int], **attributes: Any
    ) -> ir.Value:
        """`put` an operator with axes, an attribute or an input as the opset wants."""
        if self.model.opset_imports.get("", 1) >= _AXES_AS_INPUT.get(op_type, 18):
            return self.put(node, op_type, x, np.asarray(axes, np.int64), **attributes)
        return self.put(node, op_type, x, axes=list(axes), **attributes)

    def add_input(self, example: Array, hint: str) -> ir.Value:
        """Add an input of the main graph."""
        dtype = ir.DataType.from_numpy(example.dtype)
        value = ir.val(self.fresh(hint), dtype=dtype, shape=example.shape)
        self.model.graph.inputs.append(value)
        self.feeds[value.name or ""] = example
        return value


def _inferred(proto: onnx.ModelProto, feeds: Feeds) -> onnx.ModelProto:
    """Return a copy with every type and shape that follows from an example of the inputs."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(proto)
    del fixed.graph.value_info[:]
    for value in fixed.graph.input:
        if value.name in feeds:
            kind, shape = value.type.tensor_type.elem_type, feeds[value.name].shape
            value.CopyFrom(helper.make_tensor_value_info(value.name, kind, shape))
    for value in fixed.graph.output:
        value.ClearField("type")
    return onnx.shape_inference.infer_shapes(fixed, data_prop=True)


def become(node: ir.Node, op_type: str, x: ir.Value, **attributes: Any) -> None:
    """Turn a node into another one of a single input, with the same output."""
    node.op_type = op_type
    node.attributes.clear()
    node.attributes.update((a.name, a) for a in ir.convenience.convert_attributes(attributes))
    node.resize_inputs(1)
    node.replace_input_with(0, x)


def array_of(value: ir.Value) -> Array | None:
    """Return the numbers of a constant."""
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def dtype_of(value: ir.Value) -> np.dtype[Any]:
    """Return the type of a value; bool where it is not known: no float."""
    if (array := array_of(value)) is not None:
        return array.dtype
    return np.dtype(np.bool_) if value.dtype is None else value.dtype.numpy()


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """Return the shape of a value; () where it is not known."""
    if (array := array_of(value)) is not None:
        return array.shape
    static = value.shape is not None and value.shape.is_static()
    return tuple(value.shape.numpy()) if static else ()


Mutation: TypeAlias = Callable[[Draft], "tuple[str, bool]"]
"""Changes a draft; returns what it did and whether the numbers stay what they were, up to rounding.
Raises IndexError, TypeError or ValueError where there is nothing to change."""

MUTATIONS: dict[str, Mutation] = {}


def mutation(function: Mutation) -> Mutation:
    """Enter a function in the table."""
    MUTATIONS[function.__name__] = function
    return function
