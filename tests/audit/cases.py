"""Norms that recognition does not follow: those that a proof takes, and those that are named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx

from tests.recognize import text_models as text
from tests.tools.tables import table

TABLE: dict[str, Any] = table(__file__)
PLAIN: dict[str, Any] = {}
"""The case that is the norm itself."""


def built(case: Mapping[str, Any] = PLAIN) -> onnx.ModelProto:
    """Return a model of the norm, with what the case has of its own (see the table)."""
    steps = "\n".join(case.get(name, step) for name, step in TABLE["steps"].items())
    kind = case.get("kind", "float[B,S,8]")
    return text.model(
        case.get("nodes", "STEPS").replace("STEPS", steps),
        constants=TABLE["constants"] + case.get("stored", ""),
        inputs=f"{kind} x{case.get('given', '')}",
        outputs=f"{kind} y",
        imports=', "my" : 1',
        functions=case.get("functions", "").replace("STEPS", steps),
    )
