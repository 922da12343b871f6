"""A scope under construction: the main graph, a subgraph or a function body."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .case import NUMPY

FUNCTION_DOMAIN = "local"

CONSTANTS = ("initializer", "node", "attribute")
"""How a constant is stored: initializer, Constant with a tensor, Constant with a plain number."""


@dataclasses.dataclass(eq=False)
class Graph:
    """Collects nodes, constants and inputs; writes itself as a graph, function or model.

    Attributes:
        opset: version of the default domain.
        constants: one of ``CONSTANTS``.
        share: equal constants become one value.
        named: nodes get names.
        parent: the enclosing scope; None for the main graph.
        is_function: a function body: no initializers, nothing captured.
    """

    opset: int
    constants: str = "initializer"
    share: bool = False
    named: bool = True
    parent: Graph | None = None
    is_function: bool = False

    def __post_init__(self) -> None:
        self.root: Graph = self.parent.root if self.parent else self
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.functions: list[onnx.FunctionProto] = []
        self.feeds: dict[str, np.ndarray] = {}
        self.received: dict[str, str] = {}
        """Function only: value of the main graph -> name of the function's input."""
        self._stored: dict[Any, str] = {}
        self._count = itertools.count()

    # values

    def fresh(self, hint: str) -> str:
        """A name that no value of the model has yet."""
        return f"{hint}_{next(self.root._count)}"

    def op(self, op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output and return the name of that output."""
        return self.ops(op_type, *inputs, count=1, domain=domain, **attributes)[0]

    def ops(
        self, op_type: str, *inputs: str, count: int, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node with ``count`` outputs."""
        outputs = [self.fresh(op_type.lower()) for _ in range(count)]
        name = f"/{outputs[0]}" if self.named else ""
        self.nodes.append(
            helper.make_node(op_type, inputs, outputs, name=name, domain=domain, **attributes)
        )
        return outputs

    def const(self, array: np.ndarray, *, kind: str | None = None) -> str:
        """A constant of this scope."""
        kind = kind or self.constants
        key = (array.dtype.str, str(array.dtype), array.shape, array.tobytes(), kind)
        if self.share and key in self._stored:
            return self._stored[key]
        if kind == "initializer" and not self.is_function:
            name = self.fresh("const")
            self.initializers.append(numpy_helper.from_array(array, name))
        else:
            name = self.op("Constant", **self._constant_attribute(array, kind))
        self._stored[key] = name
        return name

    @staticmethod
    def _constant_attribute(array: np.ndarray, kind: str) -> dict[str, Any]:
        short = {"float32": "value_float", "int64": "value_int"}.get(str(array.dtype))
        if kind == "attribute" and short and array.ndim == 0:
            return {short: array.item()}
        if kind == "attribute" and short and array.ndim == 1:
            return {f"{short}s": array.tolist()}
        return {"value": numpy_helper.from_array(array)}

    def ints(self, *values: int) -> str:
        """A constant int64 vector."""
        return self.const(np.array(values, np.int64))

    def scalar(self, value: float, dtype: int, shape: Sequence[int] = ()) -> str:
        """A constant of one element."""
        return self.const(np.full(shape, value, NUMPY[dtype]))

    # operators whose form depends on the opset

    def cast(self, x: str, to: int) -> str:
        return self.op("Cast", x, to=to)

    def reduce(self, op_type: str, x: str, axes: Iterable[int], keepdims: int | None) -> str:
        """A reduction, axes as attribute or as input; ``keepdims`` None: attribute omitted."""
        attributes: dict[str, Any] = {} if keepdims is None else {"keepdims": keepdims}
        if self.opset >= (13 if op_type == "ReduceSum" else 18):
            return self.op(op_type, x, self.ints(*axes), **attributes)
        return self.op(op_type, x, axes=list(axes), **attributes)

    def unsqueeze(self, x: str, axes: Iterable[int]) -> str:
        return self.op("Unsqueeze", x, self.ints(*axes))

    # inputs and outputs

    def input(self, name: str, array: np.ndarray, dims: Sequence[int | str | None] | None) -> str:
        """An input of the main graph, with what to feed it."""
        self.declare(name, helper.np_dtype_to_tensor_dtype(array.dtype), dims)
        self.feeds[name] = array
        return name

    def declare(self, name: str, dtype: int, dims: Sequence[int | str | None] | None) -> None:
        """An input of a graph or subgraph, without what to feed it."""
        self.inputs.append(helper.make_tensor_value_info(name, dtype, dims))

    def output(self, name: str, dtype: int, dims: Sequence[int | str | None] | None) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, dtype, dims))

    def resolve(self, outer: str) -> str:
        """The name under which this scope sees a value of the main graph."""
        if self.is_function:
            return self.received.setdefault(outer, f"in_{outer}")
        return self.parent.resolve(outer) if self.parent else outer

    # nested scopes

    def child(self, *, is_function: bool = False) -> Graph:
        """A subgraph or function body of this scope."""
        return dataclasses.replace(self, parent=self, is_function=is_function)

    def subgraph(self) -> onnx.GraphProto:
        return helper.make_graph(
            self.nodes, self.fresh("graph"), self.inputs, self.outputs, self.initializers
        )

    def add_function(self, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Store this function body in the model."""
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(FUNCTION_DOMAIN, 1)]
        self.root.functions.append(
            helper.make_function(FUNCTION_DOMAIN, name, inputs, outputs, self.nodes, opsets)
        )

    def model(self, *, value_infos: bool = True) -> onnx.ModelProto:
        """The whole model; ``value_infos``: with the shapes that ONNX infers."""
        opsets = [helper.make_opsetid("", self.opset)]
        least = helper.find_min_ir_version_for(opsets)
        if self.functions:
            domains = sorted({FUNCTION_DOMAIN, *(function.domain for function in self.functions)})
            opsets += [helper.make_opsetid(domain, 1) for domain in domains]
            least = max(least, 8)  # functions came with IR version 8
        model = helper.make_model(
            self.subgraph(),
            functions=self.functions,
            opset_imports=opsets,
            ir_version=least,
            producer_name="spellings",
        )
        return onnx.shape_inference.infer_shapes(model, strict_mode=True) if value_infos else model


FLOATS = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
}
"""Element types of a normalised tensor, by name."""
