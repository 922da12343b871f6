"""A model that is being mutated: its scopes, the values in them, and new nodes and constants."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.tools.fuzz.evaluate import Program
from tests.tools.fuzz.feeds import Signature, example_feeds
from tests.tools.fuzz.intervals import Array, Mode, Value, is_float
from tests.tools.fuzz.operators import CannotEvaluateError

AXES_AS_INPUT = {
    "ReduceSum": 13, "ReduceMean": 18, "ReduceSumSquare": 18, "ReduceL2": 18, "ReduceMax": 18,
    "ReduceMin": 18, "Squeeze": 13, "Unsqueeze": 13,
}  # fmt: skip
"""Opset from which an operator takes its axes as an input."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scope:
    """A list of nodes: of the main graph, of a subgraph or of a function."""

    nodes: Any
    graph: onnx.GraphProto | None
    function: onnx.FunctionProto | None
    main: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A node in its scope."""

    scope: Scope
    index: int

    @property
    def node(self) -> onnx.NodeProto:
        node: onnx.NodeProto = self.scope.nodes[self.index]
        return node


class Draft:
    """A copy of a model, changed in place.

    Attributes:
        model: the copy.
        signature: how its inputs are fed; inputs that mutations add go here, too.
        rng: of the mutation at hand.
        values: what every value is on an example, by name: type and shape.
    """

    def __init__(self, model: onnx.ModelProto, signature: Signature) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.signature = signature.copy()
        self.rng = random.Random(0)
        self.values: dict[str, Value] = {}
        self._count = 0

    def begin(self, rng: random.Random, tag: int) -> bool:
        """Look at the model as it is now; False when it can no longer be evaluated."""
        self.rng, self._count = rng, 1000 * tag
        feeds = example_feeds(self.signature, np.random.default_rng(0))
        self.values = {}
        try:
            Program(self.model).run(feeds, Mode(), trace=self.values)
        except CannotEvaluateError:
            return False
        graph = self.model.graph
        for tensor in graph.initializer:
            array = np.asarray(numpy_helper.to_array(tensor))
            self.values[tensor.name] = Value(array, array, array.dtype, True)
        for name, array in feeds.items():
            self.values[name] = Value(array, array, array.dtype)
        return True

    # what there is

    def scopes(self) -> Iterator[Scope]:
        yield from self._graph_scopes(self.model.graph, True)
        for function in self.model.functions:
            yield Scope(function.node, None, function, False)
            yield from self._inner(function.node)

    def _graph_scopes(self, graph: onnx.GraphProto, main: bool) -> Iterator[Scope]:
        yield Scope(graph.node, graph, None, main)
        yield from self._inner(graph.node)

    def _inner(self, nodes: Sequence[onnx.NodeProto]) -> Iterator[Scope]:
        for node in nodes:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    yield from self._graph_scopes(attribute.g, False)

    def places(self, wanted: Callable[[onnx.NodeProto], bool]) -> list[Place]:
        return [
            Place(scope, index)
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

    def opset(self, scope: Scope) -> int:
        imports = scope.function.opset_import if scope.function else self.model.opset_import
        return next((e.version for e in imports if e.domain in ("", "ai.onnx")), 1)

    def dtype(self, name: str) -> np.dtype[Any] | None:
        value = self.values.get(name)
        return None if value is None else value.dtype

    def shape(self, name: str) -> tuple[int, ...] | None:
        value = self.values.get(name)
        return None if value is None else tuple(value.lo.shape)

    def number(self, name: str) -> float | None:
        """The value of a constant of one element."""
        value = self.values.get(name)
        if value is None or not value.constant or value.lo.size != 1:
            return None
        return float(value.lo.reshape(()))

    def float_edges(self) -> list[tuple[Place, int]]:
        """Every (node, position) at which a float that is known is read."""
        return [
            (place, position)
            for place in self.places(lambda node: node.op_type != "Constant")
            for position, name in enumerate(place.node.input)
            if (dtype := self.dtype(name)) is not None and is_float(dtype)
        ]

    def is_row(self, name: str) -> bool:
        """A float input of the model with all dimensions, or a cast of one."""
        for node in reversed(self.model.graph.node):
            if node.op_type == "Cast" and node.output[0] == name:
                name = node.input[0]
        dims = self.signature.inputs.get(name, (None, ()))[1]
        return name not in self.signature.examples and len(dims) > 1

    def producers(self, scope: Scope) -> dict[str, int]:
        return {name: i for i, node in enumerate(scope.nodes) for name in node.output if name}

    # what is made

    def fresh(self, hint: str) -> str:
        self._count += 1
        return f"mutant_{hint}_{self._count}"

    def constant(self, place: Place, array: Array) -> tuple[str, int]:
        """A constant for the node at ``place``: its name, and how many nodes it put in front."""
        name = self.fresh("constant")
        tensor = numpy_helper.from_array(np.asarray(array), name)
        if place.scope.main and self.rng.random() < 0.5:
            self.model.graph.initializer.append(tensor)
            return name, 0
        tensor.ClearField("name")
        place.scope.nodes.insert(
            place.index, helper.make_node("Constant", [], [name], value=tensor)
        )
        return name, 1

    def put(
        self, place: Place, op_type: str, *inputs: str | Array, **attributes: Any
    ) -> tuple[str, Place]:
        """A new node in front of ``place``; arrays among its inputs become constants.

        Returns the name of its output, and where the node of ``place`` stands now.
        """
        names = []
        for given in inputs:
            if not isinstance(given, str):
                given, added = self.constant(place, given)
                place = Place(place.scope, place.index + added)
            names.append(given)
        out = self.fresh(op_type.lower())
        place.scope.nodes.insert(place.index, helper.make_node(op_type, names, [out], **attributes))
        return out, Place(place.scope, place.index + 1)

    def with_axes(
        self, place: Place, op_type: str, x: str, axes: Sequence[int], **attributes: Any
    ) -> tuple[str, Place]:
        """`put` of an operator with axes, an attribute or an input as the opset wants."""
        if self.opset(place.scope) >= AXES_AS_INPUT[op_type]:
            return self.put(place, op_type, x, np.asarray(axes, np.int64), **attributes)
        return self.put(place, op_type, x, axes=list(axes), **attributes)

    def replace(self, place: Place, op_type: str, *inputs: str | Array, **attributes: Any) -> None:
        """Another node in the place of this one, with its first output."""
        output = place.node.output[0]
        _, moved = self.put(place, op_type, *inputs, **attributes)
        place.scope.nodes[moved.index - 1].output[0] = output
        del place.scope.nodes[moved.index]

    def add_input(self, dtype: np.dtype[Any], dims: Sequence[int | str], hint: str) -> str:
        """An input of the main graph."""
        name = self.fresh(hint)
        kind = helper.np_dtype_to_tensor_dtype(dtype)
        self.model.graph.input.append(helper.make_tensor_value_info(name, kind, list(dims)))
        self.signature.add(name, dtype, tuple(dims))
        return name

    def dims(self, shape: Sequence[int]) -> tuple[int | str, ...]:
        """The shape of an example with the names of sizes that are dynamic."""
        named = {size: name for name, size in self.signature.sizes.items()}
        return tuple(named.get(size, size) for size in shape)

    def add_output(self, name: str, dtype: np.dtype[Any], rank: int | None) -> None:
        kind = helper.np_dtype_to_tensor_dtype(dtype)
        dims = None if rank is None else [None] * rank
        self.model.graph.output.append(helper.make_tensor_value_info(name, kind, dims))

    def forget_wrong_shapes(self) -> None:
        """Declared shapes of the main graph that are no longer true are taken back."""
        graph = self.model.graph
        sizes = dict(self.signature.sizes)
        for value in (*graph.input, *graph.value_info, *graph.output):
            shape = self.shape(value.name)
            declared = value.type.tensor_type.shape.dim
            if shape is None or not value.type.tensor_type.HasField("shape"):
                continue
            if len(declared) != len(shape):
                value.type.tensor_type.ClearField("shape")
                continue
            for dim, size in zip(declared, shape, strict=True):
                if dim.HasField("dim_value"):
                    wrong = dim.dim_value != size or size in self.signature.sizes.values()
                else:
                    wrong = bool(dim.dim_param) and sizes.setdefault(dim.dim_param, size) != size
                if wrong and value.name not in self.signature.inputs:
                    dim.Clear()
