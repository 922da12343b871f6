"""TensorRT and TensorRT-RTX: an engine in a file, or one that is built from an ONNX model.

Engines run in a process of their own: arrays go there and come back as files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx

from rmsnorm_export.compare.backend import Answer, Backend, Chosen, ReadValues, RunModel
from rmsnorm_export.compare.flow import Flow
from rmsnorm_export.compare.onnx_backend import OnnxBackend, copy_external, marked_bytes
from rmsnorm_export.errors import (
    BackendMissingError,
    InputError,
    UsageError,
)
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.printable import short
from rmsnorm_export.runtime.input_sizes import Declared
from rmsnorm_export.runtime.inputs import numpy_type
from rmsnorm_export.system.files import missing_fix
from rmsnorm_export.system.packages import version_of
from rmsnorm_export.tensorrt.engine.backends import (
    BACKENDS,
    RTX,
    TENSORRT,
    BackendInfo,
    backend_of_file,
    failure,
    gpu_visible,
    require_packages,
    run_backend,
)
from rmsnorm_export.tensorrt.engine.build import build_one
from rmsnorm_export.tensorrt.engine.options import BuildOptions, library_or_none
from rmsnorm_export.tensorrt.engine.result import (
    EngineProfile,
    EngineRecord,
    InputRange,
    read_record,
)


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
            for item in self._ask("describe")["inputs"]
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
        with self._fed(feeds) as (folder, inputs):
            result = self._ask("infer", inputs=inputs, folder=str(folder), profile=profile)
            outputs = result["outputs"]
            return Answer(
                tuple(output["name"] for output in outputs), tuple(map(output_array, outputs))
            )

    def measure(
        self, feeds: Mapping[str, Array], profile: int, *, least: int, seconds: float
    ) -> list[float]:
        """Seconds of each of many runs, inputs and outputs on the GPU.

        Args:
            feeds, profile: as for `run`.
            least: runs that are made at least, after those that warm up.
            seconds: for which runs are made.

        Raises:
            BackendMissingError, InputError, VerificationError: as `run`.
        """
        with self._fed(feeds) as (_, inputs):
            result = self._ask(
                "measure", inputs=inputs, profile=profile, least=least, seconds=seconds
            )
        return [float(one) for one in result["times"]]

    @contextlib.contextmanager
    def _fed(self, feeds: Mapping[str, Array]) -> Iterator[tuple[Path, list[dict[str, object]]]]:
        """A folder with the inputs as files, and which they are."""
        with tempfile.TemporaryDirectory(prefix="rmsnorm-verify-") as name:
            inputs: list[dict[str, object]] = []
            for number, (key, array) in enumerate(feeds.items()):
                file = Path(name) / f"input{number}.bin"
                file.write_bytes(np.ascontiguousarray(array).tobytes())
                inputs.append({"name": key, "shape": list(array.shape), "file": str(file)})
            yield Path(name), inputs

    def _ask(self, command: str, **more: object) -> dict[str, Any]:
        request = {"engine": str(self.path), "plugin": self.plugin}
        answer = run_backend(command, request | more, self.info)
        if answer.result is None:
            fix = "build it again here with rmsnorm-export build, for shapes that hold the inputs"
            raise failure(answer, self.info, self.path.name, "does not run the engine.", fix)
        return answer.result


def output_array(output: Mapping[str, Any]) -> Array:
    """An output that the process wrote into a file."""
    dtype = numpy_type(str(output["dtype"]))
    array: Array = np.fromfile(output["file"], dtype)
    return array.reshape(tuple(output["shape"]))


class TensorRT(OnnxBackend):
    """An ONNX model as the engine that TensorRT builds from it; ``open`` takes an engine, too."""

    __slots__ = ()
    name = "tensorrt"
    takes = frozenset({"onnx", "engine"})
    info: ClassVar[BackendInfo] = TENSORRT

    @classmethod
    def require(cls, chosen: Chosen) -> None:
        if chosen.kind != "engine":  # a file has checks of its own, which say more
            require_packages(cls.info)
            _require_gpu(cls.info, "the engine that would be built")

    @classmethod
    def open(cls, chosen: Chosen) -> Backend:
        return EngineFile.open(chosen) if chosen.kind == "engine" else super().open(chosen)

    @property
    def runtime(self) -> str:
        return f"{self.info.label} {version_of(self.info.module)}".rstrip()

    @property
    def reduced(self) -> str:
        return _reduced_by(self.info, tf32=False)  # build_engine leaves it off

    @contextlib.contextmanager
    def running(self) -> Iterator[RunModel]:
        with tempfile.TemporaryDirectory(prefix="rmsnorm-verify-") as folder:
            path = Path(folder) / "model.engine"
            source = self.source
            model = source.to_bytes() if source.path is None else str(source.path)
            yield lambda feeds: self._build(model, path, feeds).run(feeds)

    @contextlib.contextmanager
    def probing(self, feeds: Mapping[str, Array], flow: Flow) -> Iterator[ReadValues]:
        """An engine for each set of values, which are outputs of a copy of the model."""
        own = {name: feeds[name] for name in self.declared() or ()}
        proto = onnx.ModelProto.FromString(self.source.to_bytes())
        with tempfile.TemporaryDirectory(prefix="rmsnorm-verify-") as name:
            folder = Path(name)
            copy_external(self.source.model, self.source.folder, folder)

            def read_values(names: Sequence[str]) -> Mapping[str, Array]:
                # The builder takes no output whose type is not said.
                types = {name: dtype for name in names if (dtype := flow.dtype(name)) is not None}
                model = folder / "marked.onnx"
                model.write_bytes(marked_bytes(proto, tuple(types), types))
                engine = self._build(str(model), folder / "marked.engine", own)
                outputs = engine.run(own).by_name()
                return {name: outputs[name] for name in names if name in outputs}

            yield read_values

    def _build(self, model: bytes | str, path: Path, feeds: Mapping[str, Array]) -> Engine:
        """An engine for exactly these shapes."""
        shapes = {name: tuple(array.shape) for name, array in feeds.items()}
        options = BuildOptions(backend=self.info.name, shapes=shapes, force=True)
        record = build_one(model, path, options).record
        return Engine(path, self.info, library_or_none() if record.plugin else "")


class TensorRTRTX(TensorRT):
    """As ``TensorRT``, of TensorRT-RTX."""

    __slots__ = ()
    name = "tensorrt-rtx"
    info = RTX


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class EngineFile(Backend):
    """An engine that was built before.

    Attributes:
        engine: to run.
        record: what stands beside it; None without it.
        version: of the backend that is installed.
        profiles: ranges of its inputs, the first as usual.
    """

    engine: Engine
    record: EngineRecord | None
    version: str
    profiles: tuple[EngineProfile, ...]

    closed = (
        "values inside an engine cannot be had; give the ONNX model that it was built from, with"
        " the engine's backend"
    )

    @classmethod
    def open(cls, chosen: Chosen) -> EngineFile:
        """After every check that can be made before the engine is loaded, see ``Backend.open``."""
        choice, path = chosen.choice, Path(os.path.abspath(chosen.model))
        shown = short(str(path), 300)
        if not path.is_file():
            raise InputError("The engine does not exist.", found=shown, fix=missing_fix(path))
        record = read_record(path)
        info = backend_of_file(path) if record is None else BACKENDS[record.backend]
        if info is None and choice == "auto":
            raise InputError(
                "The backend of the engine is not known.",
                found=f"{shown}, without a record beside it",
                fix="give an engine of TensorRT or TensorRT-RTX, or say which with --backend-a,"
                " --backend-b",
            )
        info = info or BACKENDS[choice]
        if choice not in ("auto", info.name):
            raise UsageError(
                f"The engine is not one of the backend {choice}.",
                found=f"{shown} is an engine of {info.name}",
                fix="omit the backend: the file says which it is",
            )
        require_packages(info)
        _require_gpu(info, shown)
        needs_plugin = info.plugins and (record is None or bool(record.plugin))
        engine = Engine(path, info, library_or_none() if needs_plugin else "")
        profiles = engine.profiles() if record is None else record.profiles
        return cls(engine, record, version_of(info.module), profiles)

    @property
    def name(self) -> str:
        return self.engine.info.name

    @property
    def runtime(self) -> str:
        return f"{self.engine.info.label} {self.version}".strip()

    @property
    def reduced(self) -> str:
        if self.record is None:
            return "no record says that the engine was built without TF32 and fp16"
        return _reduced_by(self.engine.info, tf32=self.record.flags.get("tf32") is not False)

    def declared(self) -> Mapping[str, Declared]:
        """Names, types and the sizes that every profile fixes."""
        declared = {}
        for item in self.profiles[0].inputs if self.profiles else ():
            ranges = [
                one for profile in self.profiles for one in profile.inputs if one.name == item.name
            ]
            sizes = [
                {size for one in ranges for size in (one.min[axis], one.max[axis])}
                for axis in range(len(item.opt))
            ]
            shape = tuple(next(iter(size)) if len(size) == 1 else None for size in sizes)
            declared[item.name] = Declared(item.name, item.dtype, shape)
        return declared

    def shapes(self) -> Mapping[str, Sequence[int]]:
        """The usual shapes of the first profile."""
        return {item.name: item.opt for item in self.profiles[0].inputs} if self.profiles else {}

    @contextlib.contextmanager
    def running(self) -> Iterator[RunModel]:
        yield lambda feeds: self.engine.run(feeds, profile_for(self.profiles, feeds))


def profile_for(profiles: Sequence[EngineProfile], feeds: Mapping[str, Array]) -> int:
    """Number of the first profile that takes these shapes; 0 where none does."""

    def fits(item: InputRange) -> bool:
        shape = feeds[item.name].shape
        return len(shape) == len(item.min) and all(
            low <= size <= high for low, size, high in zip(item.min, shape, item.max, strict=True)
        )

    for number, profile in enumerate(profiles):
        if all(fits(item) for item in profile.inputs if item.name in feeds):
            return number
    return 0


def _require_gpu(info: BackendInfo, what: str) -> None:
    if not gpu_visible():
        raise BackendMissingError(
            f"{info.label} runs engines only where a GPU is.",
            found=f"no GPU is visible, for {what}",
            fix="run verify where the GPU is; without one, compare the ONNX model with the backend"
            " onnxruntime",
        )


def _reduced_by(info: BackendInfo, *, tf32: bool) -> str:
    """Why an engine computes float32 with fewer digits, or ""."""
    if info.name == "tensorrt-rtx":
        return f"{info.label} decides on TF32 by itself"
    return "the engine was built with TF32" if tf32 else ""
