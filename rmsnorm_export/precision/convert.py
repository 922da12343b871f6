"""A model whose units have their types: values, attributes, stored tensors and Casts between.

A value gets one Cast to the other type, whoever reads it there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rmsnorm_export.graph.names import Names
from rmsnorm_export.graph.order import insert
from rmsnorm_export.graph.retype import retype_attributes
from rmsnorm_export.graph.tensors import LARGE_BYTES, release
from rmsnorm_export.precision.units import Port, Unit
from rmsnorm_export.runtime.metrics import FINFO

_FLOAT = ir.DataType.FLOAT


def convert(model: ir.Model, units: Sequence[Unit], source: ir.DataType, half: ir.DataType) -> None:
    """Give every unit its type, in place.

    Args:
        model: that they are of.
        units: all that have ``source``.
        source: the type of them all so far.
        half: of those that are not float32.
    """
    writer = _Writer(model, half)
    typed: dict[ir.Value, ir.DataType] = {}
    readers: dict[ir.Value, dict[ir.DataType, list[Port]]] = defaultdict(dict)
    for unit in units:
        dtype = half if unit.kind is None else _FLOAT
        typed |= dict.fromkeys(unit.makes, dtype)
        if unit.node is not None:
            retype_attributes(unit.node, {source: dtype})
        for port in unit.reads:
            readers[port.value].setdefault(dtype, []).append(port)
    for value, by_type in readers.items():
        # A number that both read stays float32; weights are stored once, in half.
        alone = value.const_value is None or value.const_value.size > 1 or len(by_type) == 1
        if value not in typed and source == _FLOAT and half in by_type and alone:
            typed[value] = half
    for value, dtype in typed.items():
        value.type = ir.TensorType(dtype)
        if value.const_value is not None and dtype != source:
            is_large = value.const_value.nbytes >= LARGE_BYTES
            value.const_value = (Rounded if is_large else _in_type)(value.const_value, dtype)
    for value, by_type in readers.items():
        for dtype, ports in by_type.items():
            if dtype != typed.get(value, source):
                writer.cast(value, dtype, ports)


class _Writer:
    """Writes Casts."""

    def __init__(self, model: ir.Model, half: ir.DataType) -> None:
        self._graph, self._half = model.graph, half
        self._unique = Names(model)

    def cast(self, value: ir.Value, dtype: ir.DataType, ports: Sequence[Port]) -> None:
        """Let these ports read a Cast; an output of the model keeps its name."""
        nodes = []
        if dtype == self._half and all(port.is_mask for port in ports):
            nodes.append(self._bounded(value))
        source = nodes[0].outputs[0] if nodes else value
        out = self._value(f"{value.name}.{dtype.name.lower()}", dtype, value.shape)
        nodes.append(ir.node("Cast", [source], {"to": dtype}, outputs=[out]))
        for node in nodes:
            node.name = node.outputs[0].name
        insert(value.graph, value.producer(), *nodes)
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
        return ir.node("Max", [mask, bound], outputs=[out])

    def _value(self, name: str, dtype: ir.DataType, shape: ir.Shape | None) -> ir.Value:
        return ir.Value(name=self._unique(name), type=ir.TensorType(dtype), shape=shape)


class Rounded(ir.LazyTensor):
    """A stored tensor in a half type, rounded when it is read: two copies would take memory.

    Args:
        source: in float32.
        dtype: of this one.
    """

    def __init__(self, source: ir.TensorProtocol, dtype: ir.DataType) -> None:
        shape = ir.Shape(source.shape.numpy())
        super().__init__(lambda: _in_type(source, dtype), dtype, shape, name=source.name)
        self.source = source


def _in_type(tensor: ir.TensorProtocol, dtype: ir.DataType) -> ir.TensorProtocol:
    """Return a tensor in a half type; what is beyond its end, as in a mask, is the end."""
    array = tensor.numpy()
    with np.errstate(over="ignore"):
        result = np.asarray(array.astype(dtype.numpy()))
    beyond = np.isinf(result)
    if beyond.any():
        beyond &= np.isfinite(array)
        result[beyond] = np.copysign(float(FINFO[result.dtype].max), array[beyond])
    del array
    release(tensor)
    return ir.Tensor(result, dtype=dtype, name=tensor.name)
