"""The parts of a model that compute in one float type: nodes, and what passes through bodies.

A value that passes into or out of an If, Loop or Scan has one type on both sides, so each such
place is a unit of its own, as every input and output of the model is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import onnx
import onnx_ir as ir

from rmsnorm_export.graph.order import graphs_in, subgraphs
from rmsnorm_export.op.native import KINDS, MICROSOFT_DOMAIN, SIMPLIFIED, SKIP_SIMPLIFIED
from rmsnorm_export.op.spec import DOMAIN
from rmsnorm_export.precision.result import KeptFor
from rmsnorm_export.recognize.bodies import FLOW
from rmsnorm_export.recognize.consts import standard
from rmsnorm_export.recognize.types import Types

_ONE_TYPE = (
    "Attention", "BiasGelu", "BiasSplitGelu", "DecoderMaskedMultiHeadAttention", "FastGelu",
    "FusedMatMul", "Gelu", "GatherBlockQuantized", "GroupQueryAttention", "MatMulNBits",
    "MultiHeadAttention", "PackedAttention", "PackedMultiHeadAttention", "QuickGelu",
    "RotaryEmbedding", SIMPLIFIED, "SkipLayerNormalization", SKIP_SIMPLIFIED, "SparseAttention",
)  # fmt: skip
"""ONNX Runtime's operators all of whose float operands have one type, a half one, too."""

_MASKS = {
    ("", "Attention"): 3,
    (MICROSOFT_DOMAIN, "Attention"): 5,
    (MICROSOFT_DOMAIN, "MultiHeadAttention"): 5,
    (MICROSOFT_DOMAIN, "GroupQueryAttention"): 10,
}
"""Operand of an attention that is added before its softmax: what is beyond the type is its end."""

_TYPED = ("Cast", "ConstantOfShape")
"""Operators whose attribute says the type of the result."""

_RULES = {
    **dict.fromkeys(("Softmax", "LogSoftmax"), "a softmax"),
    **dict.fromkeys(("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"), "a loss"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Port:
    """A place that reads a value: an input of a node, or an output of a graph."""

    holder: ir.Node | ir.Graph
    index: int

    @property
    def value(self) -> ir.Value:
        """What stands there."""
        holder = self.holder
        value = (holder.inputs if isinstance(holder, ir.Node) else holder.outputs)[self.index]
        assert value is not None
        return value

    @property
    def is_mask(self) -> bool:
        """Whether it reads the mask of an attention, which may end where the type does."""
        node = self.holder
        return isinstance(node, ir.Node) and _MASKS.get((node.domain, node.op_type)) == self.index

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
        node: that it is; None: an input or output of the model, or a place in a body.
        reads: its operands in that type.
        makes: its results in that type.
        is_end: it is an input or output of the model.
        kind: why it is float32; None: it is not.
        reason: the same, half a sentence.
        culprit: the value whose magnitude does not fit.
    """

    node: ir.Node | None
    reads: list[Port]
    makes: list[ir.Value]
    is_end: bool = False
    kind: KeptFor | None = None
    reason: str = ""
    culprit: ir.Value | None = None

    @property
    def op(self) -> str:
        """The operator of its node."""
        return "" if self.node is None else self.node.op_type

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
    ends = [finder.unit(None, [], [value]) for value in model.graph.inputs]
    ends += [finder.unit(None, [port], []) for port in _ports(model.graph)]
    for unit in ends:
        unit.is_end = True
        if not io:
            unit.keep("interface", "inputs and outputs keep their type")
    inner = [unit for graph in graphs_in(model.graph) for unit in finder.of_graph(graph)]
    return [unit for unit in (*inner, *ends) if unit.reads or unit.makes]


class _Finder:
    """Finds the units of a model."""

    def __init__(
        self, model: ir.Model, types: Types, source: ir.DataType, half: ir.DataType
    ) -> None:
        self._functions, self._types, self._source = model.functions, types, source
        self._opset, self._half = model.opset_imports.get("", 1), half.name.lower()

    def unit(self, node: ir.Node | None, reads: Iterable[Port], makes: Iterable[ir.Value]) -> Unit:
        """Return a unit with those of the operands and results that have the type."""
        ports = [port for port in reads if self._is_own(port.value)]
        return Unit(node, ports, [*filter(self._is_own, makes)])

    def _is_own(self, value: ir.Value) -> bool:
        is_tensor = isinstance(value.type, ir.TensorType | None)
        return is_tensor and self._types.dtype(value) == self._source

    def of_graph(self, graph: ir.Graph) -> Iterator[Unit]:
        """Yield the units of the nodes of a graph, without those of its bodies."""
        for node in graph:
            if standard(node) in FLOW:
                yield from self._through(node)
                continue
            unit = self.unit(node, _ports(node), node.outputs)
            for body in subgraphs(node):  # of an operator that is not known here
                inner = self.unit(None, _ports(body), body.inputs)
                for one in (unit, inner):
                    one.keep("type", "what passes through its bodies is not known")
                yield inner
            if self._source == ir.DataType.FLOAT:  # else it has its half form
                if unit.op in _RULES:
                    unit.keep("rule", _RULES[unit.op])
                yield from self._look_up(unit, node)
            yield unit

    def _look_up(self, unit: Unit, node: ir.Node) -> Iterator[Unit]:
        """Say of a unit that it has no half form; yield operands that are float32 in any case."""
        lacks = f"no {self._half} form of {node.op_type} is known"
        if node.domain == DOMAIN:
            body = self._functions[node.op_identifier()]
            is_for_any = any(one.op_type == "CastLike" for one in body)
            if node.op_type.split("_")[0] not in KINDS or not is_for_any:
                unit.keep("type", lacks)
            return
        if not standard(node) or not onnx.defs.has(node.op_type, self._opset):
            if node.op_type not in _ONE_TYPE:
                unit.keep("type", lacks)
            return
        schema = onnx.defs.get_schema(node.op_type, self._opset)
        own = f"tensor({self._half})"
        halves = {c.type_param_str for c in schema.type_constraints if own in c.allowed_type_strs}
        last = len(schema.inputs) - 1
        tied = {port: schema.inputs[min(port.index, last)].type_str for port in unit.reads}
        last = len(schema.outputs) - 1
        made = {schema.outputs[min(v.index() or 0, last)].type_str for v in unit.makes}
        if not made <= halves & ({*tied.values()} if node.op_type not in _TYPED else halves):
            unit.keep("type", f"there is no {self._half} form of {node.op_type} in this opset")
        fixed = [port for port in unit.reads if tied[port] not in halves]
        unit.reads = [port for port in unit.reads if port not in fixed]
        yield Unit(None, fixed, [], kind="type", reason=f"{node.op_type} reads float32")

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
            yield self.unit(None, reads, makes)
        for index in range(states, states + scanned):  # what a Scan reads piece by piece
            yield self.unit(None, [Port(node, index)], [bodies[0].inputs[index]])


def _ports(holder: ir.Node | ir.Graph) -> list[Port]:
    values = holder.inputs if isinstance(holder, ir.Node) else holder.outputs
    return [Port(holder, index) for index, value in enumerate(values) if value is not None]
