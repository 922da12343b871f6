"""Element types and shapes: what the file says, then local rules, then the operator's own rule.

Nothing is written to the graph, and nothing is computed but sizes. A dimension is an int, a symbol
(str) or None. A name of a dimension is that of one size in the main graph alone: a body runs again
with other sizes, and a function is called with others.
"""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir

from rmsnorm_export.recognize import bodies, shape_values
from rmsnorm_export.recognize.consts import Constants, depends_on_caller, standard
from rmsnorm_export.recognize.contrib import rule_of
from rmsnorm_export.recognize.schema import by_schema
from rmsnorm_export.recognize.shape_rules import (
    RULES,
    UNKNOWN,
    Call,
    Dims,
    Info,
    Rule,
    applied,
    definite,
    merge_dims,
)

_Calls = dict[tuple[ir.OperatorIdentifier, int, tuple[Info, ...]], Info]
"""Function, output and what is known of the inputs -> what is known of the output."""

_MOST_CALLS = 10_000
"""Functions that call functions have as many paths as they like, and a shape for each."""

_DEEPEST_CALL = 100
"""A call in a call takes some frames of Python's stack."""


class Types:
    """Element type and shape of any value of one model.

    Args:
        model: not changed.
        constants: of the model; None: some of its own.
        caller: of the graph or function that calls the one whose inputs are seeded.
    """

    def __init__(
        self, model: ir.Model, constants: Constants | None = None, caller: Types | None = None
    ) -> None:
        self._model = model
        self._constants = constants or Constants()
        self._calls: _Calls = {} if caller is None else caller._calls
        self._depth: int = 0 if caller is None else caller._depth + 1
        self._infos: dict[ir.Value, Info] = {}
        self._elements: dict[ir.Value, shape_values.Held] = {}
        self._unnamed = (shape_values.Unnamed(f"{n}\0") for n in itertools.count(1))
        self._owners: dict[ir.Graph, ir.Node] | None = None if caller is None else caller._bodies()
        self._scopes: dict[ir.Graph | None, str] = {}

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Element type, or None when nothing tells."""
        return value.dtype or self._local(value)[0]

    def shape(self, value: ir.Value) -> Dims:
        """Dimensions, or None when not even the rank is known."""
        return self._local(value)[1]

    def static_last(self, value: ir.Value) -> int | None:
        """The last dimension if it is a static one."""
        if value.shape is not None and len(value.shape) and isinstance(value.shape[-1], int):
            return value.shape[-1]
        dims = self._local(value)[1]
        return dims[-1] if dims and isinstance(dims[-1], int) else None

    def rank(self, value: ir.Value) -> int | None:
        """Number of dimensions, or None."""
        if value.shape is not None:
            return len(value.shape)
        dims = self.shape(value)
        return None if dims is None else len(dims)

    def seed(self, value: ir.Value, info: Info) -> None:
        """Say what a function's input is, from the places that call it."""
        self._infos[value] = info

    def sizes(self, value: ir.Value | None) -> Dims:
        """The elements of a small tensor of sizes, as far as they are known."""
        if value is None:
            return None
        self._settle(value, holds=True)
        return shape_values.in_order(self._elements[value])

    def integers(self, value: ir.Value) -> tuple[int, ...] | None:
        """The elements of a small tensor of sizes, where all of them are known numbers."""
        return shape_values.static(self.sizes(value))

    def info(self, value: ir.Value) -> Info:
        """Type and dimensions for a reader."""
        dtype, dims = self._local(value)
        return (dtype, shape_values.outside(dims))

    def words(self, value: ir.Value) -> str:
        """Type and dimensions in words."""
        dtype, dims = self.info(value)
        shape = "unknown shape" if dims is None else f"shape {list(dims)}"
        return f"{'unknown type' if dtype is None else dtype.name}, {shape}"

    def _local(self, value: ir.Value) -> Info:
        infos = self._infos
        if value in infos:
            return infos[value]
        declared = self._declared(value)
        if declared[0] is not None and _complete(declared[1]):
            infos[value] = declared
            return declared
        self._settle(value, holds=False)
        return infos[value]

    def _settle(self, value: ir.Value, *, holds: bool) -> None:
        """Find out the type and shape of a value, or what it ``holds``."""
        infos = self._infos
        # Depth first with our own stack: chains of a million nodes are no recursion error. What a
        # value holds (True) is asked for where it is a size.
        stack = [(value, holds)]
        opened: set[tuple[ir.Value, bool]] = set()
        while stack:
            top, holds = stack[-1]
            if top in (self._elements if holds else infos):
                stack.pop()
                continue
            needed = self._elements_need(top) if holds else self._info_needs(top)
            missing = [
                (v, inner) for v, inner in needed if v not in (self._elements if inner else infos)
            ]
            if missing and (top, holds) not in opened:
                opened.add((top, holds))
                stack.extend(missing)
                continue
            stack.pop()
            if holds:
                self._elements[top] = self._held(top)
            else:
                infos[top] = self._information(top)

    def _info_needs(self, value: ir.Value) -> list[tuple[ir.Value, bool]]:
        node = value.producer()
        dtype, dims = self._declared(value)
        if dtype is not None and _complete(dims):
            return []
        if node is None:
            source = self._goes_in(value)[1]
            return [] if source is None else [(source, False)]
        if standard(node) in bodies.FLOW:
            return [(v, False) for v in bodies.needs_of_output(node, value.index() or 0)]
        if not standard(node) and self._rule(node) is None:
            return []
        sizes, inputs = shape_values.SIZES.get(standard(node), ()), list(enumerate(node.inputs))
        held_too = [(v, True) for i, v in inputs if v is not None and i in sizes]
        return [*held_too, *((v, False) for _, v in inputs if v is not None)]

    def _information(self, value: ir.Value) -> Info:
        dtype, dims = self._declared(value)
        if dtype is None or not _complete(dims):
            inferred = self._inferred(value)
            dtype, dims = dtype or inferred[0], merge_dims(dims, inferred[1])
        return (dtype, self._named(dims))

    def _inferred(self, value: ir.Value) -> Info:
        """Infer from what is known of the node's inputs, or goes into a body."""
        node, index = value.producer(), value.index() or 0
        if node is None:
            owner, source = self._goes_in(value)
            info = UNKNOWN if source is None else self._infos.get(source, UNKNOWN)
            if owner is None or value.graph is None:
                return UNKNOWN
            return bodies.info_of_input(owner, value.graph.inputs.index(value), info)
        if standard(node) in bodies.FLOW:
            infos = [self._infos.get(v, UNKNOWN) for v in bodies.needs_of_output(node, index)]
            return bodies.info_of_output(node, index, infos)
        rule = self._rule(node)
        inputs = [UNKNOWN if v is None else self._infos.get(v, UNKNOWN) for v in node.inputs]
        sizes = {
            i: shape_values.in_order(self._elements.get(v))
            for i in shape_values.SIZES.get(standard(node), ())
            if i < len(node.inputs) and (v := node.inputs[i])
        }
        call = Call(node, inputs, index, self._constants, sizes)
        info = UNKNOWN if rule is None else applied(rule, call)
        if info[0] is not None and info[1] is not None and None not in info[1]:
            return info
        if not standard(node) or depends_on_caller(node) or rule == self._called:
            return info
        # A rule has seen what these hold already, and knows where runtimes differ.
        data = self._small(node, call) if rule is None else {}
        asked = by_schema(node, inputs, data, index, self._opset(node))
        return (info[0] or asked[0], merge_dims(info[1], asked[1]))

    def _small(self, node: ir.Node, call: Call) -> dict[int, np.ndarray]:
        """The inputs whose elements are known and few."""
        arrays: dict[int, np.ndarray] = {}
        for index, value in enumerate(node.inputs):
            array, sizes = self._constants.array(value), call.ints(index)
            if array is not None and array.dtype.kind in "iuf":
                arrays[index] = array
            elif sizes is not None:
                arrays[index] = np.array(sizes, np.int64)
        return arrays

    def _goes_in(self, value: ir.Value) -> tuple[ir.Node | None, ir.Value | None]:
        """For an input of a body the node that has it, and what goes in at first."""
        graph = value.graph
        owner = self._bodies().get(graph) if graph is not None and value.is_graph_input() else None
        if graph is None or owner is None or standard(owner) not in ("Loop", "Scan"):
            return (None, None)
        return (owner, bodies.source_of_input(owner, graph.inputs.index(value)))

    def _bodies(self) -> dict[ir.Graph, ir.Node]:
        if self._owners is None:
            self._owners = bodies.all_bodies(self._model)
        return self._owners

    def _opset(self, node: ir.Node) -> int:
        """Version of the default domain where ``node`` stands."""
        graph = node.graph
        while graph is not None and graph in self._bodies():
            graph = self._bodies()[graph].graph
        imports = self._model.opset_imports if graph is None else graph.opset_imports
        return imports.get("", imports.get("ai.onnx", 1))

    def _declared(self, value: ir.Value) -> Info:
        """Return what the file says; a name in a body or function is another than outside."""
        if value.shape is None:
            return (value.dtype, None)
        dims = tuple(d if isinstance(d, int) else d.value for d in value.shape)
        graph = value.graph
        if graph is not self._model.graph and any(isinstance(d, str) for d in dims):
            scope = self._scopes.setdefault(graph, f"body {len(self._scopes)}")
            dims = tuple(
                shape_values.Unnamed(f"{scope}\0{d}") if isinstance(d, str) else d for d in dims
            )
        return (value.dtype, dims)

    def _named(self, dims: Dims) -> Dims:
        """A symbol for every unknown dimension: it is as large as itself, wherever it is used."""
        if dims is None or None not in dims:
            return dims
        return tuple(next(self._unnamed) if size is None else size for size in dims)

    def _elements_need(self, value: ir.Value) -> list[tuple[ir.Value, bool]]:
        node = value.producer()
        if node is None or standard(node) not in shape_values.OPERATORS or depends_on_caller(node):
            return []
        holds = node.op_type != "Shape"
        return [(value, False), *((v, holds) for v in node.inputs if v is not None)]

    def _held(self, value: ir.Value) -> shape_values.Held:
        constant = shape_values.held(self._constants.array(value))
        node = value.producer()
        if constant is not None or node is None or standard(node) not in shape_values.OPERATORS:
            return constant
        if depends_on_caller(node) or None in node.inputs or not node.inputs:
            return None
        first = node.inputs[0]
        dims = None if first is None else self._infos.get(first, UNKNOWN)[1]
        parts = [self._elements.get(v) for v in node.inputs if v is not None]
        return shape_values.elements(node, dims, parts, self._infos[value][0])

    def _rule(self, node: ir.Node) -> Rule | None:
        if node.op_identifier() in self._model.functions:
            return self._called
        if depends_on_caller(node):
            return None
        op_type = standard(node)
        return RULES.get(op_type) or rule_of("" if op_type else node.domain, node.op_type)

    def _called(self, call: Call) -> Info:
        """An output of a function call: that of the body, for inputs like these."""
        # A symbol of one call is not that of another.
        inputs: list[Info] = [(dtype, shape_values.outside(dims)) for dtype, dims in call.inputs]
        key = (call.node.op_identifier(), call.index, tuple(inputs))
        if key in self._calls:
            return self._calls[key]
        if len(self._calls) >= _MOST_CALLS or self._depth >= _DEEPEST_CALL:
            return UNKNOWN
        self._calls[key] = UNKNOWN
        self._calls[key] = self._body(call, inputs)
        return self._calls[key]

    def _body(self, call: Call, inputs: list[Info]) -> Info:
        function = self._model.functions[call.node.op_identifier()]
        inner = Types(self._model, self._constants, self)
        for position, value in enumerate(function.inputs):
            inner.seed(value, inputs[position] if position < len(inputs) else UNKNOWN)
        # The types of one call are not those of the function: a CastLike is no constant here, nor
        # is a size.
        info_of, self._constants.info_of = self._constants.info_of, None
        try:
            return inner.info(function.outputs[call.index])
        finally:
            self._constants.info_of = info_of


def _complete(dims: Dims) -> bool:
    """The file says enough: a symbol may stand for a known number, which matters in a row alone."""
    if dims is None or any(definite(d) < 2 for d in dims):
        return False
    return not dims or isinstance(dims[-1], int)
