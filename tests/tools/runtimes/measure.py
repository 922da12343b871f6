"""Runs files in a runtime of the catalogue: a child for each, its answers as records."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from rmsnorm_export.op.dtypes import Array
from tests.tools.runtimes.catalogue import Installable

_SECONDS = 60
"""For each model of a child: IREE compiles one for seconds."""
SAVED = ".optimized"
"""Suffix that ``child.py`` writes behind the name of a file for ONNX Runtime's optimized model."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """A runtime's run of one file.

    Attributes:
        error: what it said; "" when it ran.
        off: of every run the largest distance from the expected output.
        norms: norms that are one node, or one kernel, after its optimizations; None: not known.
    """

    error: str
    off: tuple[float, ...]
    norms: int | None = None


def run_files(
    runtime: Installable,
    files: Mapping[str, tuple[pathlib.Path, Array]],
    x: Array,
    *,
    sessions: int = 1,
    runs: int = 2,
) -> dict[str, Outcome]:
    """Run each file on ``x``, ``runs`` times in each of ``sessions`` sessions.

    Args:
        runtime: it must be installed.
        files: label -> file with the input ``input`` and the output ``output``, and what that is.
        x: float32.

    Returns:
        For each label; where the process died, its end is the error.
    """
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as scratch:
        request = {"input": f"{scratch}/x", "shape": x.shape, "runs": runs, "sessions": sessions}
        x.astype(np.float32).tofile(f"{scratch}/x")
        models = {}
        for number, (label, (path, expected)) in enumerate(files.items()):
            expected.astype(np.float32).tofile(f"{scratch}/{number}")
            models[label] = {"model": str(path), "expected": f"{scratch}/{number}"}
        while rest := [label for label in files if label not in outcomes]:
            answers, end = _in_child(runtime, {**request, "models": [models[k] for k in rest]})
            for label, answer in zip(rest, answers, strict=False):
                norms = answer.get("norms", _norms_left(pathlib.Path(f"{files[label][0]}{SAVED}")))
                outcomes[label] = Outcome(answer["error"], tuple(answer["off"]), norms)
            if len(answers) < len(rest):  # it ended the process; the others get another process
                outcomes[rest[len(answers)]] = Outcome(end, ())
    return outcomes


def _norms_left(path: pathlib.Path) -> int | None:
    """Norm nodes in what ONNX Runtime saved after its optimizations."""
    if not path.exists():
        return None
    ends = ("SimplifiedLayerNormalization", "RMSNormalization")
    count = sum(node.op_type.endswith(ends) for node in onnx.load(path).graph.node)
    path.unlink()
    return count


def _in_child(runtime: Installable, request: Mapping[str, Any]) -> tuple[list[Any], str]:
    seconds = _SECONDS * len(request["models"])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if runtime.packages:
        environment["PYTHONPATH"] = str(runtime.folder)
    child = pathlib.Path(__file__).with_name("child.py")
    command = [sys.executable, str(child), runtime.runtime.replace("-", "_")]
    try:
        done = subprocess.run(
            command, env=environment, input=json.dumps(request) + "\n", capture_output=True,
            text=True, errors="replace", timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return [], f"no answer in {seconds} s"
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return answers, f"the process ended with {done.returncode}: {done.stderr.strip()[-300:]}"
