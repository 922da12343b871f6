"""A model whose units have their types: values, attributes, stored tensors and Casts between.

A value gets one Cast to the other type, whoever reads it there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rmsnorm_export.graph.order import graphs_in, values_in
from rmsnorm_export.graph.retype import retype_attributes
from rmsnorm_export.precision.measure import release
from rmsnorm_export.precision.units import Port, Unit
from rmsnorm_export.runtime.metrics import FINFO

_FLOAT = ir.DataType.FLOAT
Readers = dict[ir.DataType, list[Port]]


def convert(model: ir.Model, units: Sequence[Unit], source: ir.DataType, half: ir.DataType) -> None:
    """Give every unit its type, in place.

    Args:
        model: that they are of.
        units: all that have ``source``.
        source: the type of them all so far.
        half: of those that are not wide.
    """
    _Converter(model, source, half).run(units)


def is_stored(value: ir.Value) -> bool:
    """Return whether a value is a tensor that nobody can replace."""
    return value.is_initializer() and not value.is_graph_input()


def count_casts(model: ir.Model) -> int:
    """Return how many Casts the graph and its bodies have."""
    return sum(node.op_type == "Cast" for graph in graphs_in(model.graph) for node in graph)


class _Converter:
    def __init__(self, model: ir.Model, source: ir.DataType, half: ir.DataType) -> None:
        self._graph, self._source, self._half = model.graph, source, half
        values = (value for graph in graphs_in(model.graph) for value in values_in(graph))
        self._names = {value.name for value in values}
        self._typed: dict[ir.Value, ir.DataType] = {}

    def run(self, units: Sequence[Unit]) -> None:
        readers: dict[ir.Value, Readers] = defaultdict(lambda: defaultdict(list))
        for unit in units:
            own = _FLOAT if unit.wide else self._half
            self._set_type(unit, own)
            for ports, dtype in ((unit.reads, own), (unit.fixed, _FLOAT)):
                for port in ports:
                    if port.value is not None:
                        readers[port.value][dtype].append(port)
        for value, by_type in readers.items():
            if is_stored(value) and value not in self._typed:
                self._store(value, by_type)
            have = self._typed.get(value, self._source)
            for dtype, ports in by_type.items():
                if dtype != have:
                    self._cast(value, dtype, ports)
        self._drop_idle_casts()

    def _set_type(self, unit: Unit, dtype: ir.DataType) -> None:
        if unit.whole and unit.node is not None and dtype != self._source:
            retype_attributes(unit.node, {self._source: dtype})
        for value in unit.makes:
            self._typed[value] = dtype
            value.type = ir.TensorType(dtype)
            if value.const_value is not None and dtype != self._source:  # a default
                value.const_value = _in_type(value.const_value, dtype)

    def _store(self, value: ir.Value, readers: Readers) -> None:
        """Store a tensor in the half type where it is read so; one number in both, if need be."""
        tensor = value.const_value
        assert tensor is not None
        if self._half not in readers or self._source != _FLOAT:
            if tensor.size == 1 and self._source != _FLOAT and _FLOAT in readers:
                self._copy(value, ir.tensor(tensor.numpy().astype(np.float32)), readers)
            return
        if tensor.size == 1 and _FLOAT in readers:
            self._copy(value, tensor, readers)
        self._typed[value] = self._half
        value.const_value = _in_type(tensor, self._half)
        value.type = ir.TensorType(self._half)

    def _copy(self, value: ir.Value, tensor: ir.TensorProtocol, readers: Readers) -> None:
        graph = value.graph
        assert isinstance(graph, ir.Graph)
        copy = self._value(f"{value.name}.float32", _FLOAT, value.shape)
        copy.const_value = tensor
        graph.register_initializer(copy)
        for port in readers.pop(_FLOAT):
            port.put(copy)

    def _cast(self, value: ir.Value, dtype: ir.DataType, ports: Sequence[Port]) -> None:
        """Let these ports read a Cast; an output of the model keeps its name."""
        nodes, source = [], value
        if dtype == self._half and all(port.is_mask for port in ports):
            nodes.append(self._bounded(value))
            source = nodes[0].outputs[0]
        out = self._value(f"{value.name}.{dtype.name.lower()}", dtype, value.shape)
        nodes.append(ir.Node("", "Cast", [source], [ir.AttrInt64("to", dtype)], outputs=[out]))
        for node in nodes:
            node.name = node.outputs[0].name
        producer, graph = value.producer(), value.graph
        assert graph is not None
        if producer is not None:
            graph.insert_after(producer, nodes)
        elif len(graph):
            graph.insert_before(graph[0], nodes)
        else:
            graph.extend(nodes)
        for port in ports:
            port.put(out)
        if any(port.holder is self._graph for port in ports):
            final, value.name = value.name, self._unique(f"{value.name}.inner")
            out.name = final

    def _bounded(self, mask: ir.Value) -> ir.Node:
        """Return a node whose result is not below the least number of the half type."""
        least = np.array(-float(FINFO[self._half.numpy()].max), np.float32)
        bound = self._value(f"{mask.name}.least", _FLOAT, ir.Shape([]))
        bound.const_value = ir.tensor(least, name=bound.name)
        self._graph.register_initializer(bound)
        out = self._value(f"{mask.name}.bounded", _FLOAT, mask.shape)
        return ir.Node("", "Max", [mask, bound], outputs=[out])

    def _value(self, name: str, dtype: ir.DataType, shape: ir.Shape | None) -> ir.Value:
        return ir.Value(name=self._unique(name), type=ir.TensorType(dtype), shape=shape)

    def _unique(self, name: str) -> str:
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name

    def _drop_idle_casts(self) -> None:
        """Remove Casts to the type that a value has now."""
        for graph in graphs_in(self._graph):
            for node in graph:
                if node.op_type != "Cast" or node.domain or node.inputs[0] is None:
                    continue
                value, out = node.inputs[0], node.outputs[0]
                have = self._typed.get(value, value.dtype)
                if have == node.attributes.get_int("to") and not out.is_graph_output():
                    out.replace_all_uses_with(value)
                    graph.remove(node, safe=True)


def _in_type(tensor: ir.TensorProtocol, dtype: ir.DataType) -> ir.TensorProtocol:
    """Return a tensor in a type; what is beyond its end, as in a mask, is the end."""
    array, end = tensor.numpy(), FINFO[dtype.numpy()].max if dtype != _FLOAT else np.inf
    with np.errstate(over="ignore"):
        result = np.asarray(array.astype(dtype.numpy()))
    beyond = np.isinf(result) & np.isfinite(array)
    result[beyond] = np.copysign(float(end), array[beyond]).astype(result.dtype)
    del array
    release(tensor)
    return ir.Tensor(result, dtype=dtype, name=tensor.name)
