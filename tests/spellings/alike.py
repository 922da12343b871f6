"""The frame for look-alikes: the ordinary chain with one step replaced."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .case import NUMPY, Case
from .graph import Graph

FLOAT, FLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16

Step = Callable[[str], str]
Steps = Mapping[str, Any]
"""Steps of ``steps.py`` by the names of those that they stand for."""
Body = Callable[["Alike"], str | Sequence[str]]


@dataclasses.dataclass
class Alike:
    """What the builder of a look-alike works with: a graph, random numbers, the ordinary steps.

    Attributes:
        x, other: the row, and another value, of a chain that is given by its steps (``steps.py``).
    """

    g: Graph
    rng: np.random.Generator
    dtype: int
    x: str = ""
    other: Any = ""

    def input(
        self,
        hint: str = "x",
        shape: Sequence[int] = (2, 3, 8),
        *,
        dims: Sequence[int | str | None] | str | None = "static",
        dtype: int | None = None,
        values: np.ndarray | None = None,
    ) -> str:
        """A graph input; ``dims`` None declares no shape, "static" the shape itself."""
        if values is None:
            values = self.rng.standard_normal(shape)
        array = np.asarray(values).astype(NUMPY[dtype or self.dtype])
        declared = array.shape if isinstance(dims, str) else dims
        return self.g.input(self.g.fresh(hint), array, declared)

    def overridable(self, hint: str, given: np.ndarray, default: np.ndarray) -> str:
        """An initializer that is a graph input too: the feed counts."""
        dtype = helper.np_dtype_to_tensor_dtype(default.dtype)
        name = self.input(hint, values=given, dtype=dtype)
        self.g.initializers.append(numpy_helper.from_array(default, name))
        return name

    def unranked(self, hint: str = "x", shape: Sequence[int] = (2, 3, 8)) -> str:
        """A value of unknown rank: reshaped to what another input says."""
        flat = self.input(hint, (int(np.prod(shape)),))
        wanted = self.input(
            "shape", dims=("rank",), dtype=TensorProto.INT64, values=np.array(shape)
        )
        return self.g.op("Reshape", flat, wanted)

    def ranked(self, value: str, shape: Sequence[int] = (2, 3, 8)) -> str:
        """Gives a shape back to a value whose shape nothing else tells: an output needs one."""
        return self.g.op("Reshape", value, self.g.ints(*shape))

    def weight(self, shape: Sequence[int] = (8,)) -> str:
        return self.g.const(self.rng.uniform(0.5, 1.5, shape).astype(NUMPY[self.dtype]))

    def scalar(self, value: float, shape: Sequence[int] = ()) -> str:
        return self.g.scalar(value, self.dtype, shape)

    # the ordinary steps

    def square(self, x: str) -> str:
        return self.g.op("Pow", x, self.scalar(2.0))

    def mean(self, x: str) -> str:
        return self.g.reduce("ReduceMean", x, [-1], 1)

    def stabilise(self, x: str) -> str:
        return self.g.op("Add", x, self.scalar(1e-5))

    def root(self, x: str) -> str:
        return self.g.op("Sqrt", x)

    def chain(
        self, x: str, *, divide: Step | None = None, weight: str | None = None, **own: Step
    ) -> str:
        """The ordinary norm of ``x`` with steps of its own: square, mean, stabilise or root.

        ``divide`` takes the root to the normalised value; ``weight`` "" leaves the gain out.
        """
        value = x
        for name in ("square", "mean", "stabilise", "root"):
            value = own.pop(name, getattr(self, name))(value)
        assert not own
        y = divide(value) if divide else self.g.op("Div", x, value)
        if weight == "":
            return y
        return self.g.op("Mul", y, self.weight() if weight is None else weight)


def chain_of(steps: Steps) -> Body:
    """The ordinary norm of a row with these steps in place of its own."""
    given = ("first", "row", "other", "weight")

    def body(a: Alike) -> str:
        a.other = steps["first"](a) if "first" in steps else ""
        a.x = steps.get("row", Alike.input)(a)
        a.other = steps["other"](a) if "other" in steps else a.other
        own = {k: functools.partial(s, a) for k, s in steps.items() if k not in given}
        return a.chain(a.x, weight=steps.get("weight"), **own)

    return body


@dataclasses.dataclass(frozen=True)
class LookAlike:
    """A registered builder with its ground truth (see ``Case``)."""

    name: str
    body: Body
    norms: int
    most: int
    refusal: bool
    opsets: tuple[int, ...]
    dtype: int

    def build(
        self,
        opset: int | None = None,
        constants: str = "initializer",
        value_infos: bool = True,
        seed: int = 0,
    ) -> Case:
        """The model; ``opset`` is raised or lowered to what the builder can."""
        wanted = opset or self.opsets[0]
        opset = min(self.opsets, key=lambda other: (abs(other - wanted), other))
        alike = Alike(Graph(opset, constants), np.random.default_rng(seed), self.dtype)
        returned = self.body(alike)
        for output in [returned] if isinstance(returned, str) else returned:
            alike.g.output(output, 0, None)
        model = alike.g.model(value_infos=False)
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        del model.graph.output[:]
        model.graph.output.extend(inferred.graph.output)
        if value_infos:
            model.graph.value_info.extend(inferred.graph.value_info)
        infos = "" if value_infos else ", no value_info"
        return Case(
            model=model,
            variant=f"{self.name} (opset {opset}, constants {constants}{infos}, seed {seed})",
            feeds=alike.g.feeds,
            norms=self.norms,
            most=self.most,
            refusal=self.refusal,
        )


LOOK_ALIKES: dict[str, LookAlike] = {}
"""Every look-alike by name."""


def look_alikes(
    *,
    norms: int = 0,
    most: int | None = None,
    refusal: bool | None = None,
    opsets: Sequence[int] = (17, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23, 24),
    dtype: int = FLOAT,
    **bodies: Body | Steps,
) -> None:
    """Registers builders, or their steps, by name, of which the same is true.

    ``refusal`` is by default what follows from the rest: a chain of which nothing may be taken
    must be refused, aloud.
    """
    largest = norms if most is None else most
    must = largest == 0 if refusal is None else refusal
    for name, body in bodies.items():
        assert name not in LOOK_ALIKES, name
        built = body if callable(body) else chain_of(body)
        LOOK_ALIKES[name] = LookAlike(name, built, norms, largest, must, tuple(opsets), dtype)


def look_alike(**truth: Any) -> Callable[[Body], Body]:
    """Registers a builder under its own name, as ``look_alikes`` does."""

    def register(body: Body) -> Body:
        look_alikes(**truth, **{body.__name__: body})
        return body

    return register
