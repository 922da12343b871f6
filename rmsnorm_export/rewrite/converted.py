"""A model before and after its opset was changed: operators that changed are run both ways.

The version converter knows no numbers: it passes Hardmax on from opset 11 to 13, where the same
node is another function. Changes that are known to be harmless are those of ``facts.json``; nodes
of any other are cut out of both models and compared in ONNX Runtime.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import ChainMap
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from rmsnorm_export.errors import BackendMissingError, Error
from rmsnorm_export.graph.opset import default_opset, not_converted, version_of
from rmsnorm_export.graph.order import label, subgraphs, values_in
from rmsnorm_export.printable import one_line
from rmsnorm_export.proof.comparison import WrongError, compare_with, run_reference
from rmsnorm_export.proof.cut import MAX_CONSTANT, cut
from rmsnorm_export.recognize.consts import Constants, stored_tensor
from rmsnorm_export.recognize.shape_rules import Dims
from rmsnorm_export.recognize.shape_values import Dim
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.runtime.session import onnxruntime
from rmsnorm_export.runtime.support import FACTS

_HARMLESS: dict[str, list[tuple[int, int]]] = FACTS["conversions"]["harmless"]
"""Operator -> versions between which a node computes the same, first and last."""

_AS_DECLARED = 1 << 22
"""Of an input in its declared sizes; else they are multiples of 16, equal where those are."""
_SMALL_SIZE = 16

_UNKNOWN = "it may compute something else there"

_Names = Mapping[str, ir.Value]


def check_conversion(before: ir.Model, after: ir.Model) -> None:
    """Compare the nodes of operators that differ between the opsets of two models.

    Of nodes that are alike in attributes, constants, types and sizes one is run.

    Args:
        before: without functions.
        after: what the converter made of it; values have the names that they had.

    Raises:
        InputError: a node computes something else, or cannot be compared; which, and why.
    """
    old, new = default_opset(before), default_opset(after)
    operators = {node.op_type for node in before.graph.all_nodes()}
    if not any(_is_changed(operator, old, new) for operator in operators):
        return
    nodes = _Nodes(before, after)
    outcomes: dict[Hashable, str] = {}
    for node, names in _changed_nodes(before.graph, after.graph, old, new):
        kind = nodes.kind(node)
        if kind not in outcomes:
            outcomes[kind] = nodes.difference(node, names)
        if outcomes[kind]:
            place = "" if node.name else f", which gives {node.outputs[0].name!r}"
            raise not_converted(old, new, f"{label(node)}{place}: {outcomes[kind]}")


def _changed_nodes(
    before: ir.Graph, after: ir.Graph, old: int, new: int
) -> Iterator[tuple[ir.Node, _Names]]:
    """Yield nodes whose operator is another at the new opset, and what can be read by name there.

    A body has the names of its own and those of the graphs around it; two bodies may share one.
    """
    pending: list[tuple[ir.Graph, ir.Graph | None, ChainMap[str, ir.Value]]] = []
    pending.append((before, after, ChainMap()))
    while pending:
        graph, twin, outer = pending.pop()
        own = {} if twin is None else {value.name or "": value for value in values_in(twin)}
        names = outer.new_child(own)
        for node in graph:
            if not node.domain and _is_changed(node.op_type, old, new):
                yield node, names
            if bodies := [*subgraphs(node)] if node.attributes.data else []:
                other = names.get(node.outputs[0].name or "")
                producer = None if other is None else other.producer()
                twins = [] if producer is None else subgraphs(producer)
                pairs = itertools.zip_longest(bodies, twins)
                pending += [(body, twin, names) for body, twin in pairs if body is not None]


@functools.lru_cache(maxsize=4096)
def _is_changed(operator: str, old: int, new: int) -> bool:
    """Return whether an operator differs between two opsets in more than is known as harmless."""
    first, last = sorted((version_of(operator, old), version_of(operator, new)))
    spans = _HARMLESS.get(operator, ())
    return first != last and not any(a <= first and last <= b for a, b in spans)


class _Nodes:
    """Nodes of one model, and what became of them in another.

    Args:
        before, after: the models.
    """

    def __init__(self, before: ir.Model, after: ir.Model) -> None:
        self._before, self._after = before, after
        constants = Constants()
        self._types = Types(before, constants)
        constants.info_of = self._types.info

    def kind(self, node: ir.Node) -> Hashable:
        """Return what is equal of nodes of which one is run."""
        attributes = (ir.serde.serialize_attribute(one) for one in node.attributes.values())
        contents = sorted(attribute.SerializeToString() for attribute in attributes)
        shapes = self._shapes(value for value in node.inputs if value is not None)
        operands = tuple(
            value and (self._types.dtype(value), shapes[value], _content(value))
            for value in node.inputs
        )
        return node.op_type, len(node.outputs), tuple(contents), operands

    def difference(self, node: ir.Node, names: _Names) -> str:
        """Return why it is not known that a node computes the same in both; "" where it is."""
        inputs = [*dict.fromkeys(v for v in node.inputs if v and _content(v) is None)]
        outputs = [v for v in node.outputs if v.uses() or v.is_graph_output()]
        for value in (*inputs, *outputs):
            is_tensor = value.type is None or isinstance(value.type, ir.TensorType)
            if not is_tensor or self._types.dtype(value) is None:
                return f"{_UNKNOWN}: {value.name!r} has no known element type, or is no tensor"
            if value in inputs and self._types.shape(value) is None:
                return f"{_UNKNOWN}: {value.name!r} has no known rank"
            if value.name not in names:
                return f"{_UNKNOWN}: the version converter gives {value.name!r} another name"
        if not outputs:
            return ""
        try:
            onnxruntime()
            reference = run_reference(self._cut(self._before, inputs, outputs, None), seed=0)
            outcome = compare_with(reference, self._cut(self._after, inputs, outputs, names))
        except BackendMissingError as error:
            return f"{_UNKNOWN}, for ONNX Runtime is not here to run it: {error.found}; {error.fix}"
        except Error as error:
            return f"{_UNKNOWN}: {one_line(f'{error.what} {error.found}', 300)}"
        except WrongError as error:
            return f"it computes something else there, an output {str(error).partition(' ')[2]}"
        if outcome.after_fails:
            return f"ONNX Runtime runs it before and not after: {outcome.unknown}"
        return f"{_UNKNOWN}: {outcome.unknown}" if outcome.unknown else ""

    def _cut(
        self,
        model: ir.Model,
        inputs: Sequence[ir.Value],
        outputs: Sequence[ir.Value],
        names: _Names | None,
    ) -> ir.Model:
        """Return a model of what computes ``outputs`` of ``inputs``; by ``names``, if given.

        Raises:
            InputError: it cannot be cut out, as control flow cannot.
        """
        own = {v: v if names is None else names[v.name or ""] for v in (*inputs, *outputs)}
        dtypes = {new: self._types.dtype(old) for old, new in own.items()}
        small = cut(
            [own[value] for value in outputs],
            [own[value] for value in inputs],
            opset_imports=model.opset_imports,
            type_of=lambda value: dtypes.get(value, value.dtype),
        )
        for value, shape in zip(small.graph.inputs, self._shapes(inputs).values(), strict=True):
            value.shape = ir.Shape(shape or ())
        return small

    def _shapes(self, values: Iterable[ir.Value]) -> dict[ir.Value, Dims]:
        """Return shapes to run with: declared sizes, smaller where they are large, and names."""
        declared = {value: self._types.shape(value) for value in values}
        listed = dict.fromkeys(size for dims in declared.values() for size in dims or ())
        symbols = (size for size in listed if not isinstance(size, int))
        sizes: dict[Dim, Dim] = {size: f"d{k}" for k, size in enumerate(symbols)}
        numbers = [[d for d in dims or () if isinstance(d, int)] for dims in declared.values()]
        if max(map(math.prod, numbers), default=0) > _AS_DECLARED:
            large = sorted({d for dims in numbers for d in dims if d > _SMALL_SIZE})
            sizes |= {size: _SMALL_SIZE * k for k, size in enumerate(large, 1)}
        return {
            value: dims and tuple(sizes.get(d, d) for d in dims) for value, dims in declared.items()
        }


def _content(value: ir.Value) -> bytes | None:
    """Return the bytes of a constant that the converter sees; None of any other value."""
    tensor = stored_tensor(value)
    if tensor is None or isinstance(tensor, ir.ExternalTensor | ir.StringTensor):
        return None
    return tensor.tobytes() if tensor.size <= MAX_CONSTANT else None
