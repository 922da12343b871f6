"""The facts of values, which transfer functions make and combine.

A fact speaks of one value and is never changed once made (not frozen: hundreds of thousands are
made, and a frozen dataclass takes three times as long). Values without a fact are plain tensors.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import onnx_ir as ir

from rmsnorm_export.op.spec import Activation
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal

Flaw = tuple[str, str, str, str]
"""Reason, message, what was found and hint of a refusal."""


@dataclasses.dataclass(slots=True, eq=False)
class View:
    """``root`` seen from ``value``, through nodes that keep its numbers and its shape.

    Attributes:
        first: of each element type on the way the value that is nearest to ``root``.
        latest: the same, nearest to ``value``.
    """

    root: ir.Value
    value: ir.Value
    first: dict[ir.DataType | None, ir.Value]
    latest: dict[ir.DataType | None, ir.Value]


@dataclasses.dataclass(slots=True, eq=False)
class Candidate:
    """A mean square that may become an RMSNorm; remembers why it did not.

    Attributes:
        node: the node that summed the squares.
        rooted: a square root was taken; by the node ``root``.
        divides: the row that was squared is divided by it, whether or not it is a norm.
        taken: a match was made of it.
        flaw: the first reason against it.
        centred: the node that took the mean from the row, so that this is a variance.
        axes: of the mean, where they are neither the last ones nor one; else ().
    """

    node: ir.Node
    scope: str
    rooted: bool = False
    root: ir.Node | None = None
    divides: bool = False
    taken: bool = False
    flaw: Refusal | None = None
    centred: ir.Node | None = None
    axes: tuple[int, ...] = ()


@dataclasses.dataclass(slots=True, eq=False)
class Square:
    """``x**2``, computed in ``dtype``; ``narrow`` is that of ``Radial``."""

    x: View
    dtype: ir.DataType
    flaw: Flaw | None = None
    narrow: tuple[str, ...] = ()


@dataclasses.dataclass(slots=True, eq=False)
class Radial:
    """A function of the mean square M of x over its trailing axes.

    ``inner = a * M + b``; ``root = c * sqrt(inner) + d`` when ``rooted``; ``m / (...)`` when
    ``inverse``. Where there is a ``floor``, neither inner nor root is below it.

    Attributes:
        axis: first of the averaged axes, negative.
        last: last of them: -1, or ``axis`` where one axis with others behind it is averaged.
        size: elements that were averaged, None when not static.
        kept: the reduced axes are present with size 1 (else they were removed).
        dtype: type of this value; ``stash``: type in which the sum was formed.
        inverse_cast: type to which the inverse root was rounded.
        floor: least that this value, or what it is the inverse of, may be; 0: no clamp.
        epsilons: how many epsilons were added, or clamps taken, so far.
        narrow: rounding steps that the operator does not have.
        edges: what the operator does otherwise at the ends of the range (see ``Match``).
        graph: the graph that holds the reduction.
        inverted_first: the mean square itself was inverted.
        multiplied: a number other than 1 is multiplied with 1 / rms: a scale, whatever it is.
        zero_safe: a zero row gives zero although no epsilon was added (LpNormalization).
        slack: relative error of ``unit`` that the rounding of one constant explains: the largest of
            those that it was multiplied with. That of two would take the neighbour for the number.
        spoiled: something on the way is not what an RMSNorm does; kept to the end for the refusal.
        stated: names and values of what other attributes of the operator are not at their default.
        plain: made by Pow or Mul, ReduceMean, Add, Sqrt and one inverse, or by ReduceL2 in place of
            the first, as the operator does it; in a half type any other way rounds otherwise.
        length: 1: made by ReduceL2, or LpNormalization, 2: and a Clip behind it.
        before_double: ``narrow`` of the float32 mean square that was cast to float64.
    """

    x: View
    candidate: Candidate
    graph: object
    axis: int
    size: int | None
    kept: bool
    dtype: ir.DataType
    stash: ir.DataType
    a: float = 1.0
    b: float = 0.0
    rooted: bool = False
    c: float = 1.0
    d: float = 0.0
    inverse: bool = False
    m: float = 1.0
    inverse_cast: ir.DataType | None = None
    floor: float = 0.0
    last: int = -1
    epsilons: int = 0
    narrow: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()
    inverted_first: bool = False
    multiplied: bool = False
    zero_safe: bool = False
    slack: float = 0.0
    spoiled: bool = False
    stated: tuple[tuple[str, Any], ...] = ()
    plain: bool = True
    length: int = 0
    before_double: tuple[str, ...] | None = None

    @property
    def unit(self) -> float:
        """Factor k in ``this = k / rms`` (inverse) or ``this = k * rms``; 1 for an RMSNorm."""
        scale = self.c * math.sqrt(self.a) if self.a > 0 else math.nan
        return self.m / scale if self.inverse else scale

    @property
    def epsilon(self) -> float:
        """Epsilon of the norm: outside the root where there is ``d``, the clamp where ``floor``.

        That of ``x / rms`` where ``unit`` is 1 but for the rounding of 1/n or sqrt(n): the epsilon
        with which a row far below it is what it was.
        """
        if self.d or self.floor:
            return (self.d or self.floor) / self.m
        ratio = self.c / self.m
        return self.b * ratio * ratio


@dataclasses.dataclass(slots=True, eq=False)
class Weight:
    """A per-feature factor (or bias): ``offset + scale`` when ``offset`` is not 0.

    Attributes:
        value: the value in the graph.
        stored: the stored tensor behind casts and the offset.
        offset: what is added to ``stored``.
        early: made of weights and inputs of the graph alone, so that no sum can be behind it.
        per_feature: False: any factor, of another shape or computed from data.
    """

    value: ir.Value
    stored: ir.Value
    offset: float
    early: bool
    per_feature: bool = True


@dataclasses.dataclass(slots=True, eq=False)
class WeightedInverse:
    """``scale / rms``, from a product that was associated the other way.

    Attributes:
        dtype: type of this value; not that of the product where it was ``rounded``.
        scale: None where it is not known to leave the shape of x.
    """

    radial: Radial
    scale: Weight | None
    dtype: ir.DataType
    rounded: bool = False


@dataclasses.dataclass(slots=True, eq=False)
class Activated:
    """``act(z)``, computed in ``dtype``."""

    z: View
    activation: Activation
    dtype: ir.DataType


Event = tuple[Literal["cast", "scale", "bias", "gate"], ir.DataType]


@dataclasses.dataclass(slots=True, eq=False)
class Norm:
    """A normalised row, and what was done to it since.

    Attributes:
        x: the numerator.
        radial: what it was divided by; None for a node that is an RMSNorm by itself, of which more
            is known between Casts alone.
        product: type in which the division (or product) was computed.
        dtype: type of this value.
        events: casts and factors since the product, in order, each with its type.
        group: the row before it was cut in groups, and n, once the groups are joined again.
        partial: elements in the partial mean square; 0: all.
        owner: the last value of this chain that is a complete operator.
        association: 1: the scale was multiplied with 1 / rms, 2: with x, before the two met; 3: as
            1, the product rounded to the type of x.
        inverted: the row was multiplied with 1 / rms (else divided by rms).
        wide: what a native node is between Casts: the same, as if made by other operators.
        unit: the row of length one in it, which is one operator where the whole rounds otherwise.
    """

    x: View
    radial: Radial | None
    product: ir.DataType
    dtype: ir.DataType
    events: tuple[Event, ...] = ()
    scale: Weight | None = None
    bias: Weight | None = None
    gate: Activated | None = None
    group: tuple[View, int] | None = None
    partial: int = 0
    owner: Match | None = None
    association: int = 0
    inverted: bool = False
    wide: Norm | None = None
    unit: Match | None = None


Fact = Square | Radial | WeightedInverse | Activated | Norm
