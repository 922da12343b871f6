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
from tests.tools.fuzz.feeds import Feeds

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


class Draft:
    """A copy of a model, changed in place.

    Attributes:
        feeds: an example for every input, those that mutations add as well.
        rng: of the mutation at hand.
        values: type and shape of every value, by name, in the example.
        constants: arrays of initializers and of Constant nodes, by name.
    """

    def __init__(self, model: onnx.ModelProto, feeds: Feeds) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.feeds = dict(feeds)
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
            if value.name in self.feeds:
                kind, shape = value.type.tensor_type.elem_type, self.feeds[value.name].shape
                value.CopyFrom(helper.make_tensor_value_info(value.name, kind, shape))
        for value in fixed.graph.output:
            value.type.tensor_type.ClearField("shape")
        self._note(onnx.shape_inference.infer_shapes(fixed, data_prop=True).graph)
        for place in self.places("Constant"):
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
        """Yield the first place of each list of nodes: main graph, subgraphs, functions."""
        pending = [Place(self.model.graph.node, 0, None, True)]
        pending += [Place(function.node, 0, function, False) for function in self.model.functions]
        while pending:
            scope = pending.pop()
            yield scope
            attributes = [a for node in scope.nodes for a in node.attribute if a.HasField("g")]
            pending += [Place(a.g.node, 0, scope.function, False) for a in attributes]

    def places(self, *op_types: str) -> list[Place]:
        """Return the nodes of these types; of any when none is given."""
        return [
            dataclasses.replace(scope, index=index)
            for scope in self.scopes()
            for index, node in enumerate(scope.nodes)
            if node.op_type in op_types or not op_types
        ]

    def pick(self, *op_types: str) -> Place:
        """Draw one of the nodes of these types.

        Raises:
            IndexError: there is none.
        """
        return self.rng.choice(self.places(*op_types))

    def dtype(self, name: str) -> np.dtype[Any] | None:
        return self.values[name][0] if name in self.values else None

    def shape(self, name: str) -> tuple[int, ...]:
        return (self.values[name][1] if name in self.values else None) or ()

    def edge(self, *op_types: str) -> tuple[Place, int, str]:
        """Draw a node, a position at which it reads a float, and the float's name.

        Raises:
            IndexError: there is none.
        """
        return self.rng.choice([
            (place, position, name)
            for place in self.places(*op_types)
            for position, name in enumerate(place.node.input)
            if (dtype := self.dtype(name)) is not None and is_float(dtype)
        ])  # fmt: skip

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

    def read_instead(self, place: Place, old: str, new: str, by_all: bool) -> None:
        """Let this node, or it and all behind it, read ``new``."""
        for node in list(place.nodes)[place.index :] if by_all else [place.node]:
            node.input[:] = [new if name == old else name for name in node.input]

    def add_input(self, example: Array, hint: str) -> str:
        """Add an input of the main graph."""
        name = self.fresh(hint)
        kind = helper.np_dtype_to_tensor_dtype(example.dtype)
        self.model.graph.input.append(helper.make_tensor_value_info(name, kind, example.shape))
        self.feeds[name] = example
        return name

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
            pairs = zip(declared, shape or (), strict=False)
            fits = shape is None or len(declared) == len(shape)
            if not fits or any(d not in (None, size) for d, size in pairs):
                none = [None] * len(shape or ())
                kind.CopyFrom(helper.make_tensor_type_proto(kind.elem_type, none).tensor_type)
            if dtype is not None:
                kind.elem_type = helper.np_dtype_to_tensor_dtype(dtype)


Outcome: TypeAlias = "tuple[str, bool] | None"
"""What was done, and whether the numbers stay what they were, up to rounding; None for nothing."""

Mutation: TypeAlias = Callable[[Draft], Outcome]
"""Changes a draft. IndexError, TypeError and ValueError: there is nothing to change."""

MUTATIONS: dict[str, Mutation] = {}


def mutation(function: Mutation) -> Mutation:
    """Enter a function in the table."""
    MUTATIONS[function.__name__] = function
    return function


def number_in(value: Any, dtype: np.dtype[Any]) -> Array:
    """Numbers in a type, infinite where they do not fit."""
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype)
