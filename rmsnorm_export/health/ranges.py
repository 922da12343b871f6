"""The ranges of a model's values, seen in a run.

The largest magnitude of every float value, of bodies of control flow, too, becomes an output of a
copy, so that one run shows all and no value is kept. In float32 it shows how far beyond a half type
a value is. In half precision each value goes through two Identity nodes, so that it is rounded to
its type as on a GPU: ONNX Runtime's CPU provider computes chains of float16 nodes, one Identity
included, in float32 (seen in 1.31).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import BackendMissingError, InputError, VerificationError
from rmsnorm_export.graph.load import serialize
from rmsnorm_export.graph.order import graphs_in, insert, subgraphs, values_in
from rmsnorm_export.graph.retype import retype
from rmsnorm_export.health.result import HealthRun
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.spec import FLOAT, FLOAT_TYPES, HALF_TYPES
from rmsnorm_export.printable import one_line
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.runtime.inputs import first_run, graph_inputs, in_types_of
from rmsnorm_export.runtime.session import open_session, run_session, runtime_name

Ranges = Mapping[ir.Value, float]
"""The largest magnitude of each value; infinite where it holds NaN."""
Candidates = Callable[[], Iterable[dict[str, Array]]]
"""Makes inputs to try in turn."""

_MARK = "rmsnorm_export.mark"


def measure(
    model: ir.Model, types: Types, folder: str | None, candidates: Candidates, run: HealthRun
) -> tuple[Ranges, HealthRun]:
    """Run a copy of a model and return the ranges of its values; none where it is not run.

    Args:
        model, types: not changed.
        folder: of its external data.
        candidates: of inputs.
        run: says how it is to be computed.
    """
    copy, wide = model.clone(), run.computed == "in float32"
    both = ((v for g in graphs_in(one.graph) for v in values_in(g)) for one in (copy, model))
    sources = {
        ours: theirs
        for ours, theirs in zip(*both, strict=True)
        if types.dtype(theirs) in FLOAT_TYPES
    }
    if wide:
        retype(copy, dict.fromkeys(HALF_TYPES, ir.DataType.FLOAT))
    halves = (v for v, source in sources.items() if types.dtype(source) in HALF_TYPES)
    marks = Marks(set(sources), set() if wide else set(halves)).add(copy.graph)
    copy.graph.outputs[:] = marks.values()
    copy.graph.sort()
    declared = graph_inputs(copy)
    try:
        session = open_session(serialize(copy), external_folder=folder)
        _, seen = first_run(
            candidates(), lambda feeds: run_session(session, in_types_of(declared, feeds))
        )
    except (BackendMissingError, InputError, VerificationError) as error:
        return {}, dataclasses.replace(run, problem=one_line(f"{error.what} {error.found}"))
    # The largest of no elements, as of an empty cache, is -infinity.
    ranges = {sources[v]: max(float(seen[mark.name or ""]), 0.0) for v, mark in marks.items()}
    return ranges, dataclasses.replace(run, runtime=runtime_name(), values=len(ranges))


class Marks:
    """Nodes that compute the largest magnitude of each value, a scalar.

    Args:
        values: all that are marked.
        rounded: of them, those that are rounded to their type.
        odd: what infinities and NaN count for.
    """

    def __init__(
        self, values: set[ir.Value], rounded: set[ir.Value], *, odd: float = np.inf
    ) -> None:
        self._values, self._rounded, self._odd, self._count = values, rounded, odd, 0

    def add(self, graph: ir.Graph) -> dict[ir.Value, ir.Value]:
        """Return the scalar, not an output yet, of each value of a graph and its bodies."""
        marks = {v: self._largest(graph, v) for v in graph.inputs if self._is_marked(v)}
        for node in tuple(graph):
            if node.op_type in ("If", "Loop", "Scan"):
                marks |= self._add_to_bodies(graph, node)
            for value in filter(self._is_marked, node.outputs):
                last = value
                if value in self._rounded and not value.is_graph_output():
                    users = tuple(value.uses())
                    last = self._add(graph, "Identity", self._add(graph, "Identity", value))
                    for user, index in users:
                        user.replace_input_with(index, last)
                marks[value] = self._largest(graph, last)
        return marks

    def _is_marked(self, value: ir.Value) -> bool:
        tensor = value.type is None or isinstance(value.type, ir.TensorType)
        return tensor and value.name != "" and value in self._values

    def _add_to_bodies(self, graph: ir.Graph, node: ir.Node) -> dict[ir.Value, ir.Value]:
        """Return the scalars of values in bodies, 0 where another branch was taken."""
        bodies, before = tuple(subgraphs(node)), len(node.outputs)
        inner = [self.add(body) for body in bodies]
        for own, body in zip(inner, bodies, strict=True):
            for marks in inner:
                zeros = (self._constant(body, 0.0) for _ in marks)
                body.outputs.extend(marks.values() if marks is own else zeros)
        values = [value for marks in inner for value in marks]
        node.resize_outputs(before + len(values))
        ends = list(node.outputs[before:])
        for index, end in enumerate(ends):
            end.name = f"{_MARK}.{self._count}.{index}"
        if node.op_type != "If":  # one for each round
            ends = [self._add(graph, "ReduceMax", end, keepdims=0) for end in ends]
        return dict(zip(values, ends, strict=True))

    def _largest(self, graph: ir.Graph, value: ir.Value) -> ir.Value:
        """Return the largest magnitude, with ``odd`` for infinities and NaN."""
        size = self._add(graph, "Abs", self._add(graph, "Cast", value, to=FLOAT))
        finite = self._add(graph, "Less", size, self._constant(graph, np.inf))
        numbers = self._add(graph, "Where", finite, size, self._constant(graph, self._odd))
        return self._add(graph, "ReduceMax", numbers, keepdims=0)

    def _constant(self, graph: ir.Graph, number: float) -> ir.Value:
        # One for each reader: ONNX Runtime takes time by the square of the readers of one.
        return self._add(graph, "Constant", value=ir.tensor(np.float32(number)))

    def _add(self, graph: ir.Graph, op: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """Return the result of a new node, which stands where its first operand is known."""
        self._count += 1
        out = ir.Value(name=f"{_MARK}{self._count}")
        node = ir.node(op, inputs, attributes, outputs=[out])
        insert(graph, inputs[0].producer() if inputs else None, node)
        return out
