"""The contract of a graph: its inputs with their defaults, its outputs, and their declarations.

Passes of others fold a default that callers may replace, rename an output that is an input, and
drop one that is a weight. They are given a graph without these, which it gets back afterwards.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import onnx_ir as ir

from rmsnorm_export.errors import Error
from rmsnorm_export.printable import short

_OF_VALUE = ("type", "shape", "doc_string")
_OF_MODEL = ("doc_string", "domain", "model_version", "producer_name", "producer_version")

Holder = TypeVar("Holder")


class Contract:
    """The inputs, outputs and texts of a model, as they are when this is made."""

    def __init__(self, model: ir.Model) -> None:
        graph = model.graph
        self._inputs, self._outputs = (
            [(str(value.name), _declaration(value, *_OF_VALUE)) for value in values]
            for values in (graph.inputs, graph.outputs)
        )
        self._stored = {
            str(value.name): value.const_value
            for value in (*graph.inputs, *graph.outputs)
            if value.is_initializer()
        }
        self._model = _declaration(model, *_OF_MODEL)
        self._graph = _declaration(graph, "name", "doc_string")

    def set_aside(self, model: ir.Model) -> ir.Model:
        """Return the model, changed, without defaults, and with the outputs that nodes compute."""
        graph = model.graph
        for value in graph.outputs:  # a weight's would be those of the result of a pass
            value.metadata_props.clear()
        computed = {value: None for value in graph.outputs if value.producer() is not None}
        graph.outputs[:] = list(computed)
        for value in graph.inputs:
            graph.initializers.pop(str(value.name), None)
            value.const_value = None
        return model

    def restore(self, model: ir.Model) -> ir.Model:
        """Return the model, changed, with all that was set aside, as it was declared.

        Raises:
            Error: it takes something else, or does not compute an output any more.
        """
        graph = model.graph
        stored = graph.initializers.values()
        values = {str(value.name): value for value in (*stored, *graph.outputs)}
        values |= {str(value.name): value for value in graph.inputs}
        names = {name for name, _ in self._inputs}
        if unknown := [str(value.name) for value in graph.inputs if value.name not in names]:
            raise _broken("takes other inputs", unknown)
        for name, tensor in self._stored.items():
            own = graph.initializers.get(name)
            if name not in names and own is not None and not _equal(own.const_value, tensor):
                own.name = f"{name}_changed"  # a pass stored something else by this name
                del values[name]
        for name in (*names, *self._stored):
            values.setdefault(name, ir.Value(name=name))
        if missing := [name for name, _ in self._outputs if name not in values]:
            raise _broken("has lost outputs", missing)
        graph.inputs[:] = [_restored(values[name], own) for name, own in self._inputs]
        graph.outputs[:] = [
            values[name] if name in names else _restored(values[name], own)
            for name, own in self._outputs
        ]
        for name, tensor in self._stored.items():
            if not values[name].is_initializer():
                values[name].const_value = tensor
                graph.register_initializer(values[name])
        _restored(model, self._model)
        _restored(graph, self._graph)
        return model


def _equal(one: ir.TensorProtocol | None, other: ir.TensorProtocol | None) -> bool:
    if one is other or one is None or other is None:
        return one is other
    alike = one.dtype == other.dtype and tuple(one.shape) == tuple(other.shape)
    return alike and one.tobytes() == other.tobytes()


def _declaration(holder: Any, *names: str) -> dict[str, Any]:
    return {name: copy.deepcopy(getattr(holder, name)) for name in (*names, "metadata_props")}


def _restored(holder: Holder, declaration: Mapping[str, Any]) -> Holder:
    own: Any = holder
    for name, declared in declaration.items():
        if name == "metadata_props":  # it cannot be set
            own.metadata_props.clear()
            own.metadata_props.update(declared)
        else:
            setattr(own, name, declared)
    return holder


def _broken(what: str, names: Iterable[str]) -> Error:
    fix = "please report this model, with the command"
    return Error(f"The new graph {what}.", found=short(", ".join(names), 300), fix=fix)
