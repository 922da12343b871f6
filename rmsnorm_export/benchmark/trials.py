"""Each variant once, in a process of its own: does it run, is it right, how much memory has it.

The reference is the raw file without graph optimization, on the CPU where that loads it, as in
``verify``: ONNX Runtime fuses norms itself, some of them wrongly. The bounds are those of
``verify``, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

from rmsnorm_export.benchmark.arrays import read_arrays
from rmsnorm_export.benchmark.result import Check, Trial
from rmsnorm_export.benchmark.sessions import provider_class
from rmsnorm_export.benchmark.worker import Outcome, run_worker
from rmsnorm_export.compare.outputs import Bounds, compare_output
from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.system.machine import memory_available

TIME_LIMIT = 3600.0
"""Seconds to load a model and run it: the TensorRT provider builds its engine in them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bench:
    """Where the trials find what they have in common.

    Attributes:
        folder: for outputs, results and logs.
        labels: of the shapes.
        feeds: file of inputs for each of them.
        threads: of one operator.
    """

    folder: Path
    labels: tuple[str, ...]
    feeds: tuple[Path, ...]
    threads: int

    def outputs(self, name: str) -> list[Path]:
        """A file of outputs for each shape."""
        return [self.folder / f"{name}.{i}.npz" for i in range(len(self.feeds))]

    def run(self, model: str, provider: str, outputs: Sequence[Path], *, optimize: bool) -> Outcome:
        """Load ``model`` and run it at every shape."""
        request = {
            "action": "trial",
            "model": model,
            "provider": provider,
            "threads": self.threads,
            "optimize": optimize,
            "feeds": [str(path) for path in self.feeds],
            "outputs": [str(path) for path in outputs],
        }
        return run_worker(request, folder=self.folder, time_limit=TIME_LIMIT, memory_limit=None)


def run_trial(bench: Bench, variant: str, model: str, provider: str) -> Trial:
    """Load and run ``model``, and compare its outputs with the reference."""
    outputs = bench.outputs("trial")
    ended = bench.run(model, provider, outputs, optimize=True)
    if ended.status != "ok":
        return Trial(variant, provider, ended.status, ended.detail)
    if not ended.result["on"]:
        detail = f"ONNX Runtime cannot use {provider_class(provider)} here and fell back to the CPU"
        return Trial(variant, provider, "failed", detail)
    checks = [
        check
        for label, mine, expected in zip(
            bench.labels, outputs, bench.outputs("reference"), strict=True
        )
        for check in compare_outputs(label, read_arrays(mine), read_arrays(expected))
    ]
    wrong = [check for check in checks if not check.passed]
    detail = "" if not wrong else f"{wrong[0].output} at {wrong[0].case}: {wrong[0].reason}"
    if len(wrong) > 1:
        detail += f" (and {len(wrong) - 1} more)"
    return Trial(
        variant,
        provider,
        "wrong outputs" if wrong else "ok",
        detail,
        tuple(checks),
        float(ended.result["load_seconds"]),
        _mib(ended.result["base"]),
        _mib(ended.result["peak"]),
    )


def compare_outputs(
    case: str, computed: dict[str, Array], expected: dict[str, Array]
) -> list[Check]:
    """Every output that the raw model has, as ``verify`` compares it."""
    checks = []
    for name, array in expected.items():
        mine = computed.get(name)
        if mine is None:
            checks.append(Check(case, name, False, "the output is missing", math.nan, math.nan))
        elif (mine.dtype, mine.shape) != (array.dtype, array.shape):
            reason = f"{mine.dtype} {list(mine.shape)}, not {array.dtype} {list(array.shape)}"
            checks.append(Check(case, name, False, reason, math.nan, math.nan))
        else:
            one = compare_output(name, mine, array, Bounds())
            far, bound = one.metrics.max_abs, one.bound_abs
            checks.append(Check(case, name, one.passed, one.reason, far, bound))
    return checks


def _mib(size: int | None) -> float | None:
    return None if size is None else round(size / 2**20, 1)


def check_memory(trials: Sequence[Trial]) -> None:
    """All sessions are open at once, raw's twice.

    Raises:
        UsageError: they do not fit into the memory that is free.
    """
    sizes = [
        trial.peak_mib - trial.base_mib
        for trial in (*trials[:1], *trials)
        if trial.peak_mib is not None and trial.base_mib is not None
    ]
    free = memory_available()
    if free is not None and sum(sizes) * 2**20 > free:
        raise UsageError(
            "The variants do not fit into memory together.",
            found=f"{sum(sizes) / 1024:.1f} GiB for {len(sizes)} sessions,"
            f" {free / 2**30:.1f} GiB are free",
            fix="name fewer of --targets and --peers, or give smaller --shapes",
        )
