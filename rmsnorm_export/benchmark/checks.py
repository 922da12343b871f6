"""Outputs of a variant beside those of the raw model, and the size of its file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from rmsnorm_export.benchmark.result import Check, Status
from rmsnorm_export.compare.outputs import Bounds, compare_outputs
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.metrics import NOTHING_COMPARED

Feeds = Mapping[str, Array]


def count_nodes(path: str | Path) -> int:
    """Count the nodes of a file's graphs, functions left out."""
    model = ir.from_proto(onnx.load(path, load_external_data=False))
    return len(model.graph) + sum(len(graph) for graph in model.graph.subgraphs())


def check_outputs(case: str, computed: Feeds, expected: Feeds) -> list[Check]:
    """Compare every output that the raw model has, as ``verify`` does."""
    fitting = {
        name: array
        for name, array in expected.items()
        if name in computed
        and (computed[name].dtype, computed[name].shape) == (array.dtype, array.shape)
    }
    compared = {one.name: one for one in compare_outputs(fitting, computed, Bounds())}
    checks = []
    for name, array in expected.items():
        one, mine = compared.get(name), computed.get(name)
        if one is not None:
            far, bound = one.metrics.max_abs, one.bound_abs
            checks.append(Check(case, name, one.passed, one.reason, far, bound))
            continue
        reason = "the output is missing"
        if mine is not None:
            reason = f"{mine.dtype} {list(mine.shape)}, not {array.dtype} {list(array.shape)}"
        checks.append(Check(case, name, False, reason, math.nan, math.nan))
    return checks


def judged(checks: Sequence[Check]) -> tuple[Status, str]:
    """Return what the checks of a variant come to, and the first that failed."""
    wrong = [check for check in checks if not check.passed]
    if not wrong:
        return "ok", ""
    nothing = all(check.reason in NOTHING_COMPARED for check in wrong)
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    detail = f"{wrong[0].output} at {wrong[0].case}: {wrong[0].reason}{more}"
    return "not compared" if nothing else "wrong outputs", detail
