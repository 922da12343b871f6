"""Engines run in a process of their own: arrays go there and come back as files."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rmsnorm_export.compare.backend import Answer
from rmsnorm_export.errors import BackendMissingError, Error, InputError, VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.printable import one_line
from rmsnorm_export.runtime.inputs import numpy_type
from rmsnorm_export.system.process import Ended
from rmsnorm_export.tensorrt.engine.backends import BackendInfo, run_backend
from rmsnorm_export.tensorrt.engine.failure import cause, last_errors
from rmsnorm_export.tensorrt.engine.result import EngineProfile, InputRange

_NO_GPU = re.compile(r"cuda driver|no cuda-capable device|cudaerror 35\b|cudaerror 100\b", re.I)
"""What a runtime says where no GPU, or no driver for it, is; TensorRT-RTX 1.7.1: cudaError 35."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """An engine that is to be run.

    Attributes:
        path: of the file.
        info: its backend.
        plugin: path of the plugin library to load, or "".
    """

    path: Path
    info: BackendInfo
    plugin: str = ""

    def profiles(self) -> tuple[EngineProfile, ...]:
        """The ranges of the inputs, from the engine itself.

        Raises:
            BackendMissingError: the backend does not start: no GPU, no plugin, a broken package.
            InputError: it does not load the engine.
        """
        inputs = [
            [
                InputRange(item["name"], item["dtype"], *map(tuple, three))
                for three in item["ranges"]
            ]
            for item in self._ask("describe").all("input")
        ]
        return tuple(EngineProfile(ranges) for ranges in zip(*inputs, strict=False))

    def run(self, feeds: Mapping[str, Array], profile: int = 0) -> Answer:
        """Every output on these inputs.

        Args:
            feeds: every input, of the right type.
            profile: number of the optimization profile to use.

        Raises:
            BackendMissingError, InputError: as ``profiles``.
            VerificationError: it does not run on these inputs.
        """
        with tempfile.TemporaryDirectory(prefix="rmsnorm-verify-") as folder:
            inputs = []
            for number, (name, array) in enumerate(feeds.items()):
                file = Path(folder) / f"input{number}.bin"
                file.write_bytes(np.ascontiguousarray(array).tobytes())
                inputs.append({"name": name, "shape": list(array.shape), "file": str(file)})
            ended = self._ask("infer", inputs=inputs, folder=folder, profile=profile)
            outputs = ended.all("output")
            return Answer(
                tuple(output["name"] for output in outputs), tuple(map(output_array, outputs))
            )

    def _ask(self, command: str, **more: object) -> Ended:
        request = {"command": command, "engine": str(self.path), "plugin": self.plugin}
        ended = run_backend(request | more, self.info)
        if ended.first("done") is None:
            raise self._error_of(ended)
        return ended

    def _error_of(self, ended: Ended) -> Error:
        """The error for a process that ended without an answer."""
        event = ended.first("error") or {}
        version = (ended.first("version") or {}).get("version", "")
        label = f"{self.info.label} {version}".strip()
        errors = last_errors(ended)
        text = one_line(str(event.get("text", "")), 400) if event else cause(ended)
        found = f"{self.path.name}: {text}" + (f"; it said: {errors}" if errors else "")
        if event.get("kind") == "import":
            return BackendMissingError(
                f"{label} cannot be imported.", found=text, fix=self.info.pip
            )
        if event.get("kind") == "plugin":
            return BackendMissingError(
                f"{label} does not load the plugin library.",
                found=found,
                fix="rmsnorm-export plugin check says why",
            )
        if _NO_GPU.search(errors) or _NO_GPU.search(text):
            return BackendMissingError(
                f"{label} finds no GPU.", found=found, fix="run verify where the GPU is"
            )
        if any(stage["stage"] == "run" for stage in ended.all("stage")):
            return VerificationError(
                f"{label} cannot run the engine on these inputs.",
                found=found,
                fix="give inputs, or their shapes, within the ranges that the engine was built for",
            )
        return InputError(
            f"{label} does not load the engine.",
            found=found,
            fix="build it again here with rmsnorm-export build",
        )


def output_array(output: Mapping[str, Any]) -> Array:
    """An output that the process wrote into a file."""
    dtype = numpy_type(str(output["dtype"]))
    array: Array = np.fromfile(output["file"], dtype)
    return array.reshape(tuple(output["shape"]))
