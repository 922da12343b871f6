"""ONNX Runtime's CUDA provider, as it is published, on the stand-in for CUDA.

The wheels are of 200 to 300 MB each, so only ``scripts/test --thorough`` installs them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from tests.tools.runtimes.measure import Installable

_CHILD = pathlib.Path(__file__).with_name("child.py")
_SECONDS = 60
Inputs = Sequence[tuple[str, int, Sequence[int]]]
"""Name, element type and shape of each input of a model."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one model.

    Attributes:
        error: of loading or running it; "" without.
        placed: provider -> operators of its nodes, or their number where it has all of them.
        runs: the events of each run, in order: ``launch KERNEL<tab>STREAM``,
            ``copy[-async] FROM-TO BYTES``, ``wait stream|event|device``, ``malloc BYTES``; those
            recorded for a CUDA graph begin with ``captured``.
        stream: that of the caller, with ``own_stream``.
    """

    error: str
    placed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    runs: Sequence[Sequence[str]] = ()
    outputs: Sequence[Any] = ()
    stream: str = ""

    @property
    def device(self) -> str:
        """``cuda``, ``cpu``, ``both`` or, of a model without nodes or that does not load, ""."""
        names = {"CUDAExecutionProvider": "cuda", "CPUExecutionProvider": "cpu"}
        devices = [names[provider] for provider in self.placed]
        return "both" if len(devices) > 1 else "".join(devices)

    def launches(self, run: int = -1) -> list[tuple[str, str]]:
        """Return the kernels that a run launched, each with its stream."""
        words = [event.removeprefix("captured ") for event in self.runs[run]]
        launched = [word.removeprefix("launch ").partition("\t") for word in words if "\t" in word]
        return [(kernel, stream) for kernel, _, stream in launched]

    def kernels(self) -> list[str]:
        """Return the names of the kernels that the last run launched."""
        words = [event.removeprefix("captured ") for event in self.runs[-1]]
        launched = [word.removeprefix("launch ") for word in words if word.startswith("launch ")]
        return [word.partition("\t")[0] for word in launched]


class Provider:
    """One version of onnxruntime-gpu, with the libraries that stand in for CUDA's."""

    def __init__(self, version: str) -> None:
        old = tuple(map(int, version.split(".")[:2])) < (1, 19)
        packages = (f"onnxruntime-gpu=={version}", *(["numpy==1.26.4"] if old else []))
        self.runtime = Installable("onnxruntime-gpu", version, packages)

    def install(self) -> str:
        """Install it unless it is there; what is missing, or ""."""
        if absent := [name for name in ("gcc", "readelf", "nm") if not shutil.which(name)]:
            return f"{' and '.join(absent)} not found"
        return self.runtime.install()

    def run(
        self, models: Sequence[tuple[onnx.ModelProto, Inputs]], *, runs: int = 1, **request: Any
    ) -> list[Outcome]:
        """Return what became of each model; one that ends the child is an error, as are its next.

        Args:
            models: with the inputs of a run.
            runs: of each model in one session.
            request: ``graph=True``: inputs and outputs stay on the device, and a CUDA graph is
                recorded; ``library``: of custom operators; ``outputs=True``: give them;
                ``own_stream=True``: on a stream that the caller made; ``together=True``: all
                sessions at once.
        """
        library = self.runtime.folder / "onnxruntime/capi/libonnxruntime_providers_cuda.so"
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            extra = [pathlib.Path(request["library"])] if "library" in request else []
            make_stand_in([library, *extra], folder / "cuda")
            paths = []
            for number, (model, inputs) in enumerate(models):
                path = folder / f"{number}.onnx"
                onnx.save(model, path)
                paths.append({"path": str(path), "inputs": list(inputs)})
            asked = json.dumps({"models": paths, "runs": runs, **request})
            environment = {
                **os.environ,
                "LD_LIBRARY_PATH": str(folder / "cuda"),
                "CUDA_EVENTS": str(folder / "events"),
                "PYTHONPATH": str(self.runtime.folder),
            }
            child = subprocess.run(
                [sys.executable, str(_CHILD)], input=asked + "\n", env=environment,
                capture_output=True, text=True, check=False, timeout=_SECONDS + 5 * len(models),
            )  # fmt: skip
        answers = [Outcome(**json.loads(line)) for line in child.stdout.splitlines()]
        lost = f"the process ended with {child.returncode}: {child.stderr[-300:]}"
        return answers + [Outcome(lost)] * (len(models) - len(answers))


# ONNX Runtime's CUDA provider without a GPU: the published library on a stand-in for CUDA.

SOURCE = pathlib.Path(__file__).with_name("runtime.c")
_LIBRARIES = r"NEEDED\)\s+Shared library: \[(lib(?:cu|nv)[^\]]*)\]"
_FUNCTIONS = re.compile(r"_*(cuda|cublas|curand|cudnn|cufft|cu[A-Z]|nvrtc|nvml)")


def make_stand_in(libraries: list[pathlib.Path], folder: pathlib.Path) -> None:
    """Write, under the names of all CUDA libraries that ``libraries`` need, one that stands in.

    Args:
        libraries: that are linked with CUDA, e.g. ``libonnxruntime_providers_cuda.so``.
        folder: for ``LD_LIBRARY_PATH``.
    """
    needed, functions = {"libcuda.so.1"}, set[str]()
    for library in libraries:
        needed |= set(re.findall(_LIBRARIES, _run("readelf", "-d", "-W", str(library))))
        symbols = _run("nm", "-D", "--undefined-only", str(library)).split()
        functions |= {name.partition("@")[0] for name in symbols if _FUNCTIONS.match(name)}
    written = set(re.findall(r"\b(\w+)[()]", SOURCE.read_text()))
    rest = "".join(f"int {name}(void) {{ return 0; }}\n" for name in sorted(functions - written))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rest.c").write_text(rest)
    whole = folder / "stand_in.so"
    sources = (str(SOURCE), str(folder / "rest.c"))
    _run("gcc", "-shared", "-fPIC", "-O1", "-w", *sources, "-o", str(whole))
    for name in needed:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(whole.name)


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
