"""Bisection for any pair of backends: what can be marked, or hooked, on each side."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rmsnorm_export.compare.bisect import Search, find_first
from rmsnorm_export.compare.engine_built import BuiltProber, BuiltSide
from rmsnorm_export.compare.finding import difference
from rmsnorm_export.compare.flow import Flow
from rmsnorm_export.compare.ort import OrtProber, OrtSide
from rmsnorm_export.compare.result import Bounds, Difference, OutputComparison
from rmsnorm_export.compare.shared import by_name
from rmsnorm_export.compare.side import Prober, Side
from rmsnorm_export.errors import Error
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.printable import one_line

if TYPE_CHECKING:
    from rmsnorm_export.compare.eager import TorchSide

_NOT = "the first difference was not looked for: "


def locate(
    sides: tuple[Side, Side],
    feeds: Mapping[str, Array],
    outputs: Sequence[OutputComparison],
    values: tuple[Mapping[str, Array], Mapping[str, Array]],
    bounds: Bounds,
) -> tuple[Difference | None, str]:
    """Where two models begin to differ, or why that was not looked for.

    Args:
        sides: the two models.
        feeds: the inputs.
        outputs: of the comparison, of which one failed at least.
        values: the outputs of both, by name.
        bounds: of the comparison.
    """
    graphs = [side.graph for side in sides]
    if any(
        graph is None and side.backend != "torch" for side, graph in zip(sides, graphs, strict=True)
    ):
        return None, (
            f"{_NOT}values inside an engine cannot be had; give the ONNX model that it was built"
            " from, with the engine's backend"
        )
    flows = [None if graph is None else Flow(graph) for graph in graphs]
    known = [flow for flow in flows if flow is not None]
    if not known:
        return None, f"{_NOT}neither model is an ONNX graph"
    modules: dict[str, str] = {}
    if len(known) == 2:
        shared = by_name(known[0], known[1])
    else:
        modules = _modules(sides, known[0])
        shared = set(modules)
    failed = [output for output in outputs if not output.passed]
    # The earliest: others may follow from it.
    target = min(failed, key=lambda one: known[-1].order.get(one.name, -1))
    with contextlib.ExitStack() as stack:
        try:
            probers = tuple(
                _prober(side, flow, feeds, modules, stack)
                for side, flow in zip(sides, flows, strict=True)
            )
            search = Search(
                probers=(probers[0], probers[1]),
                flows=tuple(known),
                shared=frozenset(shared),
                target=target.name,
                known=(
                    None if graphs[0] is not None else values[0][target.name],
                    None if graphs[1] is not None else values[1][target.name],
                ),
                bounds=bounds,
            )
            return difference(search, find_first(search, target)), ""
        except Error as error:
            return None, f"{_NOT}{one_line(error.what, 200)} {one_line(error.found, 300)}".strip()


def _modules(sides: tuple[Side, Side], flow: Flow) -> dict[str, str]:
    """Values of the graph that are results of modules of the PyTorch side."""
    import torch

    from rmsnorm_export.compare.modules import results

    module = next(_torch(side) for side in sides if side.backend == "torch").loaded.module
    return results(flow.model, module) if isinstance(module, torch.nn.Module) else {}


def _torch(side: Side) -> TorchSide:
    from rmsnorm_export.compare.eager import TorchSide

    assert isinstance(side, TorchSide)
    return side


def _prober(
    side: Side,
    flow: Flow | None,
    feeds: Mapping[str, Array],
    modules: Mapping[str, str],
    stack: contextlib.ExitStack,
) -> Prober:
    if isinstance(side, OrtSide):
        return OrtProber(side, feeds)
    if isinstance(side, BuiltSide):
        assert flow is not None
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rmsnorm-verify-"))
        return BuiltProber(side, flow, feeds, Path(folder))
    from rmsnorm_export.compare.eager import TorchProber

    return TorchProber(_torch(side).loaded, feeds, modules)
