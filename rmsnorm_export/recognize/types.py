"""Element types and shapes: what the file says, then local rules, then ONNX shape inference once.

Nothing is written to the graph. A dimension is an int, a symbol (str) or None.
"""

from __future__ import annotations

import logging

import onnx_ir as ir

from rmsnorm_export.op.native import DEFAULT_DOMAINS, MICROSOFT_DOMAIN
from rmsnorm_export.op.spec import DOMAIN
from rmsnorm_export.recognize.consts import Constants, depends_on_caller, standard
from rmsnorm_export.recognize.shape_rules import (
    RULES,
    UNKNOWN,
    Call,
    Dims,
    Info,
    Rule,
    definite,
    merge_dims,
)
from rmsnorm_export.recognize.shape_values import (
    OPERATORS,
    SIZES,
    Held,
    Unnamed,
    elements,
    held,
    in_order,
)

_KNOWN_DOMAINS = (*DEFAULT_DOMAINS, DOMAIN, MICROSOFT_DOMAIN)

_Calls = dict[tuple[ir.OperatorIdentifier, int, tuple[Info, ...]], Info]
"""Function, output and what is known of the inputs -> what is known of the output."""

_MOST_CALLS = 10_000
"""Functions that call functions have as many paths as they like, and a shape for each."""

_MOST_INLINED = 10_000_000
"""Nodes; ONNX shape inference walks a function at every call of it."""

_DEEPEST_CALL = 100
"""A call in a call takes some frames of Python's stack."""

logger = logging.getLogger(__name__)


class Types:
    """Element type and shape of any value of one model."""

    def __init__(
        self, model: ir.Model, constants: Constants, calls: _Calls | None = None, depth: int = 0
    ) -> None:
        self._model = model
        self._constants = constants
        self._calls: _Calls = {} if calls is None else calls
        self._depth = depth
        self._known: dict[ir.Value, Info] = {}
        self._seeds: dict[ir.Value, Info] = {}
        self._elements: dict[ir.Value, Held] = {}
        self._unnamed = 0
        self._inferred: dict[ir.Value, Info] | None = None

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Element type, or None when nothing tells."""
        if value.dtype is not None:
            return value.dtype
        dtype = self._local(value)[0]
        return self._library(value)[0] if dtype is None else dtype

    def shape(self, value: ir.Value) -> Dims:
        """Dimensions, or None when not even the rank is known."""
        own = _declared(value)[1]
        if own is not None and _complete(own):
            return own
        dims = merge_dims(own, self._local(value)[1])
        return self._library(value)[1] if dims is None else dims

    def static_last(self, value: ir.Value) -> int | None:
        """The last dimension if it is a static one."""
        own = _declared(value)[1]
        if own and isinstance(own[-1], int):
            return own[-1]
        dims = self._local(value)[1]
        if dims and isinstance(dims[-1], int):
            return dims[-1]
        dims = self._library(value)[1]
        return dims[-1] if dims and isinstance(dims[-1], int) else None

    def rank(self, value: ir.Value) -> int | None:
        """Number of dimensions, or None."""
        if value.shape is not None:
            return len(value.shape)
        dims = self.shape(value)
        return None if dims is None else len(dims)

    def seed(self, value: ir.Value, info: Info) -> None:
        """Say what a function's input is, from the places that call it."""
        self._known[value] = self._seeds[value] = info

    def integers(self, value: ir.Value) -> tuple[int, ...] | None:
        """The elements of a small tensor of sizes, where all of them are known numbers."""
        self._settle(value, holds=True)
        sizes = in_order(self._elements[value])
        known = tuple(size for size in sizes or () if isinstance(size, int))
        return None if sizes is None or len(known) < len(sizes) else known

    def info(self, value: ir.Value) -> Info:
        """Type and dimensions for a reader, without asking ONNX shape inference."""
        return _said(self._local(value))

    def _local(self, value: ir.Value) -> Info:
        known = self._known
        if value in known:
            return known[value]
        declared = self._told(value)
        if declared[0] is not None and _complete(declared[1]):
            known[value] = declared
            return declared
        self._settle(value, holds=False)
        return known[value]

    def _settle(self, value: ir.Value, *, holds: bool) -> None:
        """Find out the type and shape of a value, or what it ``holds``."""
        known = self._known
        # Depth first with our own stack: chains of a million nodes are no recursion error. What a
        # value holds (True) is asked for where it is a size.
        stack = [(value, holds)]
        opened: set[tuple[ir.Value, bool]] = set()
        while stack:
            top, holds = stack[-1]
            if top in (self._elements if holds else known):
                stack.pop()
                continue
            needed = self._elements_need(top) if holds else self._info_needs(top)
            missing = [
                (v, inner) for v, inner in needed if v not in (self._elements if inner else known)
            ]
            if missing and (top, holds) not in opened:
                opened.add((top, holds))
                stack.extend(missing)
                continue
            stack.pop()
            if holds:
                self._elements[top] = self._held(top)
            else:
                known[top] = self._information(top)

    def _info_needs(self, value: ir.Value) -> list[tuple[ir.Value, bool]]:
        node = value.producer()
        dtype, dims = self._told(value)
        if node is None or self._rule(node) is None or (dtype is not None and _complete(dims)):
            return []
        sizes = SIZES.get(standard(node), ())
        return [(v, i in sizes) for i, v in enumerate(node.inputs) if v is not None]

    def _information(self, value: ir.Value) -> Info:
        node = value.producer()
        declared = self._told(value)
        rule = None if node is None else self._rule(node)
        if node is None or rule is None or (declared[0] is not None and _complete(declared[1])):
            return (declared[0], self._named(declared[1]))
        inputs = [UNKNOWN if v is None else self._known.get(v, UNKNOWN) for v in node.inputs]
        sizes = SIZES.get(standard(node), ())
        given = {
            i: in_order(self._elements.get(v))
            for i, v in enumerate(node.inputs)
            if i in sizes and v
        }
        dtype, dims = rule(Call(node, inputs, value.index() or 0, self._constants, given))
        return (declared[0] or dtype, self._named(merge_dims(declared[1], dims)))

    def _named(self, dims: Dims) -> Dims:
        """A symbol for every unknown dimension: it is as large as itself, wherever it is used."""
        if dims is None or None not in dims:
            return dims
        named: list[int | str] = []
        for size in dims:
            if size is None:
                self._unnamed += 1
                size = Unnamed(f"\0{self._unnamed}")  # no file has such a name
            named.append(size)
        return tuple(named)

    def _elements_need(self, value: ir.Value) -> list[tuple[ir.Value, bool]]:
        node = value.producer()
        if node is None or standard(node) not in OPERATORS or depends_on_caller(node):
            return []
        holds = node.op_type != "Shape"
        return [(v, holds) for v in node.inputs if v is not None]

    def _held(self, value: ir.Value) -> Held:
        known = held(self._constants.array(value))
        node = value.producer()
        if known is not None or node is None or standard(node) not in OPERATORS:
            return known
        if depends_on_caller(node) or None in node.inputs:
            return None
        first = node.inputs[0]
        dims = None if first is None else self._known.get(first, UNKNOWN)[1]
        return elements(node, dims, [self._elements.get(v) for v in node.inputs if v is not None])

    def _rule(self, node: ir.Node) -> Rule | None:
        if node.op_identifier() in self._model.functions:
            return self._called
        return _rule(node)

    def _called(self, call: Call) -> Info:
        """An output of a function call: that of the body, for inputs like these."""
        # A symbol of one call is not that of another.
        given = [_said(info) for info in call.inputs]
        key = (call.node.op_identifier(), call.index, tuple(given))
        if key in self._calls:
            return self._calls[key]
        if len(self._calls) >= _MOST_CALLS or self._depth >= _DEEPEST_CALL:
            return UNKNOWN
        self._calls[key] = UNKNOWN
        self._calls[key] = self._body(call, given)
        return self._calls[key]

    def _body(self, call: Call, given: list[Info]) -> Info:
        function = self._model.functions[call.node.op_identifier()]
        inner = Types(self._model, self._constants, self._calls, self._depth + 1)
        inner._inferred = {}
        for position, value in enumerate(function.inputs):
            inner.seed(value, given[position] if position < len(given) else UNKNOWN)
        # The types of one call are not those of the function: a CastLike is no constant here.
        type_of, self._constants.type_of = self._constants.type_of, None
        try:
            return inner.info(function.outputs[call.index])
        finally:
            self._constants.type_of = type_of

    def _library(self, value: ir.Value) -> Info:
        if self._inferred is None:
            self._inferred = self._infer()
            # What the local rules could not tell may follow from what is known now.
            self._known = dict(self._seeds)
            self._elements.clear()
        return self._local(value)

    def _told(self, value: ir.Value) -> Info:
        """What the file says, and shape inference once it has run."""
        dtype, dims = _declared(value)
        if self._inferred:
            inferred = self._inferred.get(value, UNKNOWN)
            return (dtype or inferred[0], merge_dims(dims, inferred[1]))
        return (dtype, dims)

    def _infer(self) -> dict[ir.Value, Info]:
        from onnx_ir.passes.common import ShapeInferencePass

        result: dict[ir.Value, Info] = {}
        if inlined_size(self._model) > _MOST_INLINED:
            logger.warning("ONNX shape inference is left out: its functions call too many others")
            return result
        # The pass logs its own failures with a traceback; ours is one line.
        noisy = logging.getLogger("onnx_ir.passes.common.shape_inference")
        level = noisy.level
        noisy.setLevel(logging.CRITICAL)
        try:
            copy = self._model.clone()
            inferred = ShapeInferencePass()(copy).model
            pairs = zip(self._model.graph.all_nodes(), inferred.graph.all_nodes(), strict=True)
            for ours, theirs in pairs:
                for value, other in zip(ours.outputs, theirs.outputs, strict=True):
                    result[value] = _inferred(other)
        except Exception as error:
            # Inference is an aid: a model that it cannot read only keeps its unknown shapes.
            logger.warning("ONNX shape inference failed, unknown shapes stay unknown: %s", error)
        finally:
            noisy.setLevel(level)
        return result


def inlined_size(model: ir.Model) -> int:
    """Nodes of the model if every call were replaced by its body, as shape inference walks it."""
    functions, sizes = model.functions, dict[ir.OperatorIdentifier, int]()
    stack = list(functions)
    while stack:
        name = stack[-1]
        called = [node.op_identifier() for node in functions[name].all_nodes()]
        missing = [other for other in called if other in functions and other not in sizes]
        if name in sizes or not missing:
            stack.pop()
            # Kept small: the number itself would have a digit for every few levels.
            size = sum(sizes.get(other, 1) for other in called)
            sizes[name] = min(size, _MOST_INLINED + 1)
        stack += missing
    return sum(sizes.get(node.op_identifier(), 1) for node in model.graph.all_nodes())


def _rule(node: ir.Node) -> Rule | None:
    """The rule for a node; none where an attribute depends on a function's caller."""
    if node.domain not in _KNOWN_DOMAINS:
        return None
    return None if depends_on_caller(node) else RULES.get(node.op_type)


def _complete(dims: Dims) -> bool:
    """The file says enough: a symbol may stand for a known number, which matters in a row alone."""
    if dims is None or any(definite(d) < 2 for d in dims):
        return False
    return not dims or isinstance(dims[-1], int)


def _said(info: Info) -> Info:
    """``info`` without symbols that the file does not have."""
    dtype, dims = info
    if dims is None:
        return info
    return (dtype, tuple(None if isinstance(d, Unnamed) else d for d in dims))


def _inferred(value: ir.Value) -> Info:
    """What shape inference says; the symbols that it made up are names of no file."""
    dtype, dims = _declared(value)
    if dims is None:
        return (dtype, None)
    made_up = [isinstance(d, str) and d.startswith("unk__") for d in dims]
    return (dtype, tuple(Unnamed(d) if new else d for d, new in zip(dims, made_up, strict=True)))


def _declared(value: ir.Value) -> Info:
    shape = value.shape
    if shape is None:
        return (value.dtype, None)
    return (value.dtype, tuple(d if isinstance(d, int) else d.value for d in shape))
