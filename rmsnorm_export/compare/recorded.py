"""A file in ONNX Runtime against what a PyTorch module computed, on one or more inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from rmsnorm_export.compare.compare import judge, paired
from rmsnorm_export.compare.result import Bounds, OutputComparison, Verification
from rmsnorm_export.compare.side import Answer
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.session import run_session, runtime_name


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One call of a module.

    Attributes:
        feeds: its inputs, by the names of the file's inputs.
        answer: its outputs.
    """

    feeds: Mapping[str, Array]
    answer: Answer


def compare_runs(
    session: Any, runs: Iterable[Run], bounds: Bounds, *, runtime: str, source: str
) -> Verification:
    """Every output of every run against the session's.

    Args:
        session: of the file, graph optimization on.
        runs: what the module computed; more than one are numbered in the names of the outputs.
        bounds: as for ``rmsnorm_export.verify``.
        runtime: what ran the module, e.g. ``PyTorch 2.13.0 (CPU)``.
        source: where the inputs came from, for the report.

    Raises:
        VerificationError: ONNX Runtime cannot run the file, or it has other outputs.
    """
    outputs: list[OutputComparison] = []
    fed: list[str] = []
    known = list(runs)
    for number, run in enumerate(known, 1):
        answers = run_session(session, run.feeds)
        found = Answer(tuple(answers), tuple(answers.values()))
        suffix = f" [{number}]" if len(known) > 1 else ""
        fed += [f"{name} {a.dtype} {list(a.shape)}{suffix}" for name, a in run.feeds.items()]
        for output in judge(*paired(run.answer, found), bounds):
            outputs.append(dataclasses.replace(output, name=output.name + suffix))
    failed = [f"{output.name}: {output.reason}" for output in outputs if not output.passed]
    return Verification(
        passed=not failed,
        reason="; ".join(failed),
        outputs=tuple(outputs),
        runtime=f"{runtime} and {runtime_name()}",
        optimized=(False, True),
        inputs=tuple(fed),
        source=source,
        backends=("torch", "onnxruntime"),
    )
