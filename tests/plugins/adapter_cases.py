"""Nodes and attributes that the plugin of TensorRT takes, and those that it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np

from rmsnorm_export.op.spec import PLUGIN_NAMESPACE
from tests.plugins.player import BF16, FLOAT, HALF, INT32, Tensor, field, raw_field
from tests.tools.tables import table

TYPES = {"FLOAT": FLOAT, "HALF": HALF, "BF16": BF16, "INT32": INT32}
_TABLE: dict[str, Any] = table(__file__)
NODES: list[Any] = _TABLE.pop("nodes")


def changed(tensors: dict[str, Tensor], changes: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of a node with changes of ``NODES``."""
    for role, change in changes.items():
        tensors = tensors if role in tensors else {"x": tensors["x"], role: tensors["x"], **tensors}
        if change is False:
            del tensors[role]
            continue
        given = tensors[role]
        sizes = change.get("sizes", given.sizes)
        kind = TYPES.get(change.get("type"), given.type)
        tensors[role] = Tensor(kind, None if sizes == "none" else tuple(sizes))
    return tensors


BAD: dict[str, dict[str, list[Any]]] = _TABLE
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
