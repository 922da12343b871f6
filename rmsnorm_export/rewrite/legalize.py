"""Legalization: fused nodes of other targets, written in a form that the target takes.

The new nodes have every rounding step of ONNX Runtime's kernel or, of an operator of ONNX, of its
definition. A node whose types or sizes are not known stays, and recognition gives the reason.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from rmsnorm_export.graph.names import Names
from rmsnorm_export.graph.order import are_needed, replace
from rmsnorm_export.lower.forms import MOST_ONES
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.op import native
from rmsnorm_export.op.dtypes import numpy_dtype, type_name
from rmsnorm_export.recognize.consts import Constants, depends_on_caller
from rmsnorm_export.recognize.context import FLOATS, widens
from rmsnorm_export.recognize.refusal import ANEW, FORMERLY
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.runtime.consumers import Consumer

_WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_FLOAT = ir.DataType.FLOAT
Attributes: TypeAlias = Mapping[str, Any]
_AXES_INPUT = 18
"""First opset in which the axes of ReduceMean are an input."""
_OPERATORS = (
    ("", native.SIMPLIFIED),
    ("", native.RMS_NORMALIZATION),
    (native.MICROSOFT_DOMAIN, native.SKIP_SIMPLIFIED),
)


@dataclasses.dataclass(eq=False)
class Legalizer:
    """The nodes that are written for one model.

    Attributes:
        model: it is changed in place.
        opset: of the model.
        keeps: operators that the target has, and which stay.
        rounded_sums: the sum of a residual node in half types may be rounded, so that an Add and a
            norm in the half type can take its place: such a node is left to the target.
        runtime: that is to run the result; None: any.
    """

    model: ir.Model
    opset: int
    keeps: frozenset[str]
    rounded_sums: bool
    runtime: Consumer | None = None

    def __post_init__(self) -> None:
        # Each of these reads the file when it is first asked.
        self.names, self.constants = Names(self.model), Constants()
        self.types = Types(self.model, self.constants)

    def legalize(self, graph: ir.Graph, node: ir.Node) -> None:
        """Write a node anew if it is of such an operator and the target needs it."""
        operator, stays = (node.domain, node.op_type), node.op_type in self.keeps
        if operator not in _OPERATORS or depends_on_caller(node):
            return
        x, scale = (*node.inputs, None, None)[:2]
        if node.op_type == native.SKIP_SIMPLIFIED:
            dtype = None if x is None else self.types.dtype(x)
            if not stays or (self.runtime is not None and self.runtime.lacks_sum(dtype)):
                self._split_skip(graph, node)
        elif x is not None and scale is not None:
            if node.op_type == native.RMS_NORMALIZATION:
                stays = self.opset < TARGETS["onnx"].min_opset  # no operator there is
            elif are_needed(node.outputs[1:2]) and not stays:
                node = self._split_inverse(node, x)
            scale = self._spread(graph, node, x, scale)
            if not (stays or are_needed(node.outputs[1:])):
                self._typed(node, x, scale)

    def _split_skip(self, graph: ir.Graph, node: ir.Node) -> None:
        """Write a residual node as Add and norm; half types are summed and normalised in f32."""
        x, skip, scale, bias = (*node.inputs, None, None, None, None)[:4]
        if x is None or skip is None or scale is None:
            return
        dtype = next((t for v in (x, skip, scale) if (t := self.types.dtype(v))), None)
        inverse = node.outputs[2] if are_needed(node.outputs[2:3]) else None
        half = dtype not in _WIDE
        if dtype not in FLOATS or are_needed(node.outputs[1:2]):
            return
        if half and self.rounded_sums and bias is None and inverse is None:
            return
        stem = node.name or node.outputs[0].name or "skip"
        tape = _Tape(stem, self.names, x.shape, _FLOAT if half else dtype)
        if half:
            x, skip, scale = (tape.cast(value) for value in (x, skip, scale))
            bias = None if bias is None else tape.cast(bias)
        # In the order of the kernels: the bias comes last.
        total = x
        for index, addend in enumerate(v for v in (skip, bias) if v is not None):
            total = tape.add("Add", [total, addend], name=f"{stem}/Add_{index}")
        epsilon = node.attributes.get_float("epsilon", 1e-12)
        attributes = {"axis": -1, "epsilon": epsilon, "stash_type": 1}
        y = tape.add(native.SIMPLIFIED, [total, scale], attributes, f"{stem}/RMSNorm")
        tape.nodes[-1].metadata_props.update(node.metadata_props)
        _note_anew(tape.nodes[-1], f"the sum is an Add{', both in float32' if half else ''}")
        old = [node.outputs[0], *(value for value in node.outputs[3:] if value.name)]
        new = [tape.cast(v, dtype) if half else v for v in (y, total)][: len(old)]
        if inverse is not None:
            old.append(inverse)
            new.append(self._inverse_root(tape, total, epsilon, [-1]))
        ir.convenience.replace_nodes_and_values(graph, node, [node], tape.nodes, old, new)

    def _split_inverse(self, node: ir.Node, x: ir.Value) -> ir.Node:
        """Compute the second output of a norm by other nodes, and return the norm."""
        dtype, rank = self.types.dtype(x), self.types.rank(x)
        axis = node.attributes.get_int("axis", -1)
        if dtype not in FLOATS or (axis >= 0 and (rank is None or axis >= rank)):
            return node
        stem, wide = node.name or node.outputs[0].name or "norm", dtype in _WIDE
        tape = _Tape(stem, self.names, x.shape, dtype if wide else _FLOAT)
        axes = range(axis - (rank or 0) if axis >= 0 else axis, 0)
        epsilon = node.attributes.get_float("epsilon", 1e-5)
        norm = tape.again(node, [*node.inputs], node.outputs[0])
        _note_anew(tape.nodes[-1], "its second output is computed from x")
        inverse = self._inverse_root(tape, x if wide else tape.cast(x), epsilon, [*axes])
        replace(node, tape.nodes, [norm, inverse])
        return tape.nodes[0]

    def _inverse_root(
        self, tape: _Tape, x: ir.Value, epsilon: float, axes: Sequence[int]
    ) -> ir.Value:
        """Append ``1 / sqrt(mean(x ** 2) + epsilon)``, and return it in f32."""
        square = tape.add("Mul", [x, x])
        inputs, attributes = [square], dict[str, Any](keepdims=1)
        if self.opset >= _AXES_INPUT:
            inputs.append(tape.constant(np.array(axes, np.int64), "axes"))
        else:
            attributes["axes"] = axes
        tape.shape = None
        number = np.array(np.float32(epsilon), numpy_dtype(tape.dtype))
        mean = tape.add("ReduceMean", inputs, attributes)
        root = tape.add("Sqrt", [tape.add("Add", [mean, tape.constant(number, "epsilon")])])
        inverse = tape.add("Reciprocal", [root])
        return inverse if tape.dtype == _FLOAT else tape.cast(inverse, _FLOAT)

    def _spread(self, graph: ir.Graph, node: ir.Node, x: ir.Value, scale: ir.Value) -> ir.Value:
        """Repeat a constant scale over the row, if it has fewer numbers; return the scale."""
        array, axis = self.constants.array(scale), node.attributes.get_int("axis", -1)
        row = (self.types.shape(x) or ())[axis:]
        sizes = [size for size in row if isinstance(size, int)]
        if array is None or not sizes or len(sizes) != len(row) or math.prod(sizes) > MOST_ONES:
            return scale
        missing = len(sizes) - array.ndim
        own = (1,) * missing + array.shape[max(-missing, 0) :]
        repeats = all(a in (1, b) for a, b in zip(own, sizes, strict=True))
        if math.prod(own) != array.size or own == tuple(sizes) or not repeats:
            return scale
        tape = _Tape(node.name or scale.name or "norm", self.names, None, _FLOAT)
        spread = tape.constant(np.broadcast_to(array.reshape(own), sizes).copy(), "scale")
        graph.insert_before(node, tape.nodes)
        node.replace_input_with(1, spread)
        _note_anew(node, "its scale is repeated over the row")
        return spread

    def _typed(self, node: ir.Node, x: ir.Value, scale: ir.Value) -> None:
        """Write a norm that stands in a form that not all runtimes take.

        PyTorch's exporter fuses a norm with the casts around it, so that X is float16 and the scale
        float32: the operator's own function body then multiplies two types, and ONNX Runtime does
        not load it. Such a node computes in the wider type, as PyTorch does, and keeps its output's
        type. A scale that is no row of numbers (a modulation ``[batch, 1, n]``) broadcasts by the
        definition of the operator, but not on GPUs: it goes to a Mul after the node, where the
        definition has it; ONNX Runtime's own operator multiplies before it rounds.
        """
        narrow, final = self.types.dtype(x), self.types.dtype(scale)
        if narrow not in FLOATS or final not in FLOATS or narrow is None or final is None:
            return
        ones = self._ones_instead(node, x, scale)
        if narrow == final and not ones:
            return
        widest = (t for t in (narrow, final) if widens(narrow, t) and widens(final, t))
        wide = next(widest, _FLOAT)
        if ones and node.op_type == native.SIMPLIFIED and wide not in _WIDE:
            wide = _FLOAT
        old, stem = node.outputs[0], node.name or node.outputs[0].name or "norm"
        tape = _Tape(stem, self.names, x.shape, wide)
        x, scale = (v if t == wide else tape.cast(v) for v, t in ((x, narrow), (scale, final)))
        factor = scale
        if ones:
            size = tape.constant(np.array([ones], np.int64), "size")
            fill = ir.tensor([1.0], dtype=wide)
            scale = tape.add("ConstantOfShape", [size], {"value": fill}, shape=ir.Shape([ones]))
        result = tape.again(node, [x, scale], old)
        words = f"it computes in {type_name(wide)} between Casts"
        if ones:
            words = "its scale, no row of numbers, is multiplied after it"
        _note_anew(tape.nodes[-1], words)
        if ones:
            result = tape.add("Mul", [result, factor], shape=old.shape)
        if final != wide:
            result = tape.cast(result, final)
        old.type = ir.TensorType(final)
        replace(node, tape.nodes, [result])

    def _ones_instead(self, node: ir.Node, x: ir.Value, scale: ir.Value) -> int:
        """Return the size of ones with which a scale after the norm is certainly right, else 0.

        That is the row, or 1 where it is not known. A single number stays where the target has the
        operator: ONNX Runtime takes it, and rounds in another order than a Mul.
        """
        n, dims = self.types.static_last(x), self.types.shape(scale)
        unknown = dims is None or None in dims
        if dims is None or unknown or node.attributes.get_int("axis", -1) != -1 or n == 0:
            return 0
        flat, stays = all(dim == 1 for dim in dims[:-1]), node.op_type in self.keeps
        if flat and dims[-1:] in ((1,), ()):
            return 0 if stays or n == 1 else n or 1
        if n is None:
            return 0 if flat or stays else 1
        return 0 if flat and dims[-1:] == (n,) else n


class _Tape(ir.tape.Tape):
    """Nodes in the place of one.

    Args:
        stem: of their names.
        names: gives unique names.
        shape, dtype: of their results, unless given.
    """

    def __init__(self, stem: str, names: Names, shape: ir.Shape | None, dtype: ir.DataType) -> None:
        super().__init__()
        self.stem, self.names, self.shape, self.dtype = stem, names, shape, dtype

    def add(
        self, kind: str, inputs: Sequence[ir.Value | None], attributes: Attributes | None = None,
        name: str = "", shape: ir.Shape | None = None, dtype: ir.DataType | None = None,
    ) -> ir.Value:  # fmt: skip
        """Append a node, and return its output."""
        output = ir.Value(shape=shape or self.shape, type=ir.TensorType(dtype or self.dtype))
        if not name:
            name = self.names(f"{self.stem}/{kind}")
            output.name = self.names(f"{name}_output")
        result = self.op(kind, inputs, attributes, output=output, name=name)
        self.nodes[-1].metadata_props[FORMERLY] = self.stem
        return result

    def cast(self, value: ir.Value, to: ir.DataType | None = None) -> ir.Value:
        """Append a Cast, to the type of the tape unless it is given."""
        to = to or self.dtype
        result = self.add("Cast", [value], {"to": int(to)}, dtype=to)
        result.shape = value.shape
        return result

    def constant(self, array: np.ndarray, label: str) -> ir.Value:
        """Append a Constant, which bodies of functions may hold, too."""
        tensor, name = ir.tensor(array), self.names(f"{self.stem}/{label}")
        shape = ir.Shape(array.shape)
        output = self.add("Constant", [], {"value": tensor}, name, shape, tensor.dtype)
        output.name = name
        return output

    def again(self, node: ir.Node, inputs: Sequence[ir.Value | None], like: ir.Value) -> ir.Value:
        """Append the norm itself, with these inputs and one output."""
        output = self.add(node.op_type, inputs, node.attributes, shape=like.shape)
        self.nodes[-1].name = node.name
        self.nodes[-1].metadata_props.update(node.metadata_props)
        return output


def _note_anew(norm: ir.Node, words: str) -> None:
    earlier = norm.metadata_props.get(ANEW)
    norm.metadata_props[ANEW] = words if earlier is None else f"{earlier}; {words}"
