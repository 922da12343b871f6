"""Emits an RMSNorm in a chosen spelling, and the function that it computes in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from . import truth
from .case import NUMPY
from .choices import Frame, Spelling
from .graph import FLOATS, Graph

Evaluate = Callable[[np.ndarray], np.ndarray]

FLOAT, DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE


@dataclasses.dataclass
class Norm:
    """Emits one spelling into a scope.

    Attributes:
        g: where the nodes go.
        f: the graph around it, settled.
        s: settled in the frame.
        rng: of the weights.
        leaks: collects ``(value, element type, rank)`` of the stages used elsewhere; None
            where none may leave the scope.
    """

    g: Graph
    f: Frame
    s: Spelling
    rng: np.random.Generator
    leaks: list[tuple[str, int, int]] | None

    def __post_init__(self) -> None:
        frame, spelling = self.f, self.s
        self.own = FLOATS[frame.dtype]
        wider = FLOAT if frame.half else DOUBLE
        self.stash = self.own if spelling.rounding == "plain" else wider
        # the type in which the weight is used
        self.scaled = self.stash if spelling.rounding in ("plain", "gemma") else self.own
        self.rank = len(frame.shape) + bool(spelling.group)
        self.axes = len(frame.row)
        self.row = frame.n // spelling.group if spelling.group else frame.n
        self.part = -(-self.row // 2) if spelling.partial != "none" else self.row

    # helpers

    def stage(self, name: str, value: str, dtype: int, dropped: bool = False) -> str:
        """Passes a named value of the chain through what was chosen for it."""
        if self.leaks is not None and name in self.f.leaks:
            rank = len(self.f.shape) if name in ("cast", "gained") else self.rank
            self.leaks.append((value, dtype, rank - (self.axes if dropped else 0)))
        return self.g.op("Identity", value) if name in self.s.identities else value

    def pair(self, op_type: str, left: str, right: str, swap: bool) -> str:
        return self.g.op(op_type, right, left) if swap else self.g.op(op_type, left, right)

    def tensor(self, where: str, array: np.ndarray, hint: str) -> str:
        """A weight: stored in the main graph, in this scope, or fed."""
        if where == "local":
            return self.g.const(array)
        root = self.g.root
        if where == "input":
            return self.g.resolve(root.input(root.fresh(hint), array, array.shape))
        return self.g.resolve(root.const(array, kind="initializer"))

    def other(self, hint: str) -> tuple[str, np.ndarray]:
        """A fed tensor of the shape of x: a residual or a gate."""
        array = self.rng.standard_normal(self.f.shape).astype(NUMPY[self.own])
        root = self.g.root
        name = self.g.resolve(root.input(root.fresh(hint), array, dims_of(self.f)))
        return name, array.astype(np.float64)

    # the chain

    def emit(self, x: str) -> tuple[str, Evaluate]:
        """The whole norm of ``x``, residual and gate included."""
        g, s = self.g, self.s
        steps: list[Evaluate] = []
        total = ""
        if s.residual != "none":
            residual, r = self.other("residual")
            x = total = self.pair("Add", x, residual, s.swap_sum)
            steps.append(lambda a: (a + r).astype(NUMPY[self.own]).astype(np.float64))
        wide = numerator = x
        if self.stash != self.own:
            wide = numerator = self.stage("cast", g.cast(x, self.stash), self.stash)
            if s.casts == "separate" and not s.gate_before:
                numerator = g.cast(x, self.stash)
        gate: Evaluate | None = None
        if s.gate_before:
            act, gate = self.activation(self.stash)
            wide = numerator = self.pair("Mul", wide, act, s.swap_gate)
        if s.group:
            numerator = self.regroup(numerator)
            wide = numerator if wide == x or s.casts == "shared" else self.regroup(wide)
        y = self.core(x, wide, numerator)
        y, scale = self.finish(y)
        if s.gate_after:
            y, gate = self.gate_behind(y)
        if self.stash != self.own and s.rounding == "gemma":
            y = g.cast(y, self.own)
        if s.residual == "add_used":
            y = g.op("Add", y, total)
        steps.append(lambda a: scale(a if gate is None or not s.gate_before else gate(a)))
        if s.gate_after and gate is not None:
            steps.append(gate)

        def evaluate(a: np.ndarray) -> np.ndarray:
            # the first step is the residual sum, where there is one
            value = a = steps[0](a) if s.residual != "none" else a
            for step in steps[1:] if s.residual != "none" else steps:
                value = step(value)
            return value + a if s.residual == "add_used" else value

        return y, evaluate

    def regroup(self, x: str) -> str:
        return self.reshaped(x, self.s.group, self.row)

    def reshaped(self, x: str, first: int, *rest: int) -> str:
        """``x`` with these sizes behind the leading ones, of which ``minus`` omits the first."""
        how = self.s.reshape
        lead = self.f.lead if how == "static" else (0,) * len(self.f.lead)
        sizes = (*lead, -1 if how == "minus" else first, *rest)
        return self.g.op("Reshape", x, self.g.ints(*sizes))

    def core(self, x: str, wide: str, numerator: str) -> str:
        """The normalised row: in the stash type, or in that of x where 1/rms is rounded first."""
        g, s = self.g, self.s
        if s.square == "lp":
            return self.lp(numerator)
        value = self.stabilised(self.mean_square(wide))
        if s.inverse == "div":
            root = self.late(self.stage("root", self.rooted(value), self.stash, self.dropped))
            if s.gain == "x":
                numerator = self.times_weight(numerator)
            return self.stage("normalised", g.op("Div", numerator, root), self.stash)
        rstd = self.late(self.stage("rstd", self.inverted(value), self.stash, self.dropped))
        if s.rounding == "rstd":
            rstd = g.cast(rstd, self.own) if self.stash != self.own else rstd
            numerator = x
        if s.gain == "x":
            numerator = self.times_weight(numerator)
        elif s.gain == "rstd":
            rstd = self.times_weight(rstd)
        product = self.pair("Mul", numerator, rstd, s.swap_product)
        return self.stage("normalised", product, self.own if s.rounding == "rstd" else self.stash)

    def lp(self, x: str) -> str:
        axis = self.rank - 1 if self.s.positive_axes else -1
        unit = self.g.op("LpNormalization", x, axis=axis, p=2)
        root_n = float(np.sqrt(self.row))
        if self.s.mean == "sum_div":
            y = self.g.op("Div", unit, self.g.scalar(1.0 / root_n, self.stash))
        else:
            y = self.pair("Mul", unit, self.g.scalar(root_n, self.stash), self.s.swap_product)
        return self.stage("normalised", y, self.stash)

    @property
    def dropped(self) -> bool:
        """The reduced axes are not there yet at the root."""
        return self.s.keepdims == "late"

    def mean_square(self, x: str) -> str:
        """``mean(x**2)``, or its root for ReduceL2."""
        g, s = self.g, self.s
        first = -self.axes
        axes = list(range(first, 0))
        if s.positive_axes:
            axes = [self.rank + axis for axis in axes]
        if s.partial == "slice":
            x = g.op("Slice", x, g.ints(0), g.ints(self.part), g.ints(axes[-1]))
        elif s.partial == "split":
            sizes = g.ints(self.part, self.row - self.part)
            x = g.ops("Split", x, sizes, count=2, axis=-1)[0]
        keep = {"one": 1, "omitted": None, "unsqueeze": 0, "late": 0}[s.keepdims]
        if s.square in ("pow", "mul"):
            squared = self.stage("square", self.squared(x), self.stash)
            reducer = "ReduceMean" if s.mean == "mean" else "ReduceSum"
            value = g.reduce(reducer, squared, axes, keep)
        else:
            reducer = "ReduceL2" if s.square == "l2" else "ReduceSumSquare"
            value = g.reduce(reducer, x, axes, keep)
        count = float(np.sqrt(self.part)) if s.square == "l2" else float(self.part)
        if s.mean == "sum_mul":
            value = self.pair("Mul", value, g.scalar(1.0 / count, self.stash), s.swap_product)
        elif s.mean == "sum_div":
            value = g.op("Div", value, g.scalar(count, self.stash))
        value = self.stage("mean", value, self.stash, keep == 0)
        return g.unsqueeze(value, range(first, 0)) if s.keepdims == "unsqueeze" else value

    def squared(self, x: str) -> str:
        if self.s.square == "mul":
            return self.g.op("Mul", x, x)
        kinds = {"int64": TensorProto.INT64, "int32": TensorProto.INT32, **FLOATS}
        dtype = kinds.get(self.s.exponent, self.stash)
        return self.g.op("Pow", x, self.g.scalar(2, dtype, self.s.exponent_shape))

    def epsilon(self) -> str:
        g, s = self.g, self.s
        if s.epsilon_via == "cast":
            stored = FLOAT if self.stash == DOUBLE else DOUBLE
            return g.cast(g.scalar(s.epsilon_value, stored, s.epsilon_shape), self.stash)
        value = g.scalar(s.epsilon_value, self.stash, s.epsilon_shape)
        return g.op("Identity", value) if s.epsilon_via == "identity" else value

    def epsilon_value(self) -> float:
        """Epsilon as it reaches the sum."""
        s = self.s
        if s.epsilon == "none":
            return 0.0
        stored = NUMPY[FLOAT if s.epsilon_via == "cast" and self.stash == DOUBLE else DOUBLE]
        return float(np.array(s.epsilon_value).astype(stored).astype(NUMPY[self.stash]))

    def stabilised(self, value: str) -> str:
        if self.s.epsilon not in ("inside", "clamp_inside"):
            return value
        value = self.joined(value, adds=self.s.epsilon == "inside")
        return self.stage("stabilised", value, self.stash, self.dropped)

    def joined(self, value: str, *, adds: bool) -> str:
        """Epsilon is added, or what the value is clamped to."""
        if not adds and not self.s.swap_epsilon and not self.s.epsilon_shape:
            return self.g.op("Clip", value, self.epsilon())
        return self.pair("Add" if adds else "Max", value, self.epsilon(), self.s.swap_epsilon)

    def root_of(self, value: str) -> str:
        if self.s.root == "pow":
            return self.g.op("Pow", value, self.g.scalar(0.5, self.stash))
        return self.g.op("Sqrt", value)

    def rooted(self, value: str) -> str:
        if self.s.square != "l2":
            value = self.root_of(value)
        if self.s.epsilon in ("outside", "clamp"):
            value = self.joined(value, adds=self.s.epsilon == "outside")
        return value

    def inverted(self, value: str) -> str:
        g, inverse = self.g, self.s.inverse
        if inverse == "pow":
            return g.op("Pow", value, g.scalar(-0.5, self.stash))
        if inverse == "reciprocal_inside":
            return self.root_of(g.op("Reciprocal", value))
        if inverse == "one_div_inside":
            return self.root_of(g.op("Div", g.scalar(1.0, self.stash), value))
        root = self.stage("root", self.rooted(value), self.stash, self.dropped)
        if inverse == "one_div":
            return g.op("Div", g.scalar(1.0, self.stash), root)
        return g.op("Reciprocal", root)

    def late(self, value: str) -> str:
        return self.g.unsqueeze(value, range(-self.axes, 0)) if self.dropped else value

    # gain, bias, gate

    def times_weight(self, value: str) -> str:
        return self.pair("Mul", value, self.weight(), self.s.swap_gain)

    def weight(self) -> str:
        """The gain in the type in which it is used; remembers its value in ``gain_value``."""
        g, s = self.g, self.s
        leading = {"row": (), "one": (1,), "ones": (1, 1)}[s.weight_shape]
        values = self.rng.uniform(0.5, 1.5, self.f.row) - (s.offset != "none")
        natural = self.scaled if s.weight_stash else self.own
        if s.weight_via == "cast":
            natural = DOUBLE if self.scaled == FLOAT else FLOAT
        array = values.astype(NUMPY[natural])
        if s.weight_via != "unsqueeze":
            array = array.reshape(*leading, *self.f.row)
        name = self.tensor(s.weight, array, "weight")
        value = array.astype(np.float64).reshape(self.f.row)
        dtype = natural
        if s.weight_via == "identity":
            name = g.op("Identity", name)
        if s.offset != "none" and not s.offset_late:
            name, value = self.offset(name, value, dtype)
        if dtype != self.scaled:
            name = g.cast(name, self.scaled)
            value = value.astype(NUMPY[self.scaled]).astype(np.float64)
        if s.weight_via == "unsqueeze":
            name = g.unsqueeze(name, range(len(leading)))
        if s.offset != "none" and s.offset_late:
            name, value = self.offset(name, value, self.scaled)
        self.gain_value = value
        return self.g.op("Identity", name) if "weight" in s.identities else name

    def offset(self, name: str, value: np.ndarray, dtype: int) -> tuple[str, np.ndarray]:
        one = self.g.scalar(1.0, dtype)
        name = self.pair("Add", name, one, self.s.offset == "one_plus")
        return name, (value + 1.0).astype(NUMPY[dtype]).astype(np.float64)

    def finish(self, y: str) -> tuple[str, Evaluate]:
        """Ungroup, round, weight and bias; the float64 function of the core with them."""
        g, s, f = self.g, self.s, self.f
        if s.group:
            y = self.reshaped(y, self.f.n)
        if s.rounding == "llama" and self.stash != self.own:
            y = g.cast(y, self.own)
        if s.weight != "none" and s.gain == "last":
            y = self.times_weight(y)
        gain = self.gain_value if s.weight != "none" else np.ones(())
        bias = np.zeros(())
        if s.bias != "none":
            # small beside the gain, so that a row of one element does not cancel
            array = self.rng.uniform(-0.25, 0.25, f.row).astype(NUMPY[self.scaled])
            bias = array.astype(np.float64)
            y = self.pair("Add", y, self.tensor(s.bias, array, "bias"), s.swap_bias)
        y = self.stage("gained", y, self.own if s.rounding in ("llama", "rstd") else self.stash)
        epsilon = self.epsilon_value()
        partial = self.part if s.partial != "none" else 0

        def evaluate(a: np.ndarray) -> np.ndarray:
            core = truth.rms_norm(
                a,
                axes=self.axes,
                epsilon=epsilon,
                place=s.epsilon,
                partial=partial,
                group=self.row if s.group else 0,
                zero_of_zero=s.square == "lp",
            )
            return core * gain + bias

        return y, evaluate

    def activation(self, dtype: int) -> tuple[str, Evaluate]:
        """``act(gate)`` in ``dtype``; the function multiplies with it."""
        g, s = self.g, self.s
        z, array = self.other("gate")
        own = s.gate_own_type or dtype == self.own
        if not own:
            z = g.cast(z, dtype)
        if s.gate.startswith("silu"):
            if s.swish:
                act = g.op("Swish", z)
            else:
                act = self.pair("Mul", z, g.op("Sigmoid", z), s.swap_gate)
            values = truth.silu(array)
        else:
            act, values = g.op("Sigmoid", z), truth.sigmoid(array)
        if own and dtype != self.own:
            act = g.cast(act, dtype)
        return act, lambda a: a * values

    def gate_behind(self, y: str) -> tuple[str, Evaluate]:
        """``y * act(gate)``, in the stash type unless the gate has its own."""
        g, s = self.g, self.s
        rounded = s.rounding in ("llama", "rstd") and self.stash != self.own
        if not rounded or s.gate_own_type:
            act, gate = self.activation(self.own if rounded else self.stash)
            return self.pair("Mul", y, act, s.swap_gate), gate
        act, gate = self.activation(self.stash)
        y = self.pair("Mul", g.cast(y, self.stash), act, s.swap_gate)
        return g.cast(y, self.own), gate


def dims_of(frame: Frame) -> tuple[int | str, ...]:
    """Dimensions of x as the model declares them."""
    lead = [f"d{i}" if frame.symbolic else size for i, size in enumerate(frame.lead)]
    return (*lead, *frame.row)
