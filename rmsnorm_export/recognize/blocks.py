"""What makes MXFP8 codes of a norm: TensorRT's node, or the steps that PyTorch exports."""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

from rmsnorm_export.op.spec import BLOCK, CODE_TYPES, FLOAT, UINT8, Quantize
from rmsnorm_export.recognize.consts import standard
from rmsnorm_export.recognize.context import Context, same_attributes
from rmsnorm_export.recognize.match import Match, Quantized
from rmsnorm_export.recognize.quantizer import Found, kept, last_axis, shared
from rmsnorm_export.recognize.refusal import Refusal

TENSORRT = ("trt", "TRT_MXFP8DynamicQuantize")
"""Domain and type of the node that TensorRT's parser knows and ModelOpt writes."""

_FP8 = CODE_TYPES["mxfp8"][0]
_STEPS = frozenset((
    "Abs", "Add", "Cast", "Ceil", "Clip", "Div", "Floor", "Greater", "Log", "Mul", "Neg", "Pow",
    "ReduceMax", "Reshape", "Squeeze", "Sub", "Unsqueeze", "Where",
))  # fmt: skip
_MOST_STEPS = 64


def block_quantizer(ctx: Context, match: Match) -> Found | Refusal | None:
    """As ``quantizer``, of codes whose blocks of 32 have a scale each."""
    for node in ctx.read_by(match.output):
        own = node.op_identifier() not in ctx.foreign and node.inputs[0] is match.output
        if own and (node.domain, node.op_type) == TENSORRT:
            return _node(ctx, match, node)
    return _Steps(ctx, match).found()


def _blocks_of_row(ctx: Context, match: Match) -> int:
    """How many; 0 where the row is not known to be whole blocks of its own axis."""
    n = ctx.types.static_last(match.output)
    fits = n is not None and n % BLOCK == 0 and match.spec.last_axis == -1
    return n // BLOCK if n is not None and fits and match.spec.axis == -1 else 0


def _node(ctx: Context, match: Match, node: ir.Node) -> Found | Refusal:
    y, plain = match.output, node.attributes
    rank = ctx.types.rank(y)
    types = [ctx.types.dtype(v) for v in node.outputs]
    last = (-1,) if rank is None else (-1, rank - 1)
    if not _blocks_of_row(ctx, match) or plain.get_int("axis", -1) not in last:
        why = "the row is not known to be whole blocks of 32 elements"
        hint = "quantize along the last axis, of a multiple of 32"
        return kept(match, node, why, ctx.describe(y), hint)
    usual = plain.get_int("block_size", BLOCK) == BLOCK
    known = len(types) == 2 and types[0] in (None, _FP8) and types[1] in (None, UINT8)
    if not usual or not known or plain.get_int("output_dtype", _FP8) != _FP8:
        found = ", ".join(f"{name} {a.value}" for name, a in plain.items())
        return kept(match, node, "it makes other codes or scales than the operator", found,
                    "use blocks of 32, float8e4m3fn codes and uint8 scales")  # fmt: skip
    repeated = [
        other
        for other in ctx.read_by(y)
        if other is not node
        and other.op_identifier() == node.op_identifier()
        and same_attributes(node, other)
        and not any(v.is_graph_output() for v in other.outputs)
    ]
    if (apart := shared(ctx, match, y, {node, *repeated})) is not None:
        return apart
    pairs = [pair for n in repeated for pair in zip(n.outputs, node.outputs, strict=False)]
    made = Quantized("mxfp8", scales=node.outputs[1], twins=tuple(pairs))
    # TensorRT does not say how it rounds the scale; the rest of NVIDIA's libraries rounds it up.
    return node.outputs[0], made, ("the scales of TensorRT",)


@dataclasses.dataclass(frozen=True, slots=True)
class _Line:
    """``sign * of + addend``."""

    of: ir.Value
    sign: int = 1
    addend: float = 0.0


class _Steps:
    """``E4M3(y / 2^E)`` and ``E + 127``, with E from the logarithm of the greatest of a block."""

    def __init__(self, ctx: Context, match: Match) -> None:
        self.ctx, self.match = ctx, match
        self.y = match.output
        self.nodes: set[ir.Node] = set()

    def found(self) -> Found | None:
        ctx, y = self.ctx, self.y
        shape, count = ctx.types.shape(y), _blocks_of_row(ctx, self.match)
        if shape is None or not count:
            return None
        ends: dict[int, list[ir.Node]] = {_FP8: [], UINT8: []}
        for node in self._behind():
            to = node.attributes.get_int("to", 0) if standard(node) == "Cast" else 0
            ends.get(to, []).append(node)
        if [len(nodes) for nodes in ends.values()] != [1, 1]:
            return None
        codes, scales = (self._reshaped(ends[to][0]) for to in (_FP8, UINT8))
        how = self._how(*(nodes[0] for nodes in ends.values()))
        fit = (ctx.types.shape(codes), ctx.types.shape(scales)) == (shape, (*shape[:-1], count))
        inside = {v for n in self.nodes for v in n.outputs} - {codes, scales}
        closed = not any(
            v.is_graph_output() or not set(ctx.read_by(v)) <= self.nodes for v in inside
        )
        if how is None or not fit or not closed or shared(ctx, self.match, y, self.nodes):
            return None
        edges = ("a logarithm that is rounded before the scale is",)
        return codes, Quantized(how, scales=scales), edges

    def _behind(self) -> set[ir.Node]:
        """The nodes that lead from y to its codes, and what else is like them."""
        seen: set[ir.Node] = set()
        stack = list(self.ctx.read_by(self.y))
        while stack and len(seen) < _MOST_STEPS:
            node = stack.pop()
            if standard(node) in _STEPS and node not in seen:
                seen.add(node)
                stack.extend(self.ctx.read_by(node.outputs[0]))
        return seen

    def _reshaped(self, cast: ir.Node) -> ir.Value:
        """What a cast makes, in its last shape."""
        value = cast.outputs[0]
        while True:
            shaping = [n for n in self.ctx.read_by(value) if standard(n) in ("Reshape", "Squeeze")]
            if len(shaping) != 1 or shaping[0].inputs[0] is not value:
                return value
            self.nodes.add(shaping[0])
            value = shaping[0].outputs[0]

    def _how(self, codes: ir.Node, scales: ir.Node) -> Quantize | None:
        self.nodes |= {codes, scales}
        stored = self._line(scales.inputs[0])
        product = self._taken(codes.inputs[0], "Reshape")
        product = self._clip(product, (-448.0,), (448.0,))
        node = self._maker(product, "Div", "Mul")
        if node is None or stored is None or (stored.sign, stored.addend) != (1, 127.0):
            return None
        power = self._maker(node.inputs[1], "Pow")
        if power is None or self._number(power.inputs[0]) != 2 or not self._blocks(node.inputs[0]):
            return None
        exponent = self._line(power.inputs[1])
        wanted = _Line(stored.of, 1 if node.op_type == "Div" else -1)
        if exponent is None or exponent != wanted:
            return None
        rounded = self._line(self._clip(stored.of, (-127.0,), (127.0, 128.0)))
        if rounded is None or rounded.of is stored.of or rounded.sign != 1:
            return None  # without the bound, small blocks have other scales
        whole = self._maker(self._positive(rounded.of), "Ceil", "Floor")
        logarithm = None if whole is None else self._octaves(whole.inputs[0])
        if whole is None or logarithm is None:
            return None
        if (whole.op_type, rounded.addend) == ("Floor", -8.0):
            return "mxfp8_floor" if self._greatest(logarithm) else None
        ratio = self._times(logarithm)
        if (whole.op_type, rounded.addend) != ("Ceil", 0.0) or ratio is None:
            return None
        close = math.isclose(ratio[1], 1 / 448, rel_tol=1e-7)
        return "mxfp8" if close and self._greatest(ratio[0]) else None

    def _maker(self, value: ir.Value | None, *op_types: str) -> ir.Node | None:
        node = None if value is None else value.producer()
        if node is None or standard(node) not in op_types:
            return None
        self.nodes.add(node)
        return node

    def _number(self, value: ir.Value | None) -> float | None:
        return self.ctx.constants.scalar(value)

    def _taken(self, value: ir.Value | None, *op_types: str) -> ir.Value | None:
        """What is behind a node of these types."""
        node = self._maker(value, *op_types)
        return value if node is None else node.inputs[0]

    def _line(self, value: ir.Value | None) -> _Line | None:
        """``value`` as a multiple of what is no sum with a constant, nor a cast of one."""
        sign, addend = 1, 0.0
        while value is not None and (node := self._maker(value, "Add", "Sub", "Neg", "Cast")):
            numbers = [self._number(v) for v in node.inputs]
            if node.op_type == "Cast":
                value = node.inputs[0]
            elif node.op_type == "Neg":
                sign, value = -sign, node.inputs[0]
            elif (number := numbers[1]) is not None:
                addend += sign * (number if node.op_type == "Add" else -number)
                value = node.inputs[0]
            elif (number := numbers[0]) is not None:
                addend += sign * number
                sign, value = sign if node.op_type == "Add" else -sign, node.inputs[1]
            else:
                return None
        return None if value is None else _Line(value, sign, addend)

    def _clip(
        self, value: ir.Value | None, low: tuple[float, ...], high: tuple[float, ...]
    ) -> ir.Value | None:
        """What is behind a Clip to one of these bounds."""
        node = None if value is None else value.producer()
        if node is None or standard(node) != "Clip":
            return value
        numbers = [self._number(v) for v in (*node.inputs, None, None)[1:3]]
        return self._taken(value, "Clip") if numbers[0] in low and numbers[1] in high else value

    def _positive(self, value: ir.Value) -> ir.Value | None:
        """What is behind a Where that gives a block of zeros the exponent -127."""
        node = None if value is None else value.producer()
        if node is None or standard(node) != "Where" or self._number(node.inputs[2]) != -127:
            return value
        test = self._maker(node.inputs[0], "Greater")
        if test is None or self._number(test.inputs[1]) != 0:
            return value
        self.nodes.add(node)
        return node.inputs[1]

    def _octaves(self, value: ir.Value | None) -> ir.Value | None:
        """x of log2(x)."""
        found = self._times(self._positive(value) if value is not None else None)
        if found is None or not math.isclose(found[1], 1 / math.log(2.0), rel_tol=1e-6):
            return None
        node = self._maker(found[0], "Log")
        return None if node is None else node.inputs[0]

    def _times(self, value: ir.Value | None) -> tuple[ir.Value, float] | None:
        """A value and the constant that it is multiplied with."""
        node = self._maker(value, "Div", "Mul")
        if node is None or node.inputs[0] is None:
            return None
        number = self._number(node.inputs[1])
        if number is None or number == 0:
            return None
        return node.inputs[0], 1 / number if node.op_type == "Div" else number

    def _greatest(self, value: ir.Value | None) -> bool:
        """It is the greatest magnitude of each block, one axis short or not."""
        value = self._cast(value)
        node = None if value is None else value.producer()
        if standard(node) == "Unsqueeze":
            value = self._taken(value, "Unsqueeze")
        node = self._maker(value, "ReduceMax")
        size = None if node is None else self._maker(self._cast(node.inputs[0]), "Abs")
        if node is None or size is None or not self._blocks(size.inputs[0]):
            return False
        return last_axis(self.ctx, node, self.ctx.types.rank(size.outputs[0]), keeps=None)

    def _cast(self, value: ir.Value | None) -> ir.Value | None:
        """What is behind casts between float32 and T: all numbers here are numbers of T."""
        while value is not None and value is not self.y:
            node = value.producer()
            if node is None or standard(node) != "Cast":
                break
            types = {self.ctx.types.dtype(v) for v in (node.inputs[0], value) if v is not None}
            if not types <= {FLOAT, self.match.dtype}:
                break
            value = self._taken(value, "Cast")
        return value

    def _blocks(self, value: ir.Value | None) -> bool:
        """It is y, cut into blocks."""
        node = self._maker(self._cast(value), "Reshape")
        if node is None or self.ctx.types.static_last(node.outputs[0]) != BLOCK:
            return False
        return self._cast(node.inputs[0]) is self.y
