"""Plugin fields: the attributes of a ``NormSpec`` as TensorRT's parser hands them to a creator, and
the same with something wrong.

The parser makes FLOAT32 of an ONNX float, INT32 of an int, and CHAR with the closing NUL of a
string.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Iterator, Mapping
from typing import ClassVar, get_args

from rmsnorm_export.op.spec import BFLOAT16, FLOAT16, Kind, NormSpec, Quantize

FLOAT32, INT32, CHAR = 1, 5, 6
"""PluginFieldType of NvInferPluginBase.h."""

QUANTIZE: tuple[Quantize, ...] = get_args(Quantize)
"""Values of the field ``quantize``, which the quantised plugins have beside those of the spec."""

Value = int | float | str


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One plugin field: its name, its PluginFieldType, and the bytes of its elements."""

    SIZES: ClassVar[Mapping[int, int]] = {0: 2, 1: 4, 2: 8, 3: 1, 4: 2, 5: 4, 6: 1, 9: 2, 10: 8}

    name: str
    type: int
    data: bytes

    @property
    def length(self) -> int:
        """The number of elements."""
        return len(self.data) // self.SIZES[self.type]


def field(name: str, value: Value) -> Field:
    """The field that the parser makes of an ONNX attribute."""
    if isinstance(value, str):
        return Field(name, CHAR, value.encode() + b"\0")
    if isinstance(value, float):
        return Field(name, FLOAT32, struct.pack("f", value))
    return Field(name, INT32, struct.pack("i", value))


def fields_of(spec: NormSpec, extra: Mapping[str, Value] | None = None) -> list[Field]:
    """The fields of a node with this spec."""
    values: dict[str, Value] = {**spec.attributes(), **(extra or {})}
    return [field(name, value) for name, value in values.items()]


def variants(kind: Kind) -> Iterator[tuple[str, NormSpec]]:
    """A name and a spec for every attribute that a kernel has to know."""
    yield "defaults", NormSpec(kind=kind)
    gemma = NormSpec(kind=kind, epsilon=1e-6, scale_before_cast=True, scale_offset=1.0)
    yield "Gemma order and offset", gemma
    yield "epsilon outside", NormSpec(kind=kind, epsilon=0.0, epsilon_outside=True)
    yield "epsilon clamp", NormSpec(kind=kind, epsilon_clamp=True)
    yield "rounded 1/rms", NormSpec(kind=kind, round_rstd=True)
    for half, name in ((FLOAT16, "float16"), (BFLOAT16, "bfloat16")):
        yield f"stash {name}", NormSpec(kind=kind, stash_type=half, round_rstd=True, association=1)
    if kind == "RotaryRMSNorm":
        yield "part, interleaved", NormSpec(kind=kind, rotary_dim=32, rotary_interleaved=True)
        return
    yield "partial", NormSpec(kind=kind, partial_size=16)
    yield "groups", NormSpec(kind=kind, group_size=128)
    yield "two axes", NormSpec(kind=kind, axis=-2)
    yield "channels", NormSpec(kind=kind, axis=-3, last_axis=-3)
    if kind == "GatedRMSNorm":
        yield "sigmoid gate first", NormSpec(kind=kind, activation="sigmoid", gate_first=True)


def faults(
    kind: Kind, extra: Mapping[str, Value] | None = None
) -> Iterator[tuple[str, list[Field]]]:
    """A name and fields that a creator has to refuse."""
    good = fields_of(NormSpec(kind=kind), extra)
    for name, changes in _WRONG.items():
        yield name, _changed(good, *(field(key, value) for key, value in changes.items()))
    yield "epsilon is an integer", _changed(good, field("epsilon", 1))
    yield "axis is a float", _changed(good, field("axis", -1.0))
    yield "axis is a text", _changed(good, field("axis", "-1"))
    yield "two epsilons in one field", _changed(good, Field("epsilon", FLOAT32, bytes(8)))
    yield "an empty field", _changed(good, Field("epsilon", FLOAT32, b""))
    yield "an attribute of a later version", [*good, field("of_the_future", 0)]
    if kind == "GatedRMSNorm":
        yield "unknown activation", _changed(good, field("activation", "tanh"))
        yield "activation is a number", _changed(good, field("activation", 1))
        yield "long activation", _changed(good, field("activation", "silu" * 4096))
    if kind == "RotaryRMSNorm":
        yield "groups that are turned", _changed(good, field("group_size", 8))
        yield "an odd part is turned", _changed(good, field("rotary_dim", 7))
    if extra:
        yield "unknown quantize", _changed(good, field("quantize", "fp4"))
        yield "no quantize", fields_of(NormSpec(kind=kind))


_WRONG: dict[str, dict[str, Value]] = {
    "epsilon is negative": {"epsilon": -1e-5},
    "epsilon is not a number": {"epsilon": math.nan},
    "epsilon is infinite": {"epsilon": math.inf},
    "scale_offset is infinite": {"scale_offset": -math.inf},
    "axis counts from the front": {"axis": 0},
    "axis is out of range": {"axis": -(2**31)},
    "stash_type is int64": {"stash_type": 7},
    "scale_before_cast is 2": {"scale_before_cast": 2},
    "partial_size is negative": {"partial_size": -1},
    "group_size is negative": {"group_size": -(2**31)},
    "partial_size and group_size": {"partial_size": 8, "group_size": 8},
    "groups over two axes": {"group_size": 8, "axis": -2},
    "epsilon outside and clamped": {"epsilon_outside": 1, "epsilon_clamp": 1},
    "last_axis before axis": {"last_axis": -2},
    "groups of channels": {"group_size": 8, "axis": -3, "last_axis": -3},
    "association of channels": {"association": 2, "stash_type": 10, "axis": -3, "last_axis": -3},
    "association is 3": {"association": 3, "round_rstd": 1},
    "association 1 without round_rstd": {"association": 1},
    "round_rstd and scale_before_cast": {"round_rstd": 1, "scale_before_cast": 1},
}


def _changed(fields: list[Field], *new: Field) -> list[Field]:
    by_name = {given.name: given for given in new}
    return [by_name.get(given.name, given) for given in fields]
