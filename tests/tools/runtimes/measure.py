"""Runs files in a runtime of the catalogue: a child for each, its answers as records."""

from __future__ import annotations

import dataclasses
import importlib.metadata
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
from toolbox.corpus import cache

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


# The runtimes that can be installed, each in a folder of its own, and how that is done.

INSTALL = "scripts/test --thorough"
"""The command that installs these runtimes, and tests them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Installable:
    """One version of a runtime.

    Attributes:
        runtime: as ``rmsnorm_export.runtime.consumers`` calls it; a function of ``child.py`` that
            runs it has that name, underscores for hyphens.
        version: that is installed.
        packages: for pip, with their versions; (): this environment has it.
    """

    runtime: str
    version: str
    packages: tuple[str, ...] = ()

    @property
    def folder(self) -> pathlib.Path:
        """Where it is, or would be."""
        return cache.root().parent / "runtimes" / f"{self.runtime}-{self.version}"

    @property
    def label(self) -> str:
        """As users write it."""
        return f"{self.runtime}@{self.version}"

    def install(self) -> str:
        """Install it unless it is there; what went wrong, or "". pip takes wheels alone."""
        done = self.folder / f".installed-{self.version}"
        if not self.packages or done.is_file():
            return ""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "install", "-q", "--only-binary", ":all:"]
        command += ["--no-deps", "--upgrade", "--target", str(self.folder), *self.packages]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            return process.stderr.strip()[-300:]
        done.touch()
        return ""


def _own(runtime: str, package: str) -> Installable:
    return Installable(runtime, importlib.metadata.version(package))


_NUMPY_1 = "numpy==1.26.4"
"""The last that the extension modules of ONNX Runtime before 1.19 can be loaded with."""

_ONNXRUNTIMES = {
    **dict.fromkeys(("1.15.1", "1.16.3", "1.17.3", "1.18.1"), (_NUMPY_1,)),
    **dict.fromkeys(("1.19.2", "1.20.0", "1.20.1", "1.22.1", "1.23.2", "1.32.0"), ()),
}
CATALOGUE = (
    *(
        Installable("onnxruntime", version, (f"onnxruntime=={version}", *others))
        for version, others in _ONNXRUNTIMES.items()
    ),
    _own("onnxruntime", "onnxruntime"),
    Installable("openvino", "2024.6.0", ("openvino==2024.6.0", "openvino-telemetry==2025.2.0")),
    Installable("openvino", "2025.4.1", ("openvino==2025.4.1", "openvino-telemetry==2025.2.0")),
    Installable("openvino", "2026.4.1", ("openvino==2026.4.1",)),
    Installable("opencv", "5.0.0", ("opencv-python-headless==5.0.0.93",)),
    Installable("tract", "0.23.9", ("tract==0.23.9",)),
    Installable("tvm", "0.27.0", ("apache-tvm==0.27.0.post1", "apache-tvm-ffi==0.1.15.post2")),
    Installable("iree", "3.13.0", ("iree-base-compiler==3.13.0", "iree-base-runtime==3.13.0")),
    _own("onnx-reference", "onnx"),
)
