"""A model and what a pass made of it, run beside each other on the same random inputs."""

from __future__ import annotations

import copy
import dataclasses
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import Error
from rmsnorm_export.graph.bundle import states_of, write_models
from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.printable import one_line, plural
from rmsnorm_export.rewrite.names import values_in
from rmsnorm_export.runtime import inputs
from rmsnorm_export.runtime.metrics import DEFAULT_RTOL, compare_arrays, is_float, without_evidence
from rmsnorm_export.runtime.session import Device, open_session, run_session
from rmsnorm_export.runtime.sizes import Dims, input_shapes
from rmsnorm_export.runtime.tokens import pad_first_row

_TIMED_SIZES = (1, 64)
_SECONDS, _LEAST_PAIRS = 1.0, 6
"""Of a measurement of time."""


class WrongError(Exception):
    """What is wrong with a graph after a pass."""


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """How the outputs of two models differ.

    Attributes:
        outputs: how many were compared.
        share: the largest difference of an element, as a share of the largest of its output.
        same: rows of the first output whose largest element is the same one.
        rows: how many there are.
        unknown: why nothing was compared, or "".
        after_fails: it is the second model that does not run.
        time: of the second model, as a share of the first one's; 0: not measured.
    """

    outputs: int = 0
    share: float = 0.0
    same: int = 0
    rows: int = 0
    unknown: str = ""
    after_fails: bool = False
    time: float = 0.0

    def words(self) -> str:
        """Half a sentence, or "" where nothing was compared."""
        outputs, verb = plural(self.outputs, "output"), "differs" if self.outputs == 1 else "differ"
        words = f"{outputs} {verb} by at most {self.share:.2g} of the largest element"
        words += f", {self.time:.2f} of the time" if self.time else ""
        return words if self.outputs else ""


def compare_beside(
    before: ir.Model,
    after: ir.Model,
    *,
    seed: int,
    device: Device = "cpu",
    rtol: float | None = None,
    dims: Dims | None = None,
    timed: bool = False,
) -> Comparison:
    """Return how far the outputs of ``after`` are from those of ``before``.

    Args:
        before, after: of the same inputs and outputs.
        seed: of the inputs.
        device: for ``after``.
        rtol: the largest share that is allowed; None: that of ``verify`` for the type.
        dims: sizes of dimensions by their names; None: those that inputs are tried with.
        timed: measure the time of both, too.

    Raises:
        WrongError: an output is further off than is allowed.
    """
    with tempfile.TemporaryDirectory(prefix="rmsnorm-export-beside-") as folder:
        write_models({"before": before, "after": after}, Path(folder))
        declared, limits = inputs.graph_inputs(before), inputs.index_limits(before)
        candidates, _ = inputs.input_candidates(declared, limits, None, seed, dims=dims)
        try:
            states, session = states_of(before.graph), open_session(Path(folder, "before.onnx"))
            feeds, (filled, expected) = inputs.first_run(
                candidates(), lambda fed: (pad_first_row(fed, states), run_session(session, fed))
            )
        except Error as error:
            unknown = f"the graph before does not run: {one_line(error.found, 300)}"
            return Comparison(unknown=unknown)
        if unlike := without_evidence(expected):
            unknown = "; ".join(f"{name}: {why}" for name, why in unlike.items())
            return Comparison(unknown=unknown)
        try:
            computed = run_session(open_session(Path(folder, "after.onnx"), device=device), feeds)
        except Error as error:
            return Comparison(unknown=one_line(error.found, 300), after_fails=True)
        ratio = _time_ratio(before, Path(folder), device, seed) if timed else 0.0
    slots = {name: filled if name in states.values() else 0 for name in expected}
    shares = [
        _share_off(name, computed[name], expected[name], slots[name], rtol) for name in expected
    ]
    first = next(iter(expected))
    one, other = (arrays[first].argmax(-1) for arrays in (expected, computed))
    same = int((one == other).sum())
    return Comparison(len(expected), max(shares), same, one.size, time=ratio)


def _time_ratio(before: ir.Model, folder: Path, device: Device, seed: int) -> float:
    """Return the time of ``after.onnx`` as a share of that of ``before.onnx``; 0: they do not run.

    Both run in turn, on one thread and as users run them: optimized, one row, 64 tokens.
    """
    declared, limits = inputs.graph_inputs(before), inputs.index_limits(before)
    ratios: list[float] = []
    try:
        shapes = input_shapes(declared, sizes=_TIMED_SIZES)
        feeds = inputs.make_inputs(declared, limits, shapes, seed=seed)
        sessions = [
            open_session(folder / name, optimize=True, threads=1, device=device)
            for name in ("before.onnx", "after.onnx")
        ]
        end = time.perf_counter() + _SECONDS
        while len(ratios) < _LEAST_PAIRS or time.perf_counter() < end:
            marks = [time.perf_counter()]
            for session in sessions:
                run_session(session, feeds)
                marks.append(time.perf_counter())
            ratios.append((marks[2] - marks[1]) / (marks[1] - marks[0]))
    except Error:
        return 0.0
    return statistics.median(ratios[1:])  # the first run of each prepares it


def own_copy(model: ir.Model) -> ir.Model:
    """Clone a model with types of its own: a step that sets one would change both."""
    model = model.clone()
    for graph in all_graphs(model):
        for value in values_in(graph):
            value.type = copy.copy(value.type)
    return model


def _share_off(name: str, after: Array, before: Array, filled: int, rtol: float | None) -> float:
    """Return how far an output is off, as a share of its largest finite element.

    Raises:
        WrongError: further than is allowed.
    """
    if filled and before.ndim == 4:
        after, before = after[:, :, :filled], before[:, :, :filled]
    metrics = compare_arrays(after, before)
    finite = np.abs(before[np.isfinite(before)].astype(np.float64))
    share = metrics.max_abs / (float(finite.max(initial=0.0)) or 1.0)
    allowed = (rtol or DEFAULT_RTOL[metrics.dtype]) if is_float(before.dtype) else 0.0
    if not metrics.nan_inf_agree or share > allowed:
        raise WrongError(
            f"{name} is off by {share:.2g} of its largest element, {allowed:g} allowed"
        )
    return share
