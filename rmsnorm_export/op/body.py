"""The operator as a model-local function of standard ONNX operators, for any opset from 13.

Spelled Pow, ReduceMean, Add, Sqrt, Div, Mul, which ONNX Runtime's own fusion recognises after it
has inlined the function; where that computes something else, or does not load, otherwise. Every
name inside carries the domain and the function's name: TensorRT's
parser looks a formal input up among the tensors of the calling graph first, so a plain ``X`` could
bind to a tensor that is not the node's input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from rmsnorm_export.op.body_key import BodyKey
from rmsnorm_export.op.dtypes import Array, numpy_dtype, vanishes
from rmsnorm_export.op.native import BESIDE
from rmsnorm_export.op.spec import (
    BFLOAT16,
    CODE_TYPES,
    DOMAIN,
    DOUBLE,
    FLOAT,
    HALF_TYPES,
    Quantize,
    scaled_by,
)

MIN_OPSET = 13
"""Below it Constant cannot refer to an attribute by value and ReduceMean takes no bfloat16."""

GROUPS_OPSET = 14
"""First opset in which a Reshape gives a dimension of 0 back: below it groups want some rows."""

AXES_INPUT_OPSET = 18
"""First opset in which the axes of ReduceMean are an input."""

_Attributes: TypeAlias = Mapping[str, int | Sequence[int] | ir.TensorProtocol | ir.Attr]


def build_function(name: str, key: BodyKey, opset: int) -> ir.Function:
    """Return the function ``rmsnorm_export.<name>`` for ``key``.

    Inputs in order: X, residual or gate or cos and sin, scale, bias, scale of the quantized output,
    as the key has them; all are required. Outputs: Y or quantized Y, for ``SkipRMSNorm`` the sum,
    and the scales of the rows where those are computed. Attributes that it reads from the node:
    ``epsilon`` and, where a scale may have an offset, ``scale_offset``. Nodes may carry more.

    Args:
        name: operator type of the nodes that call it (see ``assign_bodies``).
        key: what shapes the body.
        opset: version of the default domain, that of the model: ``MIN_OPSET`` at least.
    """
    return _Body(name, key, opset).function()


@dataclasses.dataclass(slots=True)
class _Body:
    """The body under construction."""

    name: str
    key: BodyKey
    opset: int
    nodes: list[ir.Node] = dataclasses.field(default_factory=list)
    x: ir.Value = dataclasses.field(init=False)

    def function(self) -> ir.Function:
        key = self.key
        weights = [n for n, there in (("scale", key.has_scale), ("bias", key.has_bias)) if there]
        values = {n: self.value(n) for n in ("X", *BESIDE.get(key.kind, ()), *weights)}
        self.x, inputs = values["X"], list(values.values())
        residual, gate, cos = (values.get(name) for name in ("residual", "gate", "cos"))
        scale, bias = (self.broadcastable(values.get(name), name) for name in ("scale", "bias"))
        total = self.x
        if residual is not None:
            total = self.add("Add", "sum", [self.x, residual])
        row = self.to_stash(total, "row")
        numerator = total
        activation = None if gate is None else self.activation(gate)
        if activation is not None and key.gate_first:
            row = self.add("Mul", "gated_row", [row, activation])
            numerator = self.to_x(row, "numerator") if key.round_rstd else row
        factor = None if scale is None else self.factor(scale)
        y = self.normalised(row, numerator, factor)
        y = self.scaled(y, factor, bias, ends=activation is None or key.gate_first)
        if activation is not None and not key.gate_first:
            # In T already unless the scale came before the cast.
            ungated = y if key.scale_before_cast else self.to_stash(y, "ungated")
            y = self.to_x(self.add("Mul", "gated", [ungated, activation]), "Y")
        if cos is not None:
            y = self.rotary(y, cos, values["sin"])
        code_scales: list[ir.Value] = []
        if key.quantize is not None:
            y, code_scales = self.quantized(y, key.quantize, inputs)
        outputs = [y, *([total] if residual is not None else []), *code_scales]
        graph = ir.Graph(
            inputs, outputs, nodes=self.nodes, name=self.name, opset_imports={"": self.opset}
        )
        return ir.Function(DOMAIN, self.name, graph=graph, attributes=self.attributes())

    def broadcastable(self, value: ir.Value | None, label: str) -> ir.Value | None:
        """Return a scale or bias of a row with axes after it, in a shape that broadcasts."""
        if value is None or self.key.last_axis == -1:
            return value
        shape = self.integers([-1, *[1] * (-1 - self.key.last_axis)], f"{label}_shape")
        return self.add("Reshape", f"{label}_column", [value, shape])

    def attributes(self) -> list[ir.Attr]:
        """Those that the body refers to; without defaults, for every node writes them."""
        key = self.key
        read = {
            "epsilon": key.literal_epsilon is None,
            "scale_offset": key.has_offset and key.literal_offset is None,
        }
        return [ir.Attr(name, ir.AttributeType.FLOAT, None) for name in read if read[name]]

    def normalised(self, row: ir.Value, numerator: ir.Value, factor: ir.Value | None) -> ir.Value:
        """``row / rms``; with ``round_rstd`` in the type of X, else in the stash type.

        With an ``association`` or ``scale_rstd`` the scale is in it already.
        """
        key = self.key
        shape = None
        if key.group_size:
            shape = self.add("Shape", "shape", [row])
            cut = self.integers([-1, key.group_size], "group_shape")
            row = self.add("Reshape", "groups", [row, cut])
            if key.round_rstd:
                numerator = self.add("Reshape", "numerator_groups", [numerator, cut])
        squared = row
        if key.partial_size:
            bounds = {"start": 0, "end": key.partial_size, "one": 1, "partial_axis": -1}
            start, end, one, last = (self.integers([n], label) for label, n in bounds.items())
            squared = self.add("Slice", "part", [row, start, end, last])
        if key.unit_length:
            mean = self.reduced("ReduceL2", "length", squared)
        else:
            mean = self.mean(self.square(squared))
        if key.partial_size:
            # The mean is one number long already, but where there are no rows in ONNX Runtime 1.31,
            # which does not reduce a tensor without elements: as long as the part, it fits no row.
            mean = self.add("Slice", "one_mean", [mean, start, one, last])
        rms = self.root(mean)
        if key.expands:
            rms = self.add("Expand", "expanded", [rms, self.add("Shape", "row_shape", [row])])
        if factor is not None and key.association == 2:
            row = numerator = self.add("Mul", "weighted", [row, factor])
        if key.round_rstd:
            reciprocal = self.add("Reciprocal", "reciprocal", [rms])
            if factor is not None and key.scale_rstd:
                reciprocal = self.add("Mul", "weighted", [reciprocal, factor])
            rounded = self.to_x(reciprocal, "rounded_reciprocal")
            if factor is not None and key.association == 1:
                rounded = self.add("Mul", "weighted", [rounded, factor])
            v = self.add("Mul", "normalised", [numerator, rounded])
        else:
            v = self.add("Div", "normalised", [row, rms])
        if shape is None:
            return v
        return self.add("Reshape", "ungrouped", [v, shape], self.zero_stays())

    def root(self, mean: ir.Value) -> ir.Value:
        """The root of ``mean``, or a length, with its epsilon."""
        key = self.key
        if key.unit_length == 1 and not (key.epsilon_outside or key.epsilon_clamp):
            return mean
        epsilon = self.scalar("epsilon", key.literal_epsilon, "epsilon_value", like_x=False)
        if not (key.unit_length or key.epsilon_outside or key.epsilon_clamp):
            return self.add("Sqrt", "rms", [self.sum_with("stabilised", mean, epsilon)])
        root = mean if key.unit_length else self.add("Sqrt", "root", [mean])
        # Not Clip but where that is meant: it takes an infinite root to the largest number.
        clamp = "Clip" if key.unit_length == 2 else "Max"
        if key.epsilon_outside:
            return self.sum_with("rms", root, epsilon)
        return self.add(clamp, "rms", [root, epsilon])

    def sum_with(self, label: str, mean: ir.Value, epsilon: ir.Value) -> ir.Value:
        """``mean + epsilon``, or the same with the root of the mean."""
        literal = self.key.literal_epsilon
        removed = literal is not None and vanishes(literal, 0.0)
        return self.add("Sum" if removed else "Add", label, [mean, epsilon])

    def square(self, row: ir.Value) -> ir.Value:
        """The squares, by a Pow where ONNX Runtime may fuse the body.

        In float64 it takes epsilon for 1e-5. Without a scale it takes a Mul behind the node for it,
        and of a row of one a Mul with any number of elements: it does not load, or fails.
        """
        if self.key.stash_type == DOUBLE or self.key.single or not self.key.has_scale:
            return self.add("Mul", "square", [row, row])
        # Pow takes no bfloat16 exponent before opset 15.
        old = self.key.stash_type == BFLOAT16 and self.opset < 15
        two = self.constant(2.0, FLOAT if old else self.key.stash_type, "two")
        return self.add("Pow", "square", [row, two])

    def mean(self, square: ir.Value) -> ir.Value:
        key, axes = self.key, list(self.key.row_axes())
        if key.partial_size and key.stash_type not in HALF_TYPES:
            # ONNX Runtime 1.31 does not reduce a tensor without elements to its mean; to its sum it
            # does. A mean of the whole row broadcasts all the same.
            total = self.add("ReduceSum", "square_sum", [square, self.integers(axes, "axes")])
            count = self.constant(float(key.partial_size), key.stash_type, "count")
            return self.add("Div", "mean", [total, count])
        return self.reduced("ReduceMean", "mean", square)

    def reduced(self, op_type: str, label: str, rows: ir.Value) -> ir.Value:
        axes = list(self.key.row_axes())
        if self.opset < AXES_INPUT_OPSET:
            return self.add(op_type, label, [rows], {"axes": axes, "keepdims": 1})
        return self.add(op_type, label, [rows, self.integers(axes, "axes")], {"keepdims": 1})

    def factor(self, scale: ir.Value) -> ir.Value:
        """``scale_offset + scale`` in the type of the product."""
        key = self.key
        wide = key.scale_before_cast or key.scale_rstd
        factor = self.to_product(scale, "scale_cast", wide) if key.scale_cast else scale
        if key.has_offset:
            like_x = key.casts and not wide
            offset = self.scalar("scale_offset", key.literal_offset, "offset", like_x=like_x)
            factor = self.add("Add", "offset_scale", [offset, factor])
        return factor

    def scaled(
        self, v: ir.Value, factor: ir.Value | None, bias: ir.Value | None, *, ends: bool
    ) -> ir.Value:
        """Scale, bias and the cast to T, before or after; ``ends``: nothing follows."""
        key = self.key
        y = v
        if not key.scale_before_cast and not key.round_rstd:
            y = self.to_x(y, "cast")
        if factor is not None and not (key.association or key.scale_rstd):
            y = self.add("Mul", "scaled", [y, factor])
        if bias is not None:
            wide = key.scale_before_cast
            addend = self.to_product(bias, "bias_cast", wide) if key.bias_cast else bias
            y = self.add("Add", "biased", [y, addend])
        return self.to_x(y, "Y") if key.scale_before_cast and ends else y

    def rotary(self, y: ir.Value, cos: ir.Value, sin: ir.Value) -> ir.Value:
        """The norm ``y``, in the type of X, with its rotary embedding."""
        size = self.key.rotary_dim
        part = self.slice(y, "turned_part", 0, size) if size else y
        if self.key.table_dtype is not None:
            part = self.cast(part, self.key.table_dtype, "part_in_table_type")
        first, second = self.pairs(part, "part")
        if self.key.half_table:
            own = self.products(("first_cos", first, cos), ("first_sin", second, sin))
            turned = [self.add("Sub", "turned_first", own)]
            own = self.products(("second_cos", second, cos), ("second_sin", first, sin))
            turned.append(self.add("Add", "turned_second", own))
            result = self.joined(turned, part, "turned")
        else:
            rotated = self.joined([self.add("Neg", "negated", [second]), first], part, "rotated")
            own = self.products(("cos_product", part, cos), ("sin_product", rotated, sin))
            result = self.add("Add", "turned", own)
        if self.key.table_dtype is not None:
            result = self.as_x(result, "turned_cast")
        if not size:
            return result
        rest = self.slice(y, "rest", size, np.iinfo(np.int64).max)
        return self.add("Concat", "whole", [result, rest], {"axis": -1})

    def products(self, *factors: tuple[str, ir.Value, ir.Value]) -> list[ir.Value]:
        return [self.add("Mul", label, [value, table]) for label, value, table in factors]

    def pairs(self, part: ir.Value, label: str) -> list[ir.Value]:
        """The first and the second element of every pair."""
        if self.key.rotary_interleaved:
            end = np.iinfo(np.int64).max
            return [self.slice(part, f"{label}_{i}", i, end, 2) for i in (0, 1)]
        halves = [self.value(f"{label}_{i}") for i in (0, 1)]
        number = {"num_outputs": 2} if self.opset >= AXES_INPUT_OPSET else {}
        node = ir.node("Split", [part], {"axis": -1, **number}, outputs=halves, name=halves[0].name)
        self.nodes.append(node)
        return halves

    def joined(self, pairs: list[ir.Value], part: ir.Value, label: str) -> ir.Value:
        """Join what `pairs` splits, in the shape of ``part``."""
        if not self.key.rotary_interleaved:
            return self.add("Concat", label, pairs, {"axis": -1})
        axis = self.integers([-1], f"{label}_axis")
        columns = [
            self.add("Unsqueeze", f"{label}_column_{i}", [v, axis]) for i, v in enumerate(pairs)
        ]
        both = self.add("Concat", f"{label}_pairs", columns, {"axis": -1})
        shape = self.add("Shape", f"{label}_shape", [part])
        return self.add("Reshape", label, [both, shape], self.zero_stays())

    def slice(self, value: ir.Value, label: str, start: int, end: int, step: int = 1) -> ir.Value:
        """Elements of the last axis."""
        numbers = {"start": start, "end": end, "axis": -1, "step": step}
        bounds = [self.integers([n], f"{label}_{name}") for name, n in numbers.items()]
        return self.add("Slice", label, [value, *bounds])

    def activation(self, gate: ir.Value) -> ir.Value:
        z = self.to_stash(gate, "gate_cast")
        sigmoid = self.add("Sigmoid", "sigmoid", [z])
        if self.key.activation == "sigmoid":
            return sigmoid
        return self.add("Mul", "silu", [z, sigmoid])

    def quantized(
        self, y: ir.Value, how: Quantize, inputs: list[ir.Value]
    ) -> tuple[ir.Value, list[ir.Value]]:
        """Return quantized ``y``, and the scales of its rows; a given scale is appended to
        ``inputs``.

        QuantizeLinear comes last, so that the runtime saturates and rounds as it always does; its
        input is float32, so that a half y is not rounded again when it is divided.
        """
        half = self.key.casts or self.key.stash_type != FLOAT
        wide = self.cast(y, FLOAT, "wide_y") if half else y
        element_type, largest = CODE_TYPES[how.partition("_")[0]]
        zero = np.zeros((), ir.DataType(element_type).numpy())
        zero_point = self.tensor(zero, "zero_point")
        if scaled_by(how) == "tensor":
            scale = self.value("code_scale")
            inputs.append(scale)
            return self.add("QuantizeLinear", "codes", [wide, scale, zero_point]), []
        top = self.greatest(wide)
        quotient = self.add("Div", "step", [top, self.constant(largest, FLOAT, "largest_code")])
        one, nothing = self.constant(1.0, FLOAT, "unit"), self.constant(0.0, FLOAT, "nothing")
        empty = self.add("Equal", "is_zero", [quotient, nothing])
        rows = self.add("Where", "row_scale", [empty, one, quotient])
        scaled = self.add("Div", "in_steps", [wide, rows])
        if zero.dtype == np.int8:
            # The code of a NaN is that of the processor, and there are some where this is none.
            infinite = self.constant(np.inf, FLOAT, "infinite")
            finite = self.add("Less", "is_finite", [top, infinite])
            scaled = self.add("Where", "finite_steps", [finite, scaled, nothing])
        return self.add("QuantizeLinear", "codes", [scaled, one, zero_point]), [rows]

    def greatest(self, rows: ir.Value) -> ir.Value:
        """The magnitude of each row; NaN of one with a NaN.

        ONNX Runtime's maximum drops a NaN, its sum does not.
        """
        size, axes = self.add("Abs", "size", [rows]), self.integers([-1], "code_axes")
        if self.opset < AXES_INPUT_OPSET:
            top = self.add("ReduceMax", "largest", [size], {"axes": [-1], "keepdims": 1})
        else:
            top = self.add("ReduceMax", "largest", [size, axes], {"keepdims": 1})
        total = self.add("ReduceSum", "total_size", [size, axes], {"keepdims": 1})
        nan = self.add("IsNaN", "is_nan", [total])
        return self.add("Where", "greatest", [nan, total, top])

    def scalar(
        self, attribute: str, literal: float | None, label: str, *, like_x: bool
    ) -> ir.Value:
        """A float attribute of the node, in the stash type or in that of X."""
        if literal is not None:
            return self.constant(literal, DOUBLE, label)
        reference = ir.RefAttr("value_float", attribute, ir.AttributeType.FLOAT)
        value = self.add("Constant", label, [], {"value_float": reference})
        if like_x:
            return self.to_x(value, f"{label}_cast")
        if self.key.stash_type != FLOAT:
            return self.cast(value, self.key.stash_type, f"{label}_cast")
        return value

    def to_stash(self, value: ir.Value, label: str) -> ir.Value:
        return self.cast(value, self.key.stash_type, label) if self.key.casts else value

    def to_x(self, value: ir.Value, label: str) -> ir.Value:
        """Round to the type of X; nothing where that is the stash type."""
        return self.as_x(value, label) if self.key.casts else value

    def as_x(self, value: ir.Value, label: str) -> ir.Value:
        if self.key.dtype is not None:
            return self.cast(value, self.key.dtype, label)
        return self.add("CastLike", label, [value, self.x])

    def zero_stays(self) -> _Attributes:
        """Of a Reshape: a size of 0 is one, and not that of the input."""
        return {"allowzero": 1} if self.opset >= GROUPS_OPSET else {}

    def to_product(self, value: ir.Value, label: str, wide: bool) -> ir.Value:
        if self.key.casts and not wide:
            return self.to_x(value, label)
        return self.cast(value, self.key.stash_type, label)

    def cast(self, value: ir.Value, element_type: int, label: str) -> ir.Value:
        return self.add("Cast", label, [value], {"to": element_type})

    def constant(self, number: float, element_type: int, label: str) -> ir.Value:
        return self.tensor(np.array(number, numpy_dtype(element_type)), label)

    def integers(self, values: Sequence[int], label: str) -> ir.Value:
        return self.tensor(np.array(values, np.int64), label)

    def tensor(self, stored: Array, label: str) -> ir.Value:
        return self.add("Constant", label, [], {"value": ir.tensor(stored)})

    def add(
        self,
        op_type: str,
        label: str,
        inputs: Sequence[ir.Value],
        attributes: _Attributes | None = None,
    ) -> ir.Value:
        value = self.value(label)
        self.nodes.append(
            ir.node(op_type, inputs, attributes or {}, outputs=[value], name=value.name)
        )
        return value

    def value(self, label: str) -> ir.Value:
        return ir.Value(name=f"{DOMAIN}.{self.name}.{label}")
