"""Norms of which one step is another, or that have one more: any operator that recognition reads,
with operands of every rank, type and kind, on rows of every rank and size."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper
from spellings.case import NUMPY
from spellings.graph import FLOATS, Graph

from tests.tools.feeds import Feeds

_SHAPES = (
    (8,), (1,), (), (3, 8), (3, 1), (1, 8), (1, 1), (2, 3, 8), (2, 1, 8), (2, 3, 1), (1, 1, 8),
    (2, 3, 4, 8), (2, 1, 4, 1), (1, 2, 1, 8), (0, 8), (2, 0),
)  # fmt: skip
_PLACES = ("x", "squared", "squares", "mean", "stabilised", "root", "inverse", "numerator", "row")
_UNARY = ("Sqrt", "Reciprocal", "Neg", "Abs", "Relu", "Identity", "Exp", "Sigmoid", "Dropout")
_BINARY = ("Mul", "Mul", "Div", "Add", "Sub", "Pow", "Max", "Min", "Sum", "Where")
_KINDS = ("initializer", "node", "attribute", "identity", "computed", "default", "input", "cast")
_REDUCED = ("ReduceMean", "ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2", "ReduceMax")


@dataclasses.dataclass(frozen=True, slots=True)
class Drawn:
    """A model, an example of its inputs, and what is not as usual in it."""

    done: tuple[str, ...]
    model: onnx.ModelProto
    feeds: Feeds


class _Steps:
    """A norm under construction, by the choices of a seed.

    Attributes:
        graph: that it stands in.
        dtype: in which it is computed.
        n: elements of a row.
        done: what is not as usual, in words.
    """

    def __init__(self, number: int) -> None:
        self.rng = rng = random.Random(number)
        self.graph = Graph(rng.choice((13, 17, 18, 21)))
        self.shape = rng.choice(_SHAPES)
        self.source = rng.choice((*FLOATS.values(), TensorProto.FLOAT, TensorProto.DOUBLE))
        half = self.source in (TensorProto.FLOAT16, TensorProto.BFLOAT16)
        self.dtype = TensorProto.FLOAT if half and rng.random() < 0.5 else self.source
        self.n = max(1, self.shape[-1] if self.shape else 1)
        self.place = rng.choice(_PLACES)
        self.done: list[str] = []

    def draw(self) -> Drawn:
        """Return the model."""
        g, rng = self.graph, self.rng
        dims: list[int | str | None] = [
            rng.choice((size, f"d{axis}", None)) for axis, size in enumerate(self.shape)
        ]
        if dims and rng.random() < 0.8:
            dims[-1] = self.n
        declared = None if rng.random() < 0.05 else dims
        x = g.input("x", np.ones(self.shape, NUMPY[self.source]), declared)
        x = self.at("x", x if self.source == self.dtype else g.cast(x, self.dtype))
        row = self.at("row", self.divided(self.at("numerator", x), self.mean(x)))
        if self.source != self.dtype:
            row = g.cast(row, self.source)
        if rng.random() < 0.5:
            weight = np.linspace(0.5, 1.5, self.n).reshape(rng.choice(((-1,), (1, -1))))
            weight = weight.astype(NUMPY[self.source])
            row = g.op("Mul", row, g.input("weight", weight, weight.shape))
        g.output(row, self.source, None)
        model = _with_rank(g.model(value_infos=False), g.feeds)
        if rng.random() < 0.5:
            model = onnx.shape_inference.infer_shapes(model)
        return Drawn(tuple(self.done), model, g.feeds)

    def at(self, place: str, value: str) -> str:
        """Return a value, with one step more where this is its place."""
        if place != self.place:
            return value
        step = self.rng.choice((self.binary, self.binary, self.binary, self.unary, self.view))
        result = step(value)
        self.done.append(f"at {place}: {self.graph.nodes[-1].op_type}")
        return result

    # the norm

    def mean(self, x: str) -> str:
        g, rng, way = self.graph, self.rng, self.rng.random()
        op = rng.choice(_REDUCED)
        x = self.at("squared", x)
        if way > 0.55 and op in ("ReduceSumSquare", "ReduceL2"):
            value = self.reduced(op, x)
            if op == "ReduceL2":
                return self.at("mean", g.op("Mul", value, value))
            return self.at("mean", self.averaged(value))
        squares = g.op("Mul", x, x) if rng.random() < 0.5 else g.op("Pow", x, self.scalar(2.0))
        squares = self.at("squares", squares)
        if way < 0.4:
            return self.at("mean", g.reduce("ReduceMean", squares, [-1], 1))
        if way < 0.55:
            return self.at("mean", self.contracted(squares))
        value = self.reduced(op, squares)
        return self.at("mean", self.averaged(value) if op == "ReduceSum" else value)

    def averaged(self, value: str) -> str:
        if self.rng.random() < 0.2:
            return value
        op, number = self.rng.choice((("Mul", 1 / self.n), ("Div", float(self.n))))
        return self.graph.op(op, value, self.scalar(number))

    def divided(self, x: str, mean: str) -> str:
        g, rng = self.graph, self.rng
        if rng.random() < 0.8:
            mean = g.op("Add", mean, self.scalar(rng.choice((1e-3, 0.5))))
        mean, way = self.at("stabilised", mean), rng.randrange(5)
        if way == 0:
            return g.op("Mul", x, self.at("inverse", g.op("Pow", mean, self.scalar(-0.5))))
        root = g.op("Pow", mean, self.scalar(0.5)) if rng.random() < 0.3 else g.op("Sqrt", mean)
        root = self.at("root", root)
        if way < 3:
            return g.op("Div", x, root)
        one = self.scalar(1.0)
        inverse = g.op("Div", one, root) if way == 3 else g.op("Reciprocal", root)
        return g.op("Mul", *rng.sample((self.at("inverse", inverse), x), 2))

    def reduced(self, op: str, value: str) -> str:
        """A reduction with axes of every form, and without the axis that it leaves."""
        g, rng, rank = self.graph, self.rng, len(self.shape)
        lists = [[-1], [rank - 1], [-2, -1], [-1, -2], [0], [rank - 2], list(range(rank)), []]
        axes = rng.choice([one for one in lists if all(-rank <= axis < rank for axis in one)])
        keepdims, form = rng.choice((1, 1, 0, None)), rng.choice(("constant", "computed", "input"))
        attributes = {} if keepdims is None else {"keepdims": keepdims}
        self.done.append(f"{op} of {axes}, {form}, keepdims {keepdims}")
        if g.opset < (13 if op == "ReduceSum" else 18):
            listed = {"axes": axes} if axes else {}
            value = g.op(op, value, **listed, **attributes)
        else:
            given = g.ints(*axes)
            if form == "input":
                given = g.input("axes", np.array(axes, np.int64), [len(axes)])
            elif form == "computed":
                given = g.op("Add", given, g.ints(*[0] * len(axes)))
            value = g.op(op, value, given, **attributes)
        if keepdims == 0 and axes and rng.random() < 0.7:
            value = g.unsqueeze(value, axes)
        return value

    def contracted(self, squares: str) -> str:
        """A sum that is a product with ones, or a pool."""
        g, rng, n, rank = self.graph, self.rng, self.n, len(self.shape)
        shape = rng.choice(((n,), (n, 1), (n, n), (n, 2), (n, 4)))
        number = rng.choice((1.0, 1 / n, 2.0))
        # Of windows with a NaN onnx.reference has another mean.
        op = rng.choice(("MatMul", "MatMul", "Einsum", *["GlobalAveragePool"] * (rank > 2),
                         *["Gemm"] * (rank == 2)))  # fmt: skip
        self.done.append(f"{op} {shape} of {number:g}")
        if op == "GlobalAveragePool":
            return g.op(op, squares)
        if op == "Einsum":
            return g.op(op, squares, squares, equation="...d,...d->...")
        return g.op(op, squares, self.constant(np.full(shape, number)))

    # one step more

    def scalar(self, value: float) -> str:
        return self.graph.scalar(value, self.dtype)

    def constant(self, array: np.ndarray) -> str:
        """A constant of any kind, or an input that is none."""
        g, kind = self.graph, self.rng.choice(_KINDS)
        with np.errstate(all="ignore"):
            stored = np.asarray(array).astype(NUMPY[self.dtype])
        self.done.append(f"{kind} {array.reshape(-1)[:1]} of shape {list(array.shape)}")
        if kind in ("initializer", "node", "attribute"):
            return g.const(stored, kind=kind)
        if kind == "identity":
            return g.op("Identity", g.const(stored))
        if kind == "computed":
            return g.op("Mul", g.const(stored), g.const(np.ones_like(stored)))
        if kind == "cast":  # rounded to a type of fewer digits, or of more
            other = self.rng.choice((TensorProto.FLOAT, TensorProto.FLOAT16))
            return g.cast(g.const(stored.astype(NUMPY[other])), self.dtype)
        name = g.const(stored) if kind == "default" else g.fresh("given")
        g.declare(name, self.dtype, list(stored.shape))
        g.feeds[name] = stored
        return name

    def number(self) -> float:
        """A number that may mean something: a count, a root, or a neighbour of one."""
        n, dtype = float(self.n), NUMPY[self.dtype]
        root, step = math.sqrt(n), float(ml_dtypes.finfo(dtype).eps)
        near = self.rng.choice((1.0, n, 1 / n, root, 1 / root))
        return self.rng.choice((
            1.0, 0.0, 2.0, 0.5, -1.0, -2.0, -0.5, 1e-3, 1e-30, math.inf, near, near,
            near * (1 + step), near * (1 - step / 2), float(np.float32(near)),
        ))  # fmt: skip

    def binary(self, value: str) -> str:
        g, rng, rank = self.graph, self.rng, len(self.shape)
        shape = rng.choice((
            (), (), (), (1,), (1, 1), (1,) * rank, (1,) * (rank + 1), (1, 1, 1, 1), (self.n,),
            (1, self.n), (*self.shape[:-1], 1), (4,), self.shape,
        ))  # fmt: skip
        op, number = rng.choice(_BINARY), self.number()
        if op in ("Max", "Min") and 0.9 < number < 1:
            number = (
                0.9  # float32 takes the number below 1 for its root: a proof does not know which
            )
        array = np.full(shape, number)
        if rng.random() < 0.1:
            array = array * np.linspace(0.5, 1.5, array.size).reshape(shape)
        other = self.constant(array)
        if op == "Where":
            choice = g.const(np.full(rng.choice(((), (1,), shape)), rng.random() < 0.5))
            return g.op(op, choice, *rng.sample((value, other), 2))
        return g.op(op, *((value, other) if rng.random() < 0.7 else (other, value)))

    def unary(self, value: str) -> str:
        g, rng = self.graph, self.rng
        op = rng.choice((*_UNARY, "Clip", "Clip", "Cast", "LpNormalization", "same", "half"))
        if op == "Clip":
            # ONNX Runtime takes the largest number for an infinite end.
            numbers = [min(self.number(), 1e4) for _ in range(2)]
            ends = [self.constant(np.asarray(n)) if rng.random() < 0.5 else "" for n in numbers]
            return g.op(op, value, *ends)
        if op == "Cast":
            other = rng.choice((*FLOATS.values(), TensorProto.INT32))
            return g.cast(g.cast(value, other), self.dtype)
        if op == "same":
            return g.op(rng.choice(("Mul", "Add", "Div", "Sub", "Max", "Pow")), value, value)
        if op == "half":
            return g.op("Pow", value, self.scalar(rng.choice((0.5, -0.5, -1.0, 2.0, 3.0, 1.0))))
        return g.op(op, value)

    def view(self, value: str) -> str:
        g, rng = self.graph, self.rng
        op = rng.choice(("Unsqueeze", "Squeeze", "Reshape", "Expand", "Transpose", "Concat",
                         "Slice", "Gather", "Flatten", "ReduceMean"))  # fmt: skip
        axis = rng.choice((0, -1, 1))
        if op in ("Unsqueeze", "Squeeze"):
            return g.op(op, value, g.ints(axis))
        if op in ("Reshape", "Expand"):
            sizes: Any = rng.choice(([1], [-1], [1, 1], [1] * (len(self.shape) + 1),
                                     [*self.shape[:-1], 1], self.shape, [0, -1]))  # fmt: skip
            return g.op(op, value, g.ints(*(abs(s) if op == "Expand" else s for s in sizes)))
        if op == "Slice":
            return g.op(op, value, g.ints(0), g.ints(rng.choice((1, 2**31 - 1))), g.ints(axis))
        if op == "Gather":
            return g.op(op, value, g.const(np.zeros(rng.choice(((), (1,))), np.int64)), axis=axis)
        if op == "ReduceMean":
            return g.reduce(op, value, [axis], rng.choice((0, 1)))
        return g.op(op, value, **({"axis": axis} if op in ("Concat", "Flatten") else {}))


def _with_rank(model: onnx.ModelProto, feeds: Feeds) -> onnx.ModelProto:
    """Return a model whose output has the rank, and no sizes, that it has of these inputs."""
    fixed = onnx.ModelProto.FromString(model.SerializeToString())
    for value in fixed.graph.input:
        kind, shape = value.type.tensor_type.elem_type, feeds[value.name].shape
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, shape))
    (inferred,) = onnx.shape_inference.infer_shapes(fixed, data_prop=True).graph.output
    (output,) = model.graph.output
    if inferred.type.tensor_type.HasField("shape"):
        dims = [None] * len(inferred.type.tensor_type.shape.dim)
        kind = output.type.tensor_type.elem_type
        output.CopyFrom(helper.make_tensor_value_info(output.name, kind, dims))
    return model


def draw(number: int) -> Drawn:
    """Return the norm of this number."""
    return _Steps(number).draw()
