"""Engines of TensorRT and TensorRT-RTX.

They run in a process of their own: arrays go there and come back as files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rmsnorm_export.compare.backend import Answer, Backend, RunModel
from rmsnorm_export.errors import BackendMissingError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.printable import short
from rmsnorm_export.runtime.inputs import in_types_of, numpy_type
from rmsnorm_export.runtime.sizes import Declared, Profile
from rmsnorm_export.system.packages import version_of
from rmsnorm_export.tensorrt.engine import backends
from rmsnorm_export.tensorrt.engine.options import plan_plugin
from rmsnorm_export.tensorrt.engine.result import EngineRecord, read_record


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Engine(Backend):
    """An engine that was built before.

    Attributes:
        path: of the file.
        record: what stands beside it.
    """

    path: Path
    record: EngineRecord

    takes = frozenset({"engine"})

    @classmethod
    def open(cls, model: Any, *_: Any, **__: Any) -> Engine:
        """Open an engine after every check that can be made before it is loaded."""
        path = Path(os.path.abspath(model))
        record = read_record(path)
        backends.BACKENDS[record.backend].require()
        if not backends.gpu_visible():
            found = f"no GPU is visible, for {short(str(path), 300)}"
            fix = "run it where the GPU is; without one, take the ONNX model"
            raise BackendMissingError("Engines run only where a GPU is.", found=found, fix=fix)
        return cls(path, record)

    @property
    def name(self) -> str:
        return self.record.backend

    @property
    def _info(self) -> backends.BackendInfo:
        return backends.BACKENDS[self.record.backend]

    @property
    def runtime(self) -> str:
        return f"{self._info.label} {version_of(self._info.module)}".rstrip()

    @property
    def reduced(self) -> str:  # type: ignore[override]
        if self._info is backends.RTX:
            return "TensorRT-RTX decides on TF32 by itself"
        tf32 = self.record.flags.get("tf32") is not False
        return "the engine was built with TF32" if tf32 else ""

    def declared(self) -> Mapping[str, Declared]:
        """Return names, types and the sizes that every profile fixes."""
        declared = {}
        ends = [one for least, _, most in self.record.profiles for one in (least, most)]
        for item in self.record.inputs:
            shapes = [one[item.name] for one in ends]
            sizes = (set(axis) for axis in zip(*shapes, strict=True))
            shape = tuple(size.pop() if len(size) == 1 else None for size in sizes)
            declared[item.name] = dataclasses.replace(item, shape=shape)
        return declared

    def shapes(self) -> Mapping[str, Sequence[int]]:
        """Return the usual shapes of the first profile."""
        return self.record.profiles[0][1]

    @contextlib.contextmanager
    def running(self) -> Iterator[RunModel]:
        yield self.run

    def run(self, feeds: Mapping[str, Array]) -> Answer:
        """Compute every output on these inputs.

        Raises:
            BackendMissingError: the backend does not start: no GPU, no plugin, a broken package.
            InputError: it does not load the engine, or does not run on these inputs.
        """
        with self._fed(in_types_of(self.declared(), feeds)) as request:
            outputs = self._ask("infer", request)["outputs"]
            return Answer({output["name"]: output_array(output) for output in outputs})

    def measure(self, feeds: Mapping[str, Array], *, least: int, seconds: float) -> list[float]:
        """Return the seconds of each of many runs, inputs and outputs on the GPU.

        Args:
            feeds: as for `run`.
            least: runs that are made at least, after those that warm up.
            seconds: for which runs are made.
        """
        with self._fed(feeds) as request:
            times = self._ask("measure", request | {"least": least, "seconds": seconds})["times"]
            return [float(one) for one in times]

    @contextlib.contextmanager
    def _fed(self, feeds: Mapping[str, Array]) -> Iterator[dict[str, object]]:
        """Write the inputs into a folder, and say which they are, for the profile that fits."""
        with tempfile.TemporaryDirectory(prefix="rmsnorm-engine-") as folder:
            inputs: list[dict[str, object]] = []
            for number, (name, array) in enumerate(feeds.items()):
                file = Path(folder) / f"input{number}.bin"
                file.write_bytes(np.ascontiguousarray(array).tobytes())
                inputs.append({"name": name, "shape": list(array.shape), "file": str(file)})
            profile = profile_for(self.record.profiles, feeds)
            yield {"inputs": inputs, "folder": folder, "profile": profile}

    def _ask(self, command: str, request: Mapping[str, object]) -> dict[str, Any]:
        use: Literal["auto", "never"] = "auto" if self.record.plugin else "never"
        library, _ = plan_plugin(use, self._info, own=True)
        own = {"engine": str(self.path), "plugin": str(library or "")}
        answer = backends.run_backend(command, {**request, **own}, self._info)
        if answer.result is None:
            fix = "build it again here with rmsnorm-export build, for shapes that hold the inputs"
            raise backends.failure(
                answer, self._info, self.path.name, "does not run the engine.", fix
            )
        return answer.result


def output_array(output: Mapping[str, Any]) -> Array:
    """Read an output that the process wrote into a file."""
    array: Array = np.fromfile(output["file"], numpy_type(str(output["dtype"])))
    return array.reshape(tuple(output["shape"]))


def profile_for(profiles: Sequence[Profile], feeds: Mapping[str, Array]) -> int:
    """Return the number of the first profile that takes these shapes; 0 where none does."""
    for number, (least, _, most) in enumerate(profiles):
        ranges = [(least[name], feeds[name].shape, most[name]) for name in least]
        sizes = (size for each in ranges for size in zip(*each, strict=True))
        if all(low <= size <= high for low, size, high in sizes):
            return number
    return 0
