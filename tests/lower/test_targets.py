"""A target is one row and one module: nothing else has to know of it."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from source_graphs import Source, build, feed

import rmsnorm_export as rx
from rmsnorm_export.lower import targets
from rmsnorm_export.lower.builder import SiteBuilder
from rmsnorm_export.lower.lower import LowerContext, Lowered, refuse_match
from rmsnorm_export.lower.plugin import plugin_refuses
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, NormSpec
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.refusal import Refusal
from tests.recognize.text_models import run


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


# Nodes name the TensorRT plugin only when it takes them: a plugin that refuses ends the build.

WEIGHTS = (("scale", FLOAT, (64,)),)
LIMITS = [
    ("RMSNorm", NormSpec(), DOUBLE, 64, (), "float64"),
    ("RMSNorm", NormSpec(stash_type=DOUBLE), FLOAT, 64, (), "float64"),
    ("RMSNorm", NormSpec(stash_type=FLOAT16), FLOAT, 64, (), "in float16"),
    ("RMSNorm", NormSpec(), FLOAT, (1 << 20) + 1, (), "1048576 elements"),
    ("RMSNorm", NormSpec(), FLOAT16, 64, (("scale", BFLOAT16, (64,)),), "no bfloat16 scale"),
    ("RMSNorm", NormSpec(), FLOAT, 64, (("bias", FLOAT, (1,)),), "a bias of one element for each"),
    ("RMSNorm", NormSpec(), FLOAT, None, (("scale", FLOAT, (1,)),), "a scale of one element"),
    ("RMSNorm_grouped_3", NormSpec(group_size=16), FLOAT, 64, (), "no creator"),
    *(
        ("RMSNorm", NormSpec(), FLOAT16, 64, (("scale", FLOAT, own), ("bias", FLOAT16, own)), "")
        for own in ((64,), (1, 1, 64), ("n",), None)
    ),
    ("RMSNorm", NormSpec(), FLOAT, None, WEIGHTS, ""),
    ("RMSNorm_epsilon_clamp", NormSpec(epsilon_clamp=True), FLOAT, 64, WEIGHTS, ""),
    ("RMSNorm", NormSpec(axis=-3, last_axis=-3), FLOAT, 64, (("scale", FLOAT, (64, 1, 1)),), ""),
]
"""Name, norm, type and length of the rows, weights, and why the plugin does not take it."""


@pytest.mark.parametrize(("name", "spec", "dtype", "n", "weights", "why"), LIMITS)
def test_limits(name, spec, dtype, n, weights, why):
    reason = plugin_refuses(name, spec, dtype=dtype, n=n, weights=weights)
    assert (why in reason, bool(reason)) == (True, bool(why))


@pytest.mark.parametrize(
    ("x", "cos", "n", "why"),
    [
        (("B", "H", "S", 8), ("B", 1, "S", 8), 8, ""),
        (("B", "S", "H", 8), (1, "S", 1, 4), 8, ""),
        (("B", "H", "S", 8), None, 8, ""),
        (("B", "G", "H", "S", "T", 8), ("B", 1, 1, "S", 1, 8), 8, "two runs"),
        (("B", 1, "H", 1, 8), (1, "S", 1, "T", 8), 8, ""),
        (("B", "H", "S", 7), ("S", 4), 7, "even"),
    ],
)
def test_tables_of_a_rotary_embedding(x, cos, n, why):
    spec = NormSpec(kind="RotaryRMSNorm", rotary_dim=4 if n == 7 else 0)
    reason = plugin_refuses("RotaryRMSNorm", spec, dtype=FLOAT, n=n, weights=(), tables=(x, cos))
    assert (why in reason, bool(reason)) == (True, bool(why))
