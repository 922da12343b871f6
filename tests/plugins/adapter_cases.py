"""Nodes and attributes that the plugin of TensorRT takes, and those that it refuses."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec.toml
import numpy as np

from rmsnorm_export.op.spec import PLUGIN_NAMESPACE
from tests.plugins.player import BF16, FLOAT, HALF, INT32, Fields, Tensor, field, raw_field

Change: TypeAlias = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def change(role: str, **changes: Any) -> Change:
    return lambda tensors: tensors | {role: dataclasses.replace(tensors[role], **changes)}


def both(**changes: Any) -> Change:
    return lambda tensors: change("cos", **changes)(change("sin", **changes)(tensors))


def two_runs(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tables that repeat along two runs of axes and have rows of their own along two."""
    x = {role: dataclasses.replace(tensors[role], sizes=(3, 2, 3, 4, 64)) for role in ("x", "y")}
    return both(sizes=(1, 2, 1, 4, 64))(tensors) | x


def without(role: str) -> Change:
    return lambda tensors: {name: tensors[name] for name in tensors if name != role}


CHANNELS: Fields = {"axis": -2, "last_axis": -2}
OF_SIZES: list[tuple[str, Fields, int, tuple[int, ...], str]] = [
    ("RMSNorm", {"axis": -3}, 0, (2, 64), "dimensions"),
    ("RMSNorm", {"group_size": 48}, 1, (2, 4, 64), "group_size"),
    ("RMSNorm", {}, 0, (2, 2**20 + 1), "1048576"),
    ("RMSNorm", {}, 0, (2, 0), "1048576"),
    ("RMSNorm", {}, 0, (2**40, 2**40, 64), "counted"),
    ("RMSNorm", {"stash_type": 16}, 0, (2, 4, 64), "stash_type"),
    ("RotaryRMSNorm", {}, 0, (2, 4, 63), "even"),
]
"""Operator, attributes, weights and sizes of X; and a word of the refusal."""
CHANGED: list[tuple[str, Fields, int, Change, str]] = [
    ("RMSNorm", {}, 1, change("scale", sizes=None), ""),
    *(("RMSNorm", CHANNELS, 1, change("scale", sizes=sizes), "")
      for sizes in ((4, 1), (1, 4, 1), (1, 1, 4, 1, 1))),
    ("QuantizedRMSNorm", {}, 0, change("quant_scale", sizes=(1, 1, 1, 1)), ""),
    ("RMSNorm", {}, 1, change("x", type=FLOAT), "type"),
    ("RMSNorm", {}, 1, change("scale", type=BF16), "bfloat16"),
    ("RMSNorm", {}, 0, change("x", type=INT32), "int32"),
    ("RMSNorm", {}, 1, change("scale", sizes=(4,)), "4"),
    ("RMSNorm", {}, 1, change("scale", sizes=(1,)), "1"),
    ("RMSNorm", {}, 1, change("scale", sizes=(2, 4, 64)), "2x4x64"),
    ("RMSNorm", CHANNELS, 1, change("scale", sizes=(64,)), "64"),
    ("RMSNorm", CHANNELS, 1, change("scale", sizes=(4, 64)), "4x64"),
    ("RMSNorm", {"axis": -2}, 1, change("scale", sizes=(64,)), "64"),
    ("RMSNorm", {}, 1, change("x", sizes=None), "rank"),
    ("RMSNorm", {}, 2, lambda t: {"x": t["x"], "fourth": t["x"], **t}, "found 4"),
    ("SkipRMSNorm", {}, 1, change("other", type=FLOAT), "type"),
    ("SkipRMSNorm", {}, 1, change("other", sizes=(1, 4, 64)), "shape"),
    ("SkipRMSNorm", {}, 1, change("other", sizes=(1, 2, 4, 64)), "shape"),
    ("SkipRMSNorm", {}, 1, change("other", sizes=None), "left out"),
    ("SkipRMSNorm", {}, 0, without("other"), "found 1"),
    ("RotaryRMSNorm", {}, 0, change("sin", type=FLOAT), "one type"),
    ("RotaryRMSNorm", {}, 0, change("sin", sizes=(1, 64)), "one shape"),
    ("RotaryRMSNorm", {}, 0, change("sin", sizes=None), "left out"),
    ("RotaryRMSNorm", {}, 0, both(type=BF16), "bfloat16"),
    ("RotaryRMSNorm", {}, 0, both(sizes=(4, 21)), "half as many"),
    ("RotaryRMSNorm", {}, 0, both(sizes=(3, 64)), "3x64"),
    ("RotaryRMSNorm", {}, 0, without("cos"), "X, cos, sin"),
    ("QuantizedRMSNorm", {}, 0, without("quant_scale"), "found 1"),
    ("QuantizedRMSNorm", {}, 0, change("quant_scale", sizes=(64,)), "one number"),
    ("QuantizedRMSNorm", {}, 0, change("quant_scale", type=HALF), "float32"),
    ("RotaryRMSNorm", {}, 0, two_runs, "at most two runs"),
]  # fmt: skip
"""The same, of a change in a node that is taken; no word where it still is."""

BAD: dict[str, dict[str, list[Any]]] = msgspec.toml.decode(
    pathlib.Path(__file__).with_suffix(".toml").read_bytes()
)
BAD["GatedRMSNorm"]["activation"].append("a" * 1000)
RAW: list[tuple[str, list[str], bool]] = [
    ("all", [raw_field("group_size", 10, 1, (2**32).to_bytes(8, "little"))], False),
    ("all", [raw_field("axis", 10, 1, (-2).to_bytes(8, "little", signed=True))], True),
    ("all", [raw_field("epsilon", 2, 1, np.float64(1e-6).tobytes())], True),
    ("all", [field("plugin_version", "1"), field("plugin_namespace", PLUGIN_NAMESPACE)], True),
    ("all", [raw_field("epsilon", 1, 1, None)], False),
    ("all", [raw_field("epsilon", 1, 0, b"\0")], False),
    ("all", [raw_field("-", 1, 1, b"")], False),
    ("all", [field("of_the_future", 0)], False),
    ("all", [field("group_size", 2**20)], True),
    ("0", [], True),
    ("12", [], False),
    ("-3", [], False),
    ("-10", [], False),  # no collection
]  # fmt: skip
