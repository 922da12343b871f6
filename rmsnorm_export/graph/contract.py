"""What callers of a graph rely on: its inputs with their defaults, its outputs, and what they say.

Passes of others fold a default that callers may replace, rename an output that is an input, and
drop one that is a weight. They are given a graph without these, which it gets back afterwards.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import onnx_ir as ir

from rmsnorm_export.errors import Error
from rmsnorm_export.printable import short

_TEXTS = ("doc_string", "domain", "model_version", "producer_name", "producer_version")


class Contract:
    """The inputs, outputs and texts of a model, as they are when this is made."""

    def __init__(self, model: ir.Model) -> None:
        graph = model.graph
        self._inputs, self._outputs = (
            [(str(value.name), _declaration(value)) for value in values]
            for values in (graph.inputs, graph.outputs)
        )
        self._stored = {
            str(value.name): value.const_value
            for value in (*graph.inputs, *graph.outputs)
            if value.is_initializer()
        }
        self._texts = {name: getattr(model, name) for name in _TEXTS}
        self._graph_texts = {"name": graph.name, "doc_string": graph.doc_string}
        self._metadata = dict(model.metadata_props), dict(graph.metadata_props)

    def set_aside(self, model: ir.Model) -> ir.Model:
        """Return the model, changed, without defaults, and with the outputs that nodes compute."""
        graph = model.graph
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
        for name in (*names, *self._stored):
            values.setdefault(name, ir.Value(name=name))
        if missing := [name for name, _ in self._outputs if name not in values]:
            raise _broken("has lost outputs", missing)
        graph.inputs[:] = [_declared(values[name], own) for name, own in self._inputs]
        graph.outputs[:] = [
            values[name] if name in names else _declared(values[name], own)
            for name, own in self._outputs
        ]
        for name, tensor in self._stored.items():
            if not values[name].is_initializer():
                values[name].const_value = tensor
                graph.register_initializer(values[name])
        _set(model, self._texts)
        _set(graph, self._graph_texts)
        model.metadata_props.update(self._metadata[0])
        graph.metadata_props.update(self._metadata[1])
        return model


def _declaration(value: ir.Value) -> dict[str, Any]:
    shape = None if value.shape is None else value.shape.copy()
    return {"type": copy.copy(value.type), "shape": shape, "doc_string": value.doc_string}


def _declared(value: ir.Value, declaration: dict[str, Any]) -> ir.Value:
    _set(value, declaration)
    return value


def _set(holder: object, attributes: dict[str, Any]) -> None:
    for name, attribute in attributes.items():
        setattr(holder, name, attribute)


def _broken(what: str, names: Iterable[str]) -> Error:
    fix = "please report this model, with the command"
    return Error(f"The new graph {what}.", found=short(", ".join(names), 300), fix=fix)
