"""Evaluate a small model in NumPy: in its declared types, or in float64 with nothing rounded.

The first is what the file says, step by step; a runtime may keep more precision than that (ONNX
Runtime's CPU provider drops the rounding of float16 casts between float32 operators, observed in
1.31 with graph optimization disabled). The second is the mathematics of the model: every float
that depends on an input is a float64, while constants and what is computed from constants alone
keep the value that their own type gives them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.functions import inline
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.proof.operators import cannot_evaluate, cast, kernel_of, run_reference
from rmsnorm_export.recognize.bodies import FLOW, bodies_of, inputs_of
from rmsnorm_export.recognize.consts import Constants, standard, stored_tensor
from rmsnorm_export.recognize.functions import inlined_size
from rmsnorm_export.recognize.schema import by_schema
from rmsnorm_export.recognize.shape_rules import UNKNOWN
from rmsnorm_export.runtime.metrics import is_float

_FLOAT64 = np.dtype(np.float64)
_MOST_NODES = 4096
"""With the bodies of functions in the place of their calls."""
_MOST_ELEMENTS = 2**23
"""Of one result: twice what a proof feeds."""
_MOST_IN_ALL = 2**27
_MOST_RUNS = 4096
"""Of a Loop."""
_COST_OF_NODE = 128
"""Elements that take as long as a node of a body: loops in loops may have results without any."""
_MOST_READ = 64
"""Elements of an operand that may say how large a result is."""
_INTS = ir.AttributeType.INTS
_FLOAT_ATTRIBUTES = (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS)


@dataclasses.dataclass(frozen=True, slots=True)
class _Tensor:
    """A value: its array, the type that the model gives it, whether constants alone made it."""

    array: Array
    dtype: np.dtype[Any]
    constant: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Float64Result:
    """Outputs in float64, and the float constants that met values which depend on an input."""

    outputs: dict[str, Array]
    constants: tuple[Array, ...]


_Tensors = Sequence[_Tensor | None]
_RunBody = Callable[[_Tensors], list[_Tensor]]


def run_numpy(model: ir.Model, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Compute the outputs of ``model`` with every operator rounded once, in its declared type.

    Args:
        model: made of operators and model-local functions.
        feeds: an array for every graph input.

    Raises:
        InputError: an operator is unknown or cannot be evaluated.
    """
    return _Evaluator(model, promote=False).run(feeds)


def run_float64(
    model: ir.Model, feeds: Mapping[str, Array], most: int = _MOST_IN_ALL
) -> Float64Result:
    """Compute the outputs with every float type that depends on an input turned into float64.

    Arguments and errors as ``run_numpy``; ``feeds`` are widened, not rounded. ``most``: elements of
    all results.
    """
    evaluator = _Evaluator(model, promote=True, most=most)
    return Float64Result(evaluator.run(feeds), tuple(evaluator.constants))


def _computed(model: ir.Model, *, unrounded: bool) -> ir.Graph:
    """Return the graph whose nodes are computed: the model's own, or what `_rewritten` makes of it.

    Raises:
        InputError: it is too large, or a function does not fit a call.
    """
    if (nodes := inlined_size(model)) > _MOST_NODES:
        raise _too_much("nodes", nodes, _MOST_NODES)
    unrounded &= any(node.op_type == "DequantizeLinear" for node in model.graph)
    return _rewritten(model, unrounded) if unrounded or model.functions else model.graph


@functools.lru_cache(4)  # a proof computes the same few models with many rows
def _rewritten(model: ir.Model, unrounded: bool) -> ir.Graph:
    """Return a copy with functions in the place of their calls, each node with its own version.

    Where it is ``unrounded``, without pairs of QuantizeLinear and DequantizeLinear.
    """
    copy = model.clone()
    holders: list[ir.Graph | ir.Function] = [copy.graph, *copy.functions.values()]
    for holder in holders:
        for node in holder:
            node.version = holder.opset_imports.get(node.domain)
    for function in copy.functions.values():
        function.opset_imports.update(copy.opset_imports)
    try:
        copy = inline(copy)
    except ValueError as error:
        fix = "verify the models as a whole in ONNX Runtime instead"
        raise cannot_evaluate("of a function", str(error), fix) from error
    constants = Constants()
    for node in copy.graph if unrounded else ():
        if (source := constants.unrounded(node)) is not None:
            node.outputs[0].replace_all_uses_with(source, replace_graph_outputs=True)
    passes.RemoveUnusedNodesPass()(copy)
    return copy.graph


class _Evaluator:
    def __init__(self, model: ir.Model, *, promote: bool, most: int = _MOST_IN_ALL) -> None:
        self._graph = _computed(model, unrounded=promote)
        self._promote = promote
        self._most = most
        self.constants: list[Array] = []
        self._elements = 0

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        graph = self._graph
        values = _stored(graph)
        for value in graph.inputs:
            array = np.asarray(feeds[value.name or ""])
            values[value] = _Tensor(self._input(array), array.dtype, False)
        # Overflow, 0/0 and the like are results here, not accidents.
        with np.errstate(all="ignore"):
            self._run_nodes(graph, values)
        return {value.name or "": self._input(values[value].array) for value in graph.outputs}

    def _input(self, array: Array) -> Array:
        return cast(array, _FLOAT64) if self._promote and is_float(array.dtype) else array

    def _run_nodes(self, graph: ir.Graph, values: dict[ir.Value, _Tensor]) -> None:
        last = {v: node for node in graph for v in inputs_of(node) if v is not None}
        for node in graph:
            tensors = [None if value is None else values[value] for value in node.inputs]
            flow = standard(node) in FLOW
            results = self._flow(node, tensors, values) if flow else self._apply(node, tensors)
            for value, result in zip(node.outputs, results, strict=False):
                if result is not None:
                    values[value] = result
                    self._spend(result.array.size)
            for operand in set(node.inputs):
                if operand is not None and last[operand] is node and not operand.is_graph_output():
                    values.pop(operand, None)

    def _spend(self, elements: int) -> None:
        self._elements += elements
        if self._elements > self._most:
            raise _too_much("elements", self._elements, self._most)

    def _flow(
        self, node: ir.Node, tensors: _Tensors, values: Mapping[ir.Value, _Tensor]
    ) -> _Tensors:
        """Run one body of an If, or that of a Loop or Scan as often as it does.

        ``values``: those that bodies may read.
        """
        bodies = dict(bodies_of(node))
        try:
            if node.op_type == "If":
                taken = "then_branch" if _is_true(tensors[0]) else "else_branch"
                return self._run_body(bodies[taken], (), values)
            run = functools.partial(self._run_body, bodies["body"], values=values)
            return _looped(tensors, run) if node.op_type == "Loop" else _scanned(node, tensors, run)
        except (ValueError, IndexError, KeyError, TypeError) as error:
            fix = "check the bodies of its control flow"
            raise cannot_evaluate(node.op_type, str(error), fix) from error

    def _run_body(
        self, body: ir.Graph, inputs: _Tensors, values: Mapping[ir.Value, _Tensor]
    ) -> list[_Tensor]:
        self._spend(_COST_OF_NODE * (1 + len(body)))
        inner = dict(zip(body.inputs, (tensor for tensor in inputs if tensor), strict=True))
        own = {**values, **_stored(body), **inner}
        self._run_nodes(body, own)
        return [own[value] for value in body.outputs]

    def _apply(self, node: ir.Node, tensors: _Tensors) -> _Tensors:
        operands = [tensor for tensor in tensors if tensor is not None]
        constant = all(tensor.constant for tensor in operands)
        if not node.domain and node.op_type in ("Cast", "CastLike"):
            return [self._cast(node, tensors)]
        if not node.domain and node.op_type == "Constant":
            if (tensor := stored_tensor(node.outputs[0])) is None:
                fix = "use a tensor, float or integer constant"
                raise cannot_evaluate("Constant", f"attributes {sorted(node.attributes)}", fix)
            return [_constant(np.asarray(tensor.numpy()))]
        promote = self._promote and not constant
        arrays = [None if t is None else self._operand(t, promote) for t in tensors]
        floats = [tensor.dtype for tensor in operands if is_float(tensor.dtype)]
        opset = node.version or self._graph.opset_imports.get("", 1)
        results: list[_Tensor | None] = []
        for result in _outputs_of(node, arrays, opset, self._most):
            if result is None:
                results.append(None)
            elif promote and is_float(result.dtype):
                dtype = floats[0] if floats else result.dtype
                results.append(_Tensor(cast(result, _FLOAT64), dtype, constant))
            else:
                results.append(_Tensor(result, result.dtype, constant))
        return results

    def _operand(self, tensor: _Tensor, promote: bool) -> Array:
        if not promote or not is_float(tensor.array.dtype):
            return tensor.array
        if tensor.constant:
            self.constants.append(tensor.array)
        return cast(tensor.array, _FLOAT64)

    def _cast(self, node: ir.Node, tensors: _Tensors) -> _Tensor:
        """To a float type: a rounding for constants, nothing for the rest when all is float64."""
        source, like = (*tensors, None, None)[:2]
        if source is None:
            raise cannot_evaluate(node.op_type, "no input", "repair the model")
        if node.op_type == "Cast":
            dtype = ir.DataType(node.attributes["to"].as_int()).numpy()
        else:
            dtype = source.dtype if like is None else like.dtype
        keeps = self._promote and not source.constant and is_float(dtype)
        return _Tensor(cast(source.array, _FLOAT64 if keeps else dtype), dtype, source.constant)


def _constant(array: Array) -> _Tensor:
    return _Tensor(array, array.dtype, True)


def _stored(graph: ir.Graph) -> dict[ir.Value, _Tensor]:
    values = graph.initializers.values()
    return {v: _constant(v.const_value.numpy()) for v in values if v.const_value is not None}


def _is_true(tensor: _Tensor | None) -> bool:
    return tensor is None or bool(tensor.array.all())


def _looped(tensors: _Tensors, run: _RunBody) -> _Tensors:
    """Return the last states of a Loop, and what all runs give."""
    most, going, *states = tensors
    goes, rows = _is_true(going), list[list[_Tensor]]()
    while goes and (most is None or len(rows) < most.array):
        if len(rows) == _MOST_RUNS:
            raise _too_much("runs of a Loop", _MOST_RUNS + 1, _MOST_RUNS)
        numbers = map(_constant, (np.array(len(rows)), np.array(True)))
        again, *results = run((*numbers, *states))
        goes = _is_true(again)
        rows.append(results[len(states) :])
        states = [*results[: len(states)]]
    return [*states, *_stacked(rows)]


def _scanned(node: ir.Node, tensors: _Tensors, run: _RunBody) -> _Tensors:
    """Return the last states of a Scan, and what all runs give."""
    if any(any(a.as_ints()) for a in node.attributes.values() if a.type == _INTS):
        raise ValueError("it goes along another axis than the first, or backwards")
    first = len(tensors) - node.attributes.get_int("num_scan_inputs")
    states, rows = tensors[:first], list[list[_Tensor]]()
    scanned = [tensor for tensor in tensors[first:] if tensor]
    for index in range(len(scanned[0].array)):
        parts = (dataclasses.replace(tensor, array=tensor.array[index]) for tensor in scanned)
        results = run((*states, *parts))
        rows.append(results[first:])
        states = results[:first]
    return [*states, *_stacked(rows)]


def _stacked(rows: Sequence[list[_Tensor]]) -> Iterator[_Tensor]:
    for column in zip(*rows, strict=True):
        yield dataclasses.replace(column[0], array=np.stack([tensor.array for tensor in column]))


def _outputs_of(
    node: ir.Node, arrays: Sequence[Array | None], opset: int, most: int
) -> Sequence[Array | None]:
    """Compute a node by its kernel here, or by ``onnx.reference``."""
    kernel = kernel_of(node.domain, node.op_type)
    _check_size(node, arrays, opset, min(most, _MOST_ELEMENTS), sized=kernel is not None)
    if kernel is not None:
        try:
            return kernel(arrays, {name: _stored_value(a) for name, a in node.attributes.items()})
        except (ValueError, IndexError, TypeError) as error:  # shapes that do not fit
            fix = "check the shapes of its inputs"
            raise cannot_evaluate(node.op_type, str(error), fix) from error
    if node.domain:
        raise cannot_evaluate(
            f"{node.domain}.{node.op_type}",
            "no kernel and no model-local function of this name",
            "add the function to the model",
        )
    pairs = zip(node.inputs, arrays, strict=True)
    feeds = {str(v.name): array for v, array in pairs if v is not None and array is not None}
    return run_reference(ir.serde.serialize_node(node), opset, feeds)


def _check_size(
    node: ir.Node, arrays: Sequence[Array | None], opset: int, most: int, *, sized: bool
) -> None:
    """Refuse a node whose result is larger than a proof needs, before it is computed.

    Args:
        node, arrays, opset: the node, its operands, and the version of its operator.
        most: elements of a result.
        sized: its kernel gives no more than its operands broadcast to.
    """
    shapes = (array.shape for array in arrays if array is not None)
    at_most = math.prod(max(size, 1) for shape in shapes for size in shape)
    if node.domain or (sized and at_most <= most):
        return
    infos = [
        UNKNOWN if a is None else (ir.DataType.from_numpy(a.dtype), tuple(a.shape)) for a in arrays
    ]
    small = {
        i: a for i, a in enumerate(arrays)
        if a is not None and a.size <= _MOST_READ and a.dtype.kind in "iuf"
    }  # fmt: skip
    for index in range(len(node.outputs)):
        dims = by_schema(node, infos, small, index, opset)[1]
        sizes = [d for d in dims or () if isinstance(d, int)]
        if (dims is None or len(sizes) < len(dims)) and not sized:
            raise cannot_evaluate(
                node.op_type, "nothing says how large its result is", "keep the original nodes"
            )
        if math.prod(sizes) > most:
            raise _too_much(f"elements made by {node.op_type}", math.prod(sizes), most)


def _too_much(what: str, count: int, most: int) -> InputError:
    return InputError(
        "The nodes ask for more than a proof computes.",
        found=f"{count:,} {what}, {most:,} at most",
        fix="keep the original nodes",
    )


def _stored_value(attribute: ir.Attr) -> Any:
    """Return the value of an attribute as the file stores it: a float attribute is a float32."""
    if attribute.type in _FLOAT_ATTRIBUTES:
        return np.asarray(attribute.value, dtype=np.float32).astype(np.float64).tolist()
    return attribute.value
