"""The operator's specification: the one definition that all else agrees on.

For a row ``a`` of ``n`` elements (the axes from ``axis`` to ``last_axis``, flattened), computed in
``stash_type`` S, with X of type T::

    m   = mean(a_i ** 2)                    over the first partial_size elements, or each group
    rms = sqrt(m + epsilon)                 or sqrt(m) + epsilon        (epsilon_outside)
                                            or max(sqrt(m), epsilon)    (epsilon_clamp)
                                            sqrt(n m) for sqrt(m)       (unit_length)
    v   = a / rms                           or T(a) * T(1 / rms)        (round_rstd)
                                            y = T(a) * T((scale_offset + scale) / rms) + bias,
                                            the product with 1 / rms in S (scale_rstd)
    y   = T(v) * T(scale_offset + scale) + bias                         in T
    y   = T(v * (scale_offset + scale) + bias)                          in S (scale_before_cast)

In f32 statistics an implementation may multiply by ``1 / rms`` where this divides: what it rounds
is then within 2 ulp of f32 of the quotient.

``RotaryRMSNorm`` rotates the first ``rotary_dim`` elements of y, rounded to T, in pairs. With C the
type of the tables, each product and the sum rounded to it, and ``rot(y)`` the row in which each
pair (a, b) is (-b, a)::

    r = T(y * cos + rot(y) * sin)

When T is S and a half type, ``association`` says which of the two products of x, 1 / rms and scale
is rounded first: 0: with x, as above; 1: ``x * (scale / rms)``; 2: ``(x * scale) / rms``.

Sources: Zhang & Sennrich 2019, arXiv 1910.07467, equations 4 (RMSNorm) and section 3.2 (partial);
ai.onnx RMSNormalization-23 for ``axis``, ``epsilon``, ``stash_type`` and the default rounding;
torch.nn.functional.normalize for the clamp: ``x / max(||x||, e) * sqrt(n)`` is the norm with
``epsilon = e / sqrt(n)``; Su et al. 2021, arXiv 2104.09864, equation 34 (rotary embedding).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping
from typing import Any, Literal, get_args

DOMAIN = "rmsnorm_export"
OPSET_VERSION = 1
PLUGIN_NAMESPACE = "rmsnorm_export"
PLUGIN_VERSION = "1"

Kind = Literal["RMSNorm", "SkipRMSNorm", "GatedRMSNorm", "RotaryRMSNorm"]
Activation = Literal["silu", "sigmoid"]
Quantize = Literal["fp8", "int8", "fp8_per_row", "int8_per_row"]

FLOAT, FLOAT16, DOUBLE, BFLOAT16 = 1, 10, 11, 16
"""ONNX element types (TensorProto.DataType) that the operator takes."""

HALF_TYPES = frozenset({FLOAT16, BFLOAT16})
FLOAT_TYPES = HALF_TYPES | {FLOAT, DOUBLE}

_OF_ONE_KIND: dict[str, Kind] = {
    "activation": "GatedRMSNorm",
    "gate_first": "GatedRMSNorm",
    "rotary_dim": "RotaryRMSNorm",
    "rotary_interleaved": "RotaryRMSNorm",
}
"""The attributes that one operator alone has."""

ORIGINAL = frozenset({
    "epsilon", "axis", "stash_type", "scale_before_cast", "scale_offset", "epsilon_outside",
    "partial_size", "group_size", "round_rstd", "association", "epsilon_clamp", "last_axis",
    "activation", "gate_first", "rotary_dim", "rotary_interleaved",
})  # fmt: skip
"""The attributes that all of this package has known from the start. None is added here: what knows
a later one says so, and what does not refuses it where it is not at its default."""

IN_KERNELS = ORIGINAL
"""Those that plugins/kernels compute: the members of ``Norm`` in norm.h."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NormSpec:
    """The attributes of one RMSNorm; the defaults are the ordinary LLaMA norm.

    Attributes:
        kind: ``RMSNorm(X, scale?, bias?) -> Y``;
            ``SkipRMSNorm(X, residual, scale?, bias?) -> Y, sum`` with ``sum = T(X + residual)`` and
            ``Y = RMSNorm(sum)``; ``GatedRMSNorm(X, gate, scale?, bias?) -> Y``;
            ``RotaryRMSNorm(X, cos, sin, scale?, bias?) -> Y``, of rows that are the last axis.
        epsilon: added to the mean square (or to the root, or the least that the root may be),
            >= 0; a float32 number unless S is float64.
        axis: first normalised axis, negative; every later axis is normalised with it.
        stash_type: S, the ONNX element type in which the row is normalised: 1 float32, 10 float16,
            11 float64, 16 bfloat16.
        scale_before_cast: False: round to T, then scale in T (LLaMA). True: scale in the stash
            type, then round once (Gemma, torch.nn.RMSNorm).
        scale_offset: added to ``scale`` before it is used (1 for Gemma), in the type in which the
            product with ``scale`` is computed.
        epsilon_outside: epsilon is added to the root instead of to the mean square.
        partial_size: the mean square is that of the first ``partial_size`` elements; 0 means all.
        group_size: the row is cut into groups of this many elements, each with its own root mean
            square; 0 means one group.
        round_rstd: ``1 / rms`` is rounded to T and multiplied with X in T.
        association: in a half stash type, the order of the products: 0: as the other attributes
            say; 1: ``x * (scale / rms)``; 2: ``(x * scale) / rms``.
        epsilon_clamp: epsilon is the least that the root may be, and is not added; a NaN stays one.
        last_axis: last normalised axis, negative; other than -1 only as ``axis`` itself, so that a
            row is one axis with others after it: the channels of an image are axis -3.
        unit_length: 1: the root is the Euclidean length of the row, rounded to S once (ReduceL2);
            epsilon is a clamp, outside or 0. 2: likewise, and a length that is infinite in S is its
            largest number (Clip).
        scale_rstd: with ``round_rstd``, 1 / rms is multiplied with the scale, in S, before it is
            rounded to T; nothing is scaled after it.
        scale_varies: the scale is of any shape that broadcasts to that of X.
        activation: of the gate (``GatedRMSNorm`` only).
        gate_first: False: ``Y = T(S(norm) * act(gate))``, where ``norm`` is the ungated result, not
            rounded when ``scale_before_cast``. True: ``RMSNorm(S(X) * act(gate))``, the product
            not rounded.
        rotary_dim: the elements at the start of the row that are rotated, an even number; 0 means
            all (``RotaryRMSNorm`` only).
        rotary_interleaved: False: the elements i and ``i + rotary_dim / 2`` are a pair. True: the
            elements 2 i and 2 i + 1.
    """

    kind: Kind = "RMSNorm"
    epsilon: float = 1e-5
    axis: int = -1
    stash_type: int = FLOAT
    scale_before_cast: bool = False
    scale_offset: float = 0.0
    epsilon_outside: bool = False
    partial_size: int = 0
    group_size: int = 0
    round_rstd: bool = False
    association: int = 0
    epsilon_clamp: bool = False
    last_axis: int = -1
    unit_length: int = 0
    scale_rstd: bool = False
    scale_varies: bool = False
    activation: Activation = "silu"
    gate_first: bool = False
    rotary_dim: int = 0
    rotary_interleaved: bool = False

    def __post_init__(self) -> None:
        part = self.partial_size or self.group_size
        rotary = self.kind == "RotaryRMSNorm"
        inside = self.epsilon and not (self.epsilon_outside or self.epsilon_clamp)
        problems = {
            "epsilon must be finite and >= 0": not 0 <= self.epsilon < math.inf,
            "axis must be negative (counted from the end)": self.axis >= 0,
            "stash_type must be a float element type": self.stash_type not in FLOAT_TYPES,
            "scale_offset must be finite": not math.isfinite(self.scale_offset),
            "partial_size and group_size must be >= 0": min(self.partial_size, self.group_size) < 0,
            "partial_size and group_size exclude each other": self.partial_size * self.group_size,
            "partial_size and group_size need axis = -1": part and self.axis != -1,
            "association must be 0, 1 or 2": self.association not in (0, 1, 2),
            "association 1 needs round_rstd": self.association == 1 and not self.round_rstd,
            "association and group_size exclude each other": self.association * self.group_size,
            "epsilon is outside or a clamp": self.epsilon_outside and self.epsilon_clamp,
            "unit_length must be 0, 1 or 2": self.unit_length not in (0, 1, 2),
            "unit_length has no epsilon inside": self.unit_length and inside,
            "unit_length 2 has no epsilon outside": self.unit_length == 2 and self.epsilon_outside,
            "scale_rstd needs round_rstd": self.scale_rstd and not self.round_rstd,
            "scale_rstd excludes association and group_size": (
                self.scale_rstd and (self.association or self.group_size)
            ),
            "scale_varies needs axis = -1": self.scale_varies and self.axis != -1,
            "scale_varies and group_size exclude each other": self.scale_varies * self.group_size,
            "last_axis must be -1 or axis": self.last_axis not in (-1, self.axis),
            "association needs last_axis = -1": self.last_axis != -1 and self.association,
            "activation must be silu or sigmoid": self.activation not in get_args(Activation),
            "round_rstd excludes scale_before_cast": self.round_rstd and self.scale_before_cast,
            "rotary_dim must be even and >= 0": self.rotary_dim < 0 or self.rotary_dim % 2,
            "RotaryRMSNorm needs axis -1, and whole rows": rotary and (part or self.axis != -1),
        }
        for problem, is_so in problems.items():
            if is_so:
                raise ValueError(problem)

    @classmethod
    def from_attributes(cls, kind: Kind, attributes: Mapping[str, int | float | str]) -> NormSpec:
        """Return the spec of a node with these ONNX attributes, the inverse of `attributes`.

        Absent attributes are at their default; those that are none of a norm are not looked at.

        Raises:
            ValueError: there is no such norm.
        """
        types: dict[str, Any] = {own.name: type(own.default) for own in dataclasses.fields(cls)}
        values = {name: types[name](attributes[name]) for name in attributes if name in types}
        return cls(**{**values, "kind": kind})

    def trailing(self) -> NormSpec:
        """Return the same norm of rows that have been moved to the last axis."""
        if self.last_axis == -1:
            return self
        return dataclasses.replace(self, axis=-1, last_axis=-1)

    def row_axes(self) -> range:
        """Return the normalised axes, negative."""
        return range(self.axis, self.last_axis + 1)

    def canonical(self, dtype: int) -> NormSpec:
        """Return the same norm, attributes that cannot matter for X of ``dtype`` at default.

        When X is of the stash type no cast rounds, so the rounding order is moot.
        """
        spec = self
        if spec.association and (dtype != spec.stash_type or dtype not in HALF_TYPES):
            spec = dataclasses.replace(spec, association=0)
        if dtype == spec.stash_type:
            # In f32 and f64 ``a * (1 / rms)`` is ``a / rms`` to an ulp; in a half type it is not.
            rstd = spec.round_rstd and dtype in HALF_TYPES
            weighted = spec.scale_rstd and rstd
            spec = dataclasses.replace(
                spec, scale_before_cast=False, round_rstd=rstd, scale_rstd=weighted
            )
        if spec.epsilon == 0:
            spec = dataclasses.replace(spec, epsilon_outside=False, epsilon_clamp=False)
        return spec

    def product_type(self, dtype: int) -> int:
        """Return the element type of scale and bias after the norm of X of ``dtype``."""
        return self.stash_type if self.scale_before_cast else dtype

    def scale_type(self, dtype: int) -> int:
        """Return the element type of the product with the scale, for X of ``dtype``."""
        return self.stash_type if self.scale_rstd else self.product_type(dtype)

    def attributes(self) -> dict[str, int | float | str]:
        """Return the operator's ONNX attributes with the values of this spec, in schema order."""
        return dict(_attributes(self))

    def written(self) -> dict[str, int | float | str]:
        """Return the attributes of a node: the original ones, and later ones where they matter.

        The plugin reads absent fields as its own defaults and warns; what knows no later attribute
        refuses it.
        """
        own = self.non_default()
        return {n: v for n, v in _attributes(self).items() if n in ORIGINAL or n in own}

    def beyond(self, known: Collection[str]) -> str:
        """Name an attribute, with its value, that is not at its default and not in ``known``."""
        return next((f"{n} {v}" for n, v in self.non_default().items() if n not in known), "")

    def non_default(self) -> dict[str, int | float | str]:
        """Return the attributes, but for epsilon, that differ from the ordinary LLaMA norm."""
        fields = self.__dataclass_fields__
        return {
            name: value
            for name, value in _attributes(self).items()
            if name != "epsilon" and value != fields[name].default
        }


@functools.lru_cache(maxsize=256)  # the norms of a model are alike
def _attributes(spec: NormSpec) -> dict[str, int | float | str]:
    values: dict[str, int | float | str] = {}
    for field in dataclasses.fields(spec):
        if field.name != "kind" and _OF_ONE_KIND.get(field.name, spec.kind) == spec.kind:
            value = getattr(spec, field.name)
            number = float if isinstance(field.default, float) else int
            values[field.name] = value if isinstance(value, str) else number(value)
    return values


QUANTIZE = "quantize"
"""The attribute that ``QuantizedRMSNorm``, ``QuantizedSkipRMSNorm`` and ``QuantizedGatedRMSNorm``
have besides those of the norm. With y the norm, rounded to T, the output is INT8 or FP8 E4M3::

    q = saturate(round_to_even(y / s))

``fp8``, ``int8``: s is one float32 number, the last input. ``fp8_per_row``, ``int8_per_row``: s is
max |y| of the row / 448 or / 127, and 1 where that is 0; it is the last output, float32. A row with
a NaN has the scale NaN, one with an infinity alone an infinite scale: its int8 numbers are 0."""

CODE_TYPES = {"int8": (3, 127.0), "fp8": (17, 448.0)}
"""ONNX element type of a quantized output, and the number that the largest of a row becomes."""


def scaled_by(how: str) -> Literal["tensor", "row"]:
    """Return the unit that has a scale of its own."""
    return "row" if how.endswith("_per_row") else "tensor"
