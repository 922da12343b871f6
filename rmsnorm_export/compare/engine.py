"""TensorRT and TensorRT-RTX: an engine in a file, or one that is built from an ONNX model.

Engines run in a process of their own: arrays go there and come back as files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
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
    Error,
    InputError,
    UsageError,
    VerificationError,
)
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.printable import one_line, short
from rmsnorm_export.runtime.input_sizes import Declared
from rmsnorm_export.runtime.inputs import numpy_type
from rmsnorm_export.system.packages import is_installed, version_of
from rmsnorm_export.system.process import Ended
from rmsnorm_export.tensorrt.engine.backends import (
    BACKENDS,
    RTX,
    TENSORRT,
    BackendInfo,
    gpu_visible,
    run_backend,
)
from rmsnorm_export.tensorrt.engine.build import build_engine
from rmsnorm_export.tensorrt.engine.check import check_engine
from rmsnorm_export.tensorrt.engine.failure import cause, last_errors
from rmsnorm_export.tensorrt.engine.plugins import library_or_none
from rmsnorm_export.tensorrt.engine.result import EngineProfile, EngineRecord, InputRange

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
        with self._fed(feeds) as (folder, inputs):
            ended = self._ask("infer", inputs=inputs, folder=str(folder), profile=profile)
            outputs = ended.all("output")
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
            ended = self._ask(
                "measure", inputs=inputs, profile=profile, least=least, seconds=seconds
            )
        return [float(one) for one in (ended.first("times") or {})["seconds"]]

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


class TensorRT(OnnxBackend):
    """An ONNX model as the engine that TensorRT builds from it; ``open`` takes an engine, too."""

    __slots__ = ()
    name = "tensorrt"
    takes = frozenset({"onnx", "engine"})
    info: ClassVar[BackendInfo] = TENSORRT

    @classmethod
    def require(cls, chosen: Chosen) -> None:
        if chosen.kind != "engine":  # a file has checks of its own, which say more
            _require_packages(cls.info)
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
            content = self.source.content()
            yield lambda feeds: self._build(content, path, feeds).run(feeds)

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
        made = build_engine(model, path, backend=self.info.name, shapes=shapes, force=True)
        return Engine(path, self.info, library_or_none() if made.record.plugin.library else "")


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
        check = check_engine(path)
        shown = short(str(path), 300)
        if not check.backend and choice == "auto":
            raise InputError(
                "The engine is of no backend that is known.",
                found=f"{shown}: {'; '.join(check.notes)}",
                fix="give an engine of TensorRT or TensorRT-RTX, or say which with --backend-a,"
                " --backend-b",
            )
        info = BACKENDS[check.backend or choice]
        if choice not in ("auto", info.name):
            raise UsageError(
                f"The engine is not one of the backend {choice}.",
                found=f"{shown} is an engine of {info.name}",
                fix="leave the backend away: the file says which it is",
            )
        _require_packages(info)
        check.require()
        notes = "; ".join(check.notes)
        _require_gpu(info, f"{shown}; nothing else stands against it ({notes})")
        record = check.record
        needs_plugin = info.plugins and (
            record is None or bool(record.plugin.library and not record.plugin.embedded)
        )
        engine = Engine(path, info, library_or_none() if needs_plugin else "")
        profiles = engine.profiles() if record is None else record.profiles
        return cls(engine, record, check.installed, profiles)

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


def _require_packages(info: BackendInfo) -> None:
    for module in (info.module, "polygraphy"):
        if not is_installed(module):
            raise BackendMissingError(
                f"{info.label} cannot run an engine: {module} is not installed.",
                found=f"no package {module}",
                fix=info.pip,
            )


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
