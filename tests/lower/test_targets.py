"""A target is one row and one module: nothing else has to know of it."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from source_graphs import Source, build, feed, run

import rmsnorm_export as rx
from rmsnorm_export.lower import targets
from rmsnorm_export.lower.builder import SiteBuilder
from rmsnorm_export.lower.lower import LowerContext, Lowered, refuse_match
from rmsnorm_export.op.spec import FLOAT
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal


def _lower_to_l2(matches: Sequence[Match], context: LowerContext) -> list[Lowered | Refusal]:
    """A norm as LpNormalization, for f32 rows with no epsilon to speak of."""
    outcomes: list[Lowered | Refusal] = []
    for match in matches:
        if match.dtype != FLOAT or match.scale is None or match.n is None:
            outcomes.append(refuse_match(match, "l2-form", "only f32", match.spelling, "none"))
            continue
        site = SiteBuilder(match, "exact", context)
        unit = site.like(match.x, match.dtype, "unit")
        result = site.like(match.output, match.dtype, "output")
        site.norm("LpNormalization", [match.x], {"axis": -1, "p": 2}, [unit])
        site.add("Mul", [unit, match.scale], result, "scale")
        outcomes.append(site.lowered((match.output, result), notes=["an L2 norm"]))
    return outcomes


def test_a_new_target_is_a_row_and_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("l2_target")
    module.lower = _lower_to_l2  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "l2_target", module)
    facts: Any = {"module": "l2_target", "operators": ("LpNormalization",)}
    row = targets.TargetRow(summary="unit vectors, for this test", **facts)
    target: Any = "l2"
    monkeypatch.setitem(targets.TARGETS, target, row)
    source = Source(gain=np.sqrt(np.full(123, 123.0)))
    built = build(source)
    result = rx.optimize(built.model, target=target)
    assert [site.notes for site in result.report.fused] == [("an L2 norm",)]
    assert "LpNormalization" in {node.op_type for node in result.model.graph}
    assert run(ir.to_proto(result.model), feed(source))[0].shape == source.shape
    refused = rx.inspect(build(Source(gain=None)).model, target=target).refused
    assert [refusal.reason for refusal in refused] == ["l2-form"]
