"""A model in interval arithmetic: its graphs, its functions and its control flow.

Independent of the package: it reads the file as onnx describes it, and knows of no norm but the
operators that runtimes have for one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.tools.fuzz.intervals import Arithmetic, Array, Mode, Value, is_float
from tests.tools.fuzz.operators import OUTPUTS, CannotEvaluateError, by_reference, kernel_of

_MOST_CALLS = 32
_MOST_ITERATIONS = 64

Scope = dict[str, Value]
Attributes = dict[str, onnx.AttributeProto]


class _Node:
    """A node, read once."""

    __slots__ = (
        "attributes",
        "bodies",
        "domain",
        "inputs",
        "op_type",
        "outputs",
        "plain",
        "refers",
    )

    def __init__(self, proto: onnx.NodeProto) -> None:
        self.op_type = proto.op_type
        self.domain = "" if proto.domain == "ai.onnx" else proto.domain
        self.inputs, self.outputs = tuple(proto.input), tuple(proto.output)
        self.attributes: Attributes = {a.name: a for a in proto.attribute}
        self.refers = any(a.ref_attr_name for a in proto.attribute)
        self.bodies = {a.name: _Graph(a.g) for a in proto.attribute if a.HasField("g")}
        self.plain = None if self.refers or self.bodies else _plain(self.attributes)


class _Graph:
    """A graph or the body of a function, read once."""

    __slots__ = ("initializers", "inputs", "nodes", "outputs")

    def __init__(self, proto: onnx.GraphProto | onnx.FunctionProto) -> None:
        self.nodes = [_Node(node) for node in proto.node]
        if isinstance(proto, onnx.FunctionProto):
            self.inputs, self.outputs = tuple(proto.input), tuple(proto.output)
            self.initializers: dict[str, Array] = {}
        else:
            self.inputs = tuple(value.name for value in proto.input)
            self.outputs = tuple(value.name for value in proto.output)
            self.initializers = {t.name: _array(t) for t in proto.initializer}


class Program:
    """A model, read once and run often.

    Raises:
        CannotEvaluateError: a constant holds no numbers.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = _Graph(model.graph)
        self.opset = _default_opset(model.opset_import)
        self.functions = {
            (f.domain, f.name): (
                _Graph(f),
                {a.name: a for a in f.attribute_proto},
                _default_opset(f.opset_import),
            )
            for f in model.functions
        }

    def run(
        self,
        feeds: Mapping[str, Array],
        mode: Mode,
        *,
        slack: frozenset[str] = frozenset(),
        trace: dict[str, Value] | None = None,
    ) -> dict[str, Value]:
        """Outputs by name.

        Args:
            feeds: an array for every input without a default value.
            slack: values that may be a unit of their half type off (`Arithmetic.slackened`).
            trace: receives every value that was computed, of the last run of its scope.

        Raises:
            CannotEvaluateError: an operator is unknown, or its operands do not fit.
        """
        run = _Run(self, mode, slack, trace)
        with np.errstate(all="ignore"):
            return run.main(feeds)


class _Run:
    def __init__(
        self,
        program: Program,
        mode: Mode,
        slack: frozenset[str],
        trace: dict[str, Value] | None,
    ) -> None:
        self.program, self.slack, self.trace = program, slack, trace
        self.calculus = Arithmetic(mode)

    def main(self, feeds: Mapping[str, Array]) -> dict[str, Value]:
        graph = self.program.graph
        scope = {name: self.calculus.constant(a) for name, a in graph.initializers.items()}
        for name in graph.inputs:
            if name in feeds:
                scope[name] = self.calculus.input(np.asarray(feeds[name]))
            elif name not in scope:
                raise CannotEvaluateError(f"nothing is fed to {name}")
            else:  # a default value can be replaced: it is no constant
                scope[name] = self.calculus.input(scope[name].lo)
        self._nodes(graph.nodes, scope, {}, self.program.opset, 0)
        return {name: _known(scope, name) for name in graph.outputs}

    def _nodes(
        self,
        nodes: Sequence[_Node],
        scope: Scope,
        references: Attributes,
        opset: int,
        depth: int,
    ) -> None:
        for node in nodes:
            given = [_known(scope, name) if name else None for name in node.inputs]
            results = self._node(node, given, references, scope, opset, depth)
            for name, result in zip(node.outputs, results, strict=False):
                if not name or result is None:
                    continue
                if name in self.slack:
                    result = self.calculus.slackened(result)
                scope[name] = result
                if self.trace is not None:
                    self.trace[name] = result

    def _node(
        self,
        node: _Node,
        given: list[Value | None],
        references: Attributes,
        scope: Scope,
        opset: int,
        depth: int,
    ) -> Sequence[Value | None]:
        attributes = _resolved(node.attributes, references) if node.refers else node.attributes
        if (node.domain, node.op_type) in self.program.functions:
            return self._call(node, given, attributes, depth)
        if node.bodies and (control := _CONTROL.get(node.op_type)) is not None:
            return control(self, given, node, scope, opset, depth)
        plain = _plain(attributes) if node.plain is None else node.plain
        if node.op_type == "Constant" and not node.domain:
            return [self.calculus.constant(_constant(attributes))]
        kernel = kernel_of(node.domain, node.op_type)
        try:
            if kernel is not None:
                return kernel(self.calculus, given, {**plain, OUTPUTS: len(node.outputs)})
            if node.domain:
                raise CannotEvaluateError(f"no kernel for {node.domain}.{node.op_type}")
            whole = onnx.NodeProto(op_type=node.op_type, output=node.outputs)
            whole.attribute.extend(attributes.values())
            return by_reference(self.calculus, whole, given, opset)
        except (ValueError, IndexError, TypeError, KeyError, ArithmeticError) as error:
            raise CannotEvaluateError(f"{node.op_type}: {error}") from error

    def _call(
        self, node: _Node, given: Sequence[Value | None], attributes: Attributes, depth: int
    ) -> list[Value | None]:
        if depth >= _MOST_CALLS:
            raise CannotEvaluateError("functions call one another too deeply")
        body, defaults, opset = self.program.functions[node.domain, node.op_type]
        scope = {n: v for n, v in zip(body.inputs, given, strict=False) if v is not None}
        self._nodes(body.nodes, scope, {**defaults, **attributes}, opset, depth + 1)
        return [scope.get(name) for name in body.outputs]

    def _graph(
        self, graph: _Graph, outer: Scope, own: Scope, opset: int, depth: int
    ) -> list[Value]:
        scope = {**outer, **own}
        for name, array in graph.initializers.items():
            scope[name] = self.calculus.constant(array)
        self._nodes(graph.nodes, scope, {}, opset, depth + 1)
        return [_known(scope, name) for name in graph.outputs]

    def _if(
        self, given: list[Value | None], node: _Node, scope: Scope, opset: int, depth: int
    ) -> list[Value]:
        branch = "then_branch" if _scalar(given[0]) else "else_branch"
        return self._graph(node.bodies[branch], scope, {}, opset, depth)

    def _loop(
        self, given: list[Value | None], node: _Node, scope: Scope, opset: int, depth: int
    ) -> list[Value]:
        body = node.bodies["body"]
        carried = [value for value in given[2:] if value is not None]
        trips = _MOST_ITERATIONS + 1 if given[0] is None else int(_scalar(given[0]))
        if trips > _MOST_ITERATIONS and given[1] is None:
            raise CannotEvaluateError("a loop is too long")
        going = given[1] is None or bool(_scalar(given[1]))
        rows: list[list[Value]] = []
        count = 0
        while going and count < trips:
            if count > _MOST_ITERATIONS:
                raise CannotEvaluateError("a loop is too long")
            names = body.inputs
            own = [
                self.calculus.constant(np.asarray(count, np.int64)),
                self.calculus.constant(np.asarray(going)),
                *carried,
            ]
            out = self._graph(body, scope, dict(zip(names, own, strict=True)), opset, depth)
            going, carried = bool(_scalar(out[0])), out[1 : 1 + len(carried)]
            rows.append(out[1 + len(carried) :])
            count += 1
        return [*carried, *self._stacked(rows, len(body.outputs) - 1 - len(carried))]

    def _scan(
        self, given: list[Value | None], node: _Node, scope: Scope, opset: int, depth: int
    ) -> list[Value]:
        if set(node.attributes) - {"body", "num_scan_inputs"}:
            raise CannotEvaluateError("a Scan with axes or directions")
        body = node.bodies["body"]
        number = node.attributes["num_scan_inputs"].i
        values = [value for value in given if value is not None]
        state, scanned = values[: len(values) - number], values[len(values) - number :]
        rows: list[list[Value]] = []
        names = body.inputs
        for index in range(scanned[0].lo.shape[0]):
            rows_in = [self.calculus.views(lambda a, i=index: a[i], value) for value in scanned]
            own = dict(zip(names, [*state, *rows_in], strict=True))
            out = self._graph(body, scope, own, opset, depth)
            state = out[: len(state)]
            rows.append(out[len(state) :])
        return [*state, *self._stacked(rows, len(body.outputs) - len(state))]

    def _stacked(self, rows: list[list[Value]], columns: int) -> list[Value]:
        if columns and not rows:
            raise CannotEvaluateError("a loop without iterations has outputs of no known shape")
        return [
            self.calculus.joined(lambda *a: np.stack(a), [row[column] for row in rows])
            for column in range(columns)
        ]


def _known(scope: Scope, name: str) -> Value:
    if name not in scope:
        raise CannotEvaluateError(f"{name} has no value")
    return scope[name]


def _scalar(value: Value | None) -> Any:
    if value is None or value.lo.size != 1:
        raise CannotEvaluateError("control flow without a scalar")
    if not np.array_equal(value.lo, value.hi):
        raise CannotEvaluateError("control flow depends on rounding")
    return value.lo.reshape(())


def _default_opset(imports: Sequence[onnx.OperatorSetIdProto]) -> int:
    return next((e.version for e in imports if e.domain in ("", "ai.onnx")), 1)


def _array(tensor: onnx.TensorProto) -> Array:
    return np.asarray(numpy_helper.to_array(tensor))


def _constant(attributes: Mapping[str, onnx.AttributeProto]) -> Array:
    for name, attribute in attributes.items():
        if name == "value":
            return _array(attribute.t)
        if name in ("value_float", "value_floats"):
            return np.asarray(onnx.helper.get_attribute_value(attribute), np.float32)
        if name in ("value_int", "value_ints"):
            return np.asarray(onnx.helper.get_attribute_value(attribute), np.int64)
    raise CannotEvaluateError("a Constant without a number")


def _plain(attributes: Attributes) -> dict[str, Any]:
    values = {name: onnx.helper.get_attribute_value(a) for name, a in attributes.items()}
    return {n: v.decode() if isinstance(v, bytes) else v for n, v in values.items()}


def _resolved(attributes: Attributes, references: Attributes) -> Attributes:
    """The attributes of a node of a function; one that refers to nothing is absent."""
    out = {}
    for attribute in attributes.values():
        if not attribute.ref_attr_name:
            out[attribute.name] = attribute
        elif attribute.ref_attr_name in references:
            known = onnx.AttributeProto()
            known.CopyFrom(references[attribute.ref_attr_name])
            known.name = attribute.name
            out[attribute.name] = known
    return out


def rounded(value: Value) -> Array:
    """A point in its declared type."""
    return value.lo.astype(value.dtype) if is_float(value.dtype) else value.lo


_CONTROL = {"If": _Run._if, "Loop": _Run._loop, "Scan": _Run._scan}
