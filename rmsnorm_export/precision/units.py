"""The parts of a model that compute in one float type: nodes, and what passes through bodies.

A value that passes into or out of an If, Loop or Scan has one type on both sides, so each such
place is a unit of its own, as every input and output of the model is.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from rmsnorm_export.graph.order import graphs_in, subgraphs
from rmsnorm_export.op.native import (
    DEFAULT_DOMAINS,
    KINDS,
    MICROSOFT_DOMAIN,
    SIMPLIFIED,
    SKIP_SIMPLIFIED,
)
from rmsnorm_export.op.spec import DOMAIN
from rmsnorm_export.precision.result import KeptFor
from rmsnorm_export.recognize.bodies import FLOW
from rmsnorm_export.recognize.consts import standard
from rmsnorm_export.recognize.types import Types

_CONTRIB = (
    "Attention", "BiasGelu", "BiasSplitGelu", "DecoderMaskedMultiHeadAttention", "FastGelu",
    "FusedMatMul", "Gelu", "GatherBlockQuantized", "GroupQueryAttention", "MatMulNBits",
    "MultiHeadAttention", "PackedAttention", "PackedMultiHeadAttention", "QuickGelu",
    "RotaryEmbedding", "SkipLayerNormalization", SKIP_SIMPLIFIED, "SparseAttention",
)  # fmt: skip
"""ONNX Runtime's operators all of whose float operands have one type, a half one, too."""

_MASKS = {
    ("", "Attention"): 3,
    (MICROSOFT_DOMAIN, "Attention"): 5,
    (MICROSOFT_DOMAIN, "MultiHeadAttention"): 5,
    (MICROSOFT_DOMAIN, "GroupQueryAttention"): 10,
}
"""Operand of an attention that is added before its softmax: what is beyond the type is its end."""

_TYPED = {"Cast": "to", "ConstantOfShape": "value"}
"""Operators whose attribute says the type of the result."""

_RULES = {
    **dict.fromkeys(("Softmax", "LogSoftmax"), "a softmax"),
    **dict.fromkeys(("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"), "a loss"),
}
PRODUCTS = (
    "MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "LSTM", "GRU", "RNN", "Attention",
    "FusedMatMul", "MatMulNBits", "MultiHeadAttention", "GroupQueryAttention",
)  # fmt: skip
"""Operators that multiply matrices."""


@dataclasses.dataclass(slots=True, eq=False)
class Port:
    """A place that reads a value: an input of a node, or an output of a graph."""

    holder: ir.Node | ir.Graph
    index: int

    @property
    def value(self) -> ir.Value | None:
        """What stands there."""
        if isinstance(self.holder, ir.Node):
            return self.holder.inputs[self.index]
        return self.holder.outputs[self.index]

    @property
    def is_mask(self) -> bool:
        """Whether it reads the mask of an attention, which may end where the type does."""
        holder = self.holder
        if not isinstance(holder, ir.Node):
            return False
        return _MASKS.get((holder.domain, holder.op_type)) == self.index

    def put(self, value: ir.Value) -> None:
        """Let it read another value."""
        if isinstance(self.holder, ir.Node):
            self.holder.replace_input_with(self.index, value)
        else:
            self.holder.outputs[self.index] = value


@dataclasses.dataclass(slots=True, eq=False)
class Unit:
    """What has one float type.

    Attributes:
        node: that it is, or that holds the bodies; None: an input or output of the model.
        reads: its operands in that type.
        makes: its results in that type.
        fixed: operands that are float32 whatever its type is.
        whole: it is the node itself, and not what passes through its bodies.
        kind: why it is float32; None: it is not.
        reason: the same, half a sentence.
        culprit: the value whose magnitude does not fit.
    """

    node: ir.Node | None
    reads: list[Port]
    makes: list[ir.Value]
    fixed: list[Port] = dataclasses.field(default_factory=list)
    whole: bool = False
    kind: KeptFor | None = None
    reason: str = ""
    culprit: ir.Value | None = None

    @property
    def wide(self) -> bool:
        """Whether it computes in float32."""
        return self.kind is not None

    def keep(self, kind: KeptFor, reason: str, culprit: ir.Value | None = None) -> None:
        """Say that it is float32; the first reason stays."""
        if self.kind is None:
            self.kind, self.reason, self.culprit = kind, reason, culprit


def units_of(
    model: ir.Model, types: Types, source: ir.DataType, half: ir.DataType, *, io: bool
) -> list[Unit]:
    """Return all that computes in ``source``, with what the operators and the interface ask for.

    Args:
        model: without functions but those of this package.
        types: of its values.
        source: the type to be changed where that can be.
        half: that it would become.
        io: inputs and outputs may change as well.
    """
    finder = _Finder(model, types, source, half)
    units = [unit for graph in graphs_in(model.graph) for unit in finder.of_graph(graph)]
    ends = [Unit(None, [], [value]) for value in model.graph.inputs if finder.is_own(value)]
    places = (Port(model.graph, index) for index in range(len(model.graph.outputs)))
    ends += [Unit(None, [port], []) for port in places if finder.is_own(port.value)]
    if not io:
        for unit in ends:
            unit.keep("interface", "inputs and outputs keep their type")
    return [*units, *ends]


class _Finder:
    """Finds the units of a model."""

    def __init__(
        self, model: ir.Model, types: Types, source: ir.DataType, half: ir.DataType
    ) -> None:
        self._model, self._types, self._source = model, types, source
        self._half = f"tensor({half.name.lower()})"

    def is_own(self, value: ir.Value | None) -> bool:
        """Return whether a value has the type to be changed."""
        if value is None or not isinstance(
            value.type or ir.TensorType(self._source), ir.TensorType
        ):
            return False
        return self._types.dtype(value) == self._source

    def of_graph(self, graph: ir.Graph) -> Iterator[Unit]:
        for node in graph:
            if standard(node) in FLOW:
                yield from self._through(node)
            elif (unit := self._of_node(node)) is not None:
                yield unit

    def _of_node(self, node: ir.Node) -> Unit | None:
        ports = [Port(node, i) for i, value in enumerate(node.inputs) if self.is_own(value)]
        unit = Unit(node, ports, [v for v in node.outputs if self.is_own(v)], whole=True)
        for body in subgraphs(node):  # of an operator that is not known here
            places = (Port(body, index) for index in range(len(body.outputs)))
            unit.reads += [port for port in places if self.is_own(port.value)]
            unit.makes += filter(self.is_own, body.inputs)
            unit.keep("type", "what passes through its bodies is not known")
        if not unit.reads and not unit.makes:
            return None
        if self._source == ir.DataType.FLOAT:  # else it has its half form
            if node.op_type in _RULES:
                unit.keep("rule", _RULES[node.op_type])
            self._look_up(unit, node)
        return unit

    def _look_up(self, unit: Unit, node: ir.Node) -> None:
        """Note which operands are float32 in any case, and whether the others can be half."""
        name = f"{self._half[7:-1]} form of {node.op_type}"
        if node.domain == DOMAIN:
            body = self._model.functions.get(node.op_identifier())
            if node.op_type.split("_")[0] not in KINDS or body is None or not _is_for_any(body):
                unit.keep("type", f"its function has no {self._half[7:-1]} form")
            return
        if node.domain == MICROSOFT_DOMAIN or standard(node) == SIMPLIFIED:
            if node.op_type not in _CONTRIB and node.op_type != SIMPLIFIED:
                unit.keep("type", f"no {name} is known")
            return
        opset = self._model.opset_imports.get("", 1)
        schema = _schema(node.op_type, opset) if node.domain in DEFAULT_DOMAINS else None
        if schema is None:
            unit.keep("type", f"no {name} is known")
            return
        allowed = {one.type_param_str: one.allowed_type_strs for one in schema.type_constraints}
        formal = [schema.inputs[min(p.index, len(schema.inputs) - 1)].type_str for p in unit.reads]
        fits = [self._half in allowed.get(text, ()) for text in formal]
        unit.fixed = [port for port, fit in zip(unit.reads, fits, strict=True) if not fit]
        tied = {text for text, fit in zip(formal, fits, strict=True) if fit}
        last = len(schema.outputs) - 1
        made = {schema.outputs[min(v.index() or 0, last)].type_str for v in unit.makes}
        if node.op_type in _TYPED:
            tied |= {text for text in made if self._half in allowed.get(text, ())}
        if not made <= tied:
            unit.keep("type", f"there is no {name} in opset {opset}")
        if not unit.wide:
            unit.reads = [port for port, fit in zip(unit.reads, fits, strict=True) if fit]
        else:
            unit.fixed = []

    def _through(self, node: ir.Node) -> Iterator[Unit]:
        """Yield what passes through the bodies of an If, Loop or Scan, each place by itself."""
        bodies, flow = list(subgraphs(node)), standard(node)
        first, shift = (2, 1) if flow == "Loop" else (0, 0)
        scanned = node.attributes.get_int("num_scan_inputs", 0)
        states = 0 if flow == "If" else len(node.inputs) - first - scanned
        for index, output in enumerate(node.outputs):
            reads, makes = [Port(body, index + shift) for body in bodies], [output]
            if index < states:
                reads.append(Port(node, first + index))
                makes.append(bodies[0].inputs[first + index])
            yield from self._place(node, reads, makes)
        for index in range(states, states + scanned):  # what a Scan reads piece by piece
            yield from self._place(node, [Port(node, index)], [bodies[0].inputs[index]])

    def _place(self, node: ir.Node, reads: list[Port], makes: list[ir.Value]) -> Iterator[Unit]:
        unit = Unit(
            node, [p for p in reads if self.is_own(p.value)], list(filter(self.is_own, makes))
        )
        if unit.reads or unit.makes:
            yield unit


@functools.lru_cache(maxsize=512)
def _schema(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        return None


def _is_for_any(function: ir.Function) -> bool:
    """Return whether a body computes rows of any type in float32."""
    return any(node.op_type == "CastLike" for node in function)
