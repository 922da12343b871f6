"""A model that is being mutated: its scopes, the values in them, new nodes and constants."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.metrics import is_float
from tests.tools.fuzz.feeds import Signature

_AXES_AS_INPUT = {"ReduceSum": 13, "Squeeze": 13, "Unsqueeze": 13}
"""Opset from which an operator takes its axes as an input; 18 for the other reductions."""


@dataclasses.dataclass(slots=True)
class Place:
    """A node in its scope; it stays at its node where `Draft.put` puts others in front of it."""

    nodes: Any
    index: int
    function: onnx.FunctionProto | None
    main: bool

    @property
    def node(self) -> onnx.NodeProto:
        node: onnx.NodeProto = self.nodes[self.index]
        return node

    @property
    def later(self) -> list[onnx.NodeProto]:
        """This node and those behind it."""
        return list(self.nodes)[self.index :]


class Draft:
    """A copy of a model, changed in place.

    Attributes:
        signature: how its inputs are fed; inputs that mutations add go here, too.
        rng: of the mutation at hand.
        values: type and shape of every value, by name, in the example.
        constants: arrays of initializers and of Constant nodes, by name.
    """

    def __init__(self, model: onnx.ModelProto, signature: Signature) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.signature = signature.copy()
        self.rng = random.Random(0)
        self.values: dict[str, tuple[np.dtype[Any], tuple[int, ...] | None]] = {}
        self.constants: dict[str, Array] = {}
        self._count = 0

    def begin(self, rng: random.Random, tag: int) -> None:
        """Look at the model as it is now.

        Raises:
            onnx.shape_inference.InferenceError: its shapes do not fit.
        """
        self.rng, self._count = rng, 1000 * tag
        fixed = onnx.ModelProto()
        fixed.CopyFrom(self.model)
        del fixed.graph.value_info[:]
        for value in fixed.graph.input:
            if value.name in self.signature.inputs:
                kind, shape = value.type.tensor_type.elem_type, self.signature.shape(value.name)
                value.CopyFrom(helper.make_tensor_value_info(value.name, kind, shape))
        for value in fixed.graph.output:
            value.type.tensor_type.ClearField("shape")
        self._note(onnx.shape_inference.infer_shapes(fixed, data_prop=True).graph)
        for place in self.places(lambda node: node.op_type == "Constant"):
            for attribute in place.node.attribute:
                if attribute.name == "value":
                    self._hold(place.node.output[0], numpy_helper.to_array(attribute.t))
                elif attribute.name in ("value_ints", "value_int"):
                    numbers = helper.get_attribute_value(attribute)
                    self._hold(place.node.output[0], np.asarray(numbers, np.int64))

    def _hold(self, name: str, array: Array) -> None:
        self.constants[name] = array
        self.values[name] = (array.dtype, array.shape)

    def _note(self, graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            self._hold(tensor.name, numpy_helper.to_array(tensor))
        for value in (*graph.input, *graph.value_info, *graph.output):
            kind = value.type.tensor_type
            if not kind.elem_type or value.name in self.constants:
                continue
            known = kind.HasField("shape") and all(d.HasField("dim_value") for d in kind.shape.dim)
            shape = tuple(d.dim_value for d in kind.shape.dim) if known else None
            self.values[value.name] = (helper.tensor_dtype_to_np_dtype(kind.elem_type), shape)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    self._note(attribute.g)

    # what there is

    def scopes(self) -> Iterator[Place]:
        """The first place of each list of nodes: main graph, subgraphs, functions."""
        yield from _scopes(self.model.graph.node, None, True)
        for function in self.model.functions:
            yield from _scopes(function.node, function, False)

    def places(self, wanted: Callable[[onnx.NodeProto], bool]) -> list[Place]:
        return [
            dataclasses.replace(scope, index=index)
            for scope in self.scopes()
            for index, node in enumerate(scope.nodes)
            if wanted(node)
        ]

    def pick(self, *op_types: str) -> Place | None:
        """A node of one of the types; of any but Constant when none is given."""
        found = self.places(
            lambda node: node.op_type in op_types if op_types else node.op_type != "Constant"
        )
        return self.rng.choice(found) if found else None

    def dtype(self, name: str) -> np.dtype[Any] | None:
        return self.values[name][0] if name in self.values else None

    def shape(self, name: str) -> tuple[int, ...] | None:
        return self.values[name][1] if name in self.values else None

    def number(self, name: str) -> float | None:
        """The value of a constant of one element."""
        array = self.constants.get(name)
        return float(array.reshape(())) if array is not None and array.size == 1 else None

    def edge(self, *op_types: str) -> tuple[Place, int, str] | None:
        """A node, a position at which it reads a float, and the float's name."""
        edges = [
            (place, position, name)
            for place in self.places(lambda n: n.op_type in op_types or not op_types)
            for position, name in enumerate(place.node.input)
            if (dtype := self.dtype(name)) is not None and is_float(dtype)
        ]
        return self.rng.choice(edges) if edges else None

    # what is made

    def fresh(self, hint: str) -> str:
        self._count += 1
        return f"mutant_{hint}_{self._count}"

    def constant(self, place: Place, array: Any) -> str:
        """A constant for the node at ``place``, as an initializer or as a node."""
        name = self.fresh("constant")
        tensor = numpy_helper.from_array(np.asarray(array), name)
        self._hold(name, np.asarray(array))
        if place.main and self.rng.random() < 0.5:
            self.model.graph.initializer.append(tensor)
            return name
        tensor.ClearField("name")
        place.nodes.insert(place.index, helper.make_node("Constant", [], [name], value=tensor))
        place.index += 1
        return name

    def put(self, place: Place, op_type: str, *inputs: str | Array, **attributes: Any) -> str:
        """A new node in front of ``place``; arrays among its inputs become constants."""
        names = [v if isinstance(v, str) else self.constant(place, v) for v in inputs]
        out = self.fresh(op_type.lower())
        place.nodes.insert(place.index, helper.make_node(op_type, names, [out], **attributes))
        place.index += 1
        return out

    def cast(self, place: Place, name: str | Array, dtype: np.dtype[Any]) -> str:
        """A Cast in front of ``place``."""
        return self.put(place, "Cast", name, to=helper.np_dtype_to_tensor_dtype(dtype))

    def over(
        self, place: Place, op_type: str, x: str, axes: Sequence[int], **attributes: Any
    ) -> str:
        """`put` of an operator with axes, an attribute or an input as the opset wants."""
        imports = place.function.opset_import if place.function else self.model.opset_import
        opset = next((e.version for e in imports if e.domain in ("", "ai.onnx")), 1)
        if opset >= _AXES_AS_INPUT.get(op_type, 18):
            return self.put(place, op_type, x, np.asarray(axes, np.int64), **attributes)
        return self.put(place, op_type, x, axes=list(axes), **attributes)

    def replace(self, place: Place, op_type: str, *inputs: str | Array, **attributes: Any) -> None:
        """Another node in the place of this one, with its first output."""
        output = place.node.output[0]
        self.put(place, op_type, *inputs, **attributes)
        place.nodes[place.index - 1].output[0] = output
        del place.nodes[place.index]

    def read_instead(self, place: Place, old: str, new: str, *, by_all: bool) -> None:
        """This node, or it and all behind it, read ``new``."""
        for node in place.later if by_all else [place.node]:
            node.input[:] = [new if name == old else name for name in node.input]

    def add_input(self, dtype: np.dtype[Any], dims: Sequence[int | str], hint: str) -> str:
        """An input of the main graph."""
        name = self.fresh(hint)
        kind = helper.np_dtype_to_tensor_dtype(dtype)
        self.model.graph.input.append(helper.make_tensor_value_info(name, kind, list(dims)))
        self.signature.inputs[name] = (dtype, tuple(dims))
        return name

    def dims(self, shape: Sequence[int]) -> tuple[int | str, ...]:
        """The shape of an example with the names of sizes that are dynamic."""
        named = {size: name for name, size in self.signature.sizes.items()}
        return tuple(named.get(size, size) for size in shape)

    def add_output(self, name: str, like: str) -> None:
        dtype, shape = self.values[like]
        kind = helper.np_dtype_to_tensor_dtype(dtype)
        dims = None if shape is None else [None] * len(shape)
        self.model.graph.output.append(helper.make_tensor_value_info(name, kind, dims))

    def forget_wrong_shapes(self) -> None:
        """Take declared types and shapes back that are no longer true."""
        del self.model.graph.value_info[:]
        for value in self.model.graph.output:
            dtype, shape = self.values.get(value.name, (None, None))
            kind = value.type.tensor_type
            declared = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
            if shape is not None and not _fits(declared, shape):
                none = [None] * len(shape)
                unsaid = helper.make_tensor_value_info("", kind.elem_type, none)
                kind.CopyFrom(unsaid.type.tensor_type)
            if dtype is not None:
                kind.elem_type = helper.np_dtype_to_tensor_dtype(dtype)


Mutation: TypeAlias = Callable[[Draft], "tuple[str, bool] | None"]
"""Changes a draft; returns what it did and whether the numbers stay what they were, up to rounding.
None: there is nothing to change."""

MUTATIONS: dict[str, Mutation] = {}


def mutation(function: Mutation) -> Mutation:
    """Enter a function in the table."""
    MUTATIONS[function.__name__] = function
    return function


def number_in(value: Any, dtype: np.dtype[Any]) -> Array:
    """Numbers in a type, infinite where they do not fit."""
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype)


def _fits(declared: Sequence[int | None], shape: tuple[int, ...]) -> bool:
    pairs = zip(declared, shape, strict=False)
    return len(declared) == len(shape) and all(d in (None, size) for d, size in pairs)


def _scopes(nodes: Any, function: onnx.FunctionProto | None, main: bool) -> Iterator[Place]:
    yield Place(nodes, 0, function, main)
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _scopes(attribute.g.node, function, False)
