"""The ranges of a model's values, seen in a run.

The largest magnitude of every float value, of bodies of control flow, too, becomes an output of a
copy, so that one run shows all and no value is kept. Everything is computed in float32, which shows
how far beyond a half type a value is. Values that are to be rounded go through Casts to their type
and back, which ONNX Runtime runs as they stand without its graph optimization (seen in 1.31).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
import onnx.parser
import onnx_ir as ir

from rmsnorm_export.errors import BackendMissingError, InputError, VerificationError
from rmsnorm_export.graph.order import graphs_in, insert, subgraphs, values_in
from rmsnorm_export.graph.retype import retype
from rmsnorm_export.health.result import END, HealthRun
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.spec import FLOAT, FLOAT_TYPES, HALF_TYPES
from rmsnorm_export.printable import one_line
from rmsnorm_export.proof.comparison import opened
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.runtime.inputs import first_run, graph_inputs, in_types_of
from rmsnorm_export.runtime.session import LEVEL, run_session

Ranges = Mapping[ir.Value, float]
"""The largest magnitude of each value; NaN where it holds one."""
Candidates = Callable[[], Iterable[dict[str, Array]]]
"""Makes inputs to try in turn."""

_MARK = "rmsnorm_export.mark"
_BODIES = {
    "largest": f"""
        wide = Cast <to = {FLOAT}> (x)
        size = Abs (wide)
        most = ReduceMax <keepdims = 0> (size)
        sum = ReduceSum <keepdims = 0> (size)
        is_nan = IsNaN (sum)
        y = Where (is_nan, sum, most)""",
    "largest_finite": """
        size = Abs (x)
        low = Neg (size)
        finite = ThresholdedRelu <alpha = -inf> (low)
        least = ReduceMin <keepdims = 0> (finite)
        y = Neg (least)""",
    "clipped": f"""
        most = Constant <value = float {{{END}}}> ()
        least = Constant <value = float {{{-END}}}> ()
        below = Min (x, most)
        y = Max (below, least)""",
}
"""What is computed in a copy, a call each: Python takes ten times as long for the nodes. ReduceMax
may overlook NaN, which a sum of magnitudes does not; ThresholdedRelu makes 0 of what is not above
its alpha, and so of infinity and NaN."""
_LARGEST = float(np.finfo(np.float32).max)
_ZERO = ir.tensor(np.float32(0))
_WITH_FUNCTIONS, _OPSET = 8, 17
"""Version of the format; opset of a model that has none."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rounding:
    """What a run makes of the values of a model.

    Attributes:
        values: that are rounded, each to this half type.
        kept: nodes that are computed in float32: they read what others of them, and constants, are
            before they are rounded.
        stored: values that are made of constants alone.
        clipped: constants whose infinities are the largest number of float16 instead.
    """

    values: Mapping[ir.Value, ir.DataType | None] = dataclasses.field(default_factory=dict)
    kept: Collection[ir.Node] = ()
    stored: Collection[ir.Value] = ()
    clipped: Collection[ir.Value] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """What a run has shown; no ranges where the model is not run.

    Attributes:
        run: what became of it.
        ranges: of the values.
        outputs: of the model, in float32, by name.
    """

    run: HealthRun
    ranges: Ranges = dataclasses.field(default_factory=dict)
    outputs: Mapping[str, Array] = dataclasses.field(default_factory=dict)


def measure(
    model: ir.Model, types: Types, candidates: Candidates, run: HealthRun, rounding: Rounding
) -> Measured:
    """Run a copy of a model and return the ranges of its values.

    Args:
        model, types: not changed.
        candidates: of inputs.
        run: that is returned, with what became of it.
        rounding: of its values.
    """
    own = {v for g in graphs_in(model.graph) for v in values_in(g) if types.dtype(v) in FLOAT_TYPES}
    copy, marks = marked(model, own, rounding)
    declared = graph_inputs(copy)
    try:
        with opened(copy) as session:
            _, seen = first_run(
                candidates(), lambda feeds: run_session(session, in_types_of(declared, feeds))
            )
    except (BackendMissingError, InputError, VerificationError) as error:
        return Measured(dataclasses.replace(run, problem=one_line(f"{error.what} {error.found}")))
    sizes = {value: float(seen.pop(mark)) for value, mark in marks.items()}
    # The largest of no elements, as of an empty cache, is -infinity; NaN stays.
    ranges = {v: math.inf if size >= _LARGEST else max(size, 0.0) for v, size in sizes.items()}
    return Measured(dataclasses.replace(run, values=len(ranges)), ranges, seen)


def marked(
    model: ir.Model, own: Collection[ir.Value], rounding: Rounding, *, finite: bool = False
) -> tuple[ir.Model, dict[ir.Value, str]]:
    """Return a copy that computes in float32, and the output that has the magnitude of each value.

    Args:
        model: not changed.
        own: its values whose magnitudes are asked for.
        rounding: of its values.
        finite: values are float32, and infinities and NaN count for 0; else they are told from
            numbers.
    """
    copy = model.clone()
    both = ((v for g in graphs_in(one.graph) for v in values_in(g)) for one in (copy, model))
    sources = dict(zip(*both, strict=True))
    nodes = zip(copy.graph.all_nodes(), model.graph.all_nodes(), strict=True)
    same = Rounding(
        {v: rounding.values[of] for v, of in sources.items() if of in rounding.values},
        {node for node, of in nodes if of in rounding.kept},
        {v for v, of in sources.items() if of in rounding.stored},
        {v for v, of in sources.items() if of in rounding.clipped},
    )
    retype(copy, dict.fromkeys(HALF_TYPES, ir.DataType.FLOAT))
    for node in copy.graph.all_nodes():  # the scales of its weights go through Casts here
        node.attributes.pop(LEVEL, None)
    measure = "largest_finite" if finite else "largest"
    marks = Marks({v for v, of in sources.items() if of in own}, same, measure).add(copy.graph)
    copy.graph.outputs.extend(marks.values())
    copy.ir_version = max(copy.ir_version, _WITH_FUNCTIONS)
    opset, copy.opset_imports[_MARK] = copy.opset_imports.setdefault("", _OPSET), 1
    for name, body in _BODIES.items():
        head = f'<domain: "{_MARK}", opset_import: ["": {opset}]>'
        function = onnx.parser.parse_function(f"{head} {name} (x) => (y) {{{body}\n}}")
        copy.functions[_MARK, name, ""] = ir.serde.deserialize_function(function)
    return copy, {sources[value]: mark.name or "" for value, mark in marks.items()}


class Marks:
    """Nodes that compute the largest magnitude of each value, a scalar, and that round values.

    Args:
        values: all that are marked.
        rounding: of the model.
        measure: the function that gives a magnitude.
    """

    def __init__(self, values: set[ir.Value], rounding: Rounding, measure: str) -> None:
        self._values, self._rounding, self._measure = values, rounding, measure
        self._count = 0

    def add(self, graph: ir.Graph) -> dict[ir.Value, ir.Value]:
        """Return the scalar, not an output yet, of each value of a graph and its bodies."""
        nodes = tuple(graph)
        stored = (value for value in graph.initializers.values() if value in self._values)
        marks = {value: self._call(graph, self._measure, value) for value in stored}
        for node in (None, *nodes):
            if node is not None and node.op_type in ("If", "Loop", "Scan"):
                marks |= self._add_to_bodies(graph, node)
            for value in tuple(graph.inputs) if node is None else node.outputs:
                last = self._passed_on(graph, value)
                is_tensor = isinstance(value.type, ir.TensorType | None)
                if is_tensor and value.name != "" and value in self._values:
                    marks[value] = self._call(graph, self._measure, last)
        return marks

    def _passed_on(self, graph: ir.Graph, value: ir.Value) -> ir.Value:
        """Return what a value is in the run, and let the nodes that read it read that."""
        node, last, users = value.producer(), value, tuple(value.uses())
        stored = node.inputs[0] if node is not None and node.op_type == "Cast" else None
        if value in self._rounding.clipped or stored in self._rounding.clipped:
            last = self._call(graph, "clipped", last)
        exact = last
        if value in self._rounding.values:
            last = self._add(graph, "Cast", last, to=self._rounding.values[value])
            last = self._add(graph, "Cast", last, to=FLOAT)
        wide = node in self._rounding.kept
        for user, index in users if last is not value else ():
            both = user in self._rounding.kept and (wide or value in self._rounding.stored)
            user.replace_input_with(index, exact if both else last)
        return exact if wide else last

    def _add_to_bodies(self, graph: ir.Graph, node: ir.Node) -> dict[ir.Value, ir.Value]:
        """Return the scalars of values in bodies, 0 where another branch was taken."""
        bodies, before = tuple(subgraphs(node)), len(node.outputs)
        inner = [self.add(body) for body in bodies]
        for own, body in zip(inner, bodies, strict=True):
            for marks in inner:
                zeros = (self._add(body, "Constant", value=_ZERO) for _ in marks)
                body.outputs.extend(marks.values() if marks is own else zeros)
        values = [value for marks in inner for value in marks]
        node.resize_outputs(before + len(values))
        ends = list(node.outputs[before:])
        for index, end in enumerate(ends):
            end.name = f"{_MARK}.{self._count}.{index}"
        if node.op_type != "If":  # one for each round
            ends = [self._add(graph, "ReduceMax", end, keepdims=0) for end in ends]
        return dict(zip(values, ends, strict=True))

    def _call(self, graph: ir.Graph, function: str, value: ir.Value) -> ir.Value:
        return self._add(graph, function, value, domain=_MARK)

    def _add(
        self, graph: ir.Graph, op: str, *inputs: ir.Value, domain: str = "", **attributes: Any
    ) -> ir.Value:
        """Return the result of a new node, which stands where its first operand is known."""
        self._count += 1
        out = ir.Value(name=f"{_MARK}{self._count}")
        node = ir.node(op, inputs, attributes, domain=domain, outputs=[out])
        insert(graph, inputs[0].producer() if inputs else None, node)
        return out
