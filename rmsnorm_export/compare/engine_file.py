"""An engine in a file as one of the two models."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from rmsnorm_export.compare.running import Engine, numpy_type
from rmsnorm_export.compare.side import Answer, Backend
from rmsnorm_export.errors import BackendMissingError, InputError, UsageError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.printable import short
from rmsnorm_export.runtime.inputs import Declared
from rmsnorm_export.system.packages import is_installed
from rmsnorm_export.tensorrt.engine.backends import BACKENDS, BackendInfo, gpu_visible
from rmsnorm_export.tensorrt.engine.check import check_engine
from rmsnorm_export.tensorrt.engine.plugins import library_or_none
from rmsnorm_export.tensorrt.engine.result import EngineProfile, EngineRecord, InputRange


def require(info: BackendInfo) -> None:
    """Before any work: the backend's packages are installed.

    Raises:
        BackendMissingError: naming the package that is not.
    """
    for module in (info.module, "polygraphy"):
        if not is_installed(module):
            raise BackendMissingError(
                f"{info.label} cannot run an engine: {module} is not installed.",
                found=f"no package {module}",
                fix=info.pip,
            )


def require_gpu(info: BackendInfo, what: str) -> None:
    """Before any work: a GPU is there.

    Raises:
        BackendMissingError: it is not.
    """
    if not gpu_visible():
        raise BackendMissingError(
            f"{info.label} runs engines only where a GPU is.",
            found=f"no GPU is visible, for {what}",
            fix="run verify where the GPU is; without one, compare the ONNX model with the backend"
            " onnxruntime",
        )


def open_engine(path: Path, asked: str) -> EngineSide:
    """An engine file, after every check that can be made before it is loaded.

    Args:
        path: of the file.
        asked: its backend, or ``auto``.

    Raises:
        InputError: it cannot be used here: another version, another GPU, no engine at all.
        BackendMissingError: the backend is not installed, or there is no GPU.
        UsageError: it is an engine of another backend than was asked for.
    """
    check = check_engine(path)
    shown = short(str(path), 300)
    if not check.backend and asked == "auto":
        raise InputError(
            "The engine is of no backend that is known.",
            found=f"{shown}: {'; '.join(check.notes)}",
            fix="give an engine of TensorRT or TensorRT-RTX, or say which with --backend-a,"
            " --backend-b",
        )
    info = BACKENDS[check.backend or asked]
    if asked not in ("auto", info.name):
        raise UsageError(
            f"The engine is not one of the backend {asked}.",
            found=f"{shown} is an engine of {info.name}",
            fix="leave the backend away: the file says which it is",
        )
    require(info)
    check.require()
    require_gpu(info, f"{shown}; nothing else stands against it ({'; '.join(check.notes)})")
    record = check.record
    needs_plugin = info.plugins and (
        record is None or bool(record.plugin.library and not record.plugin.embedded)
    )
    plugin = library_or_none() if needs_plugin else ""
    engine = Engine(path, info, plugin)
    profiles = _described(engine) if record is None else record.profiles
    return EngineSide(engine, record, check.installed, profiles, os.fspath(path))


def _described(engine: Engine) -> tuple[EngineProfile, ...]:
    """The ranges of an engine without a record, from the engine itself."""
    inputs = engine.describe()
    count = min((len(item["ranges"]) for item in inputs), default=0)
    return tuple(
        EngineProfile(
            tuple(
                InputRange(item["name"], item["dtype"], *map(tuple, item["ranges"][number]))
                for item in inputs
            )
        )
        for number in range(count)
    )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class EngineSide:
    """An engine that was built before.

    Attributes:
        engine: to run.
        record: what stands beside it; None without it.
        version: of the backend that is installed.
        profiles: ranges of its inputs, the first as usual.
        description: its path.
    """

    engine: Engine
    record: EngineRecord | None
    version: str
    profiles: tuple[EngineProfile, ...]
    description: str

    @property
    def backend(self) -> Backend:
        return self.engine.info.name

    @property
    def runtime(self) -> str:
        return f"{self.engine.info.label} {self.version}".strip()

    @property
    def optimized(self) -> bool:
        return False

    @property
    def reduced(self) -> str:
        if self.record is None:
            return "no record says that the engine was built without TF32 and fp16"
        return reduced_by(self.engine.info, tf32=self.record.flags.get("tf32") is not False)

    @property
    def graph(self) -> ir.Model | None:
        return None

    def declared(self) -> Mapping[str, Declared] | None:
        """Names, types and the sizes that every profile fixes."""
        found = {}
        for item in self.profiles[0].inputs if self.profiles else ():
            ranges = [
                one for profile in self.profiles for one in profile.inputs if one.name == item.name
            ]
            sizes = [
                {size for one in ranges for size in (one.min[axis], one.max[axis])}
                for axis in range(len(item.opt))
            ]
            shape = tuple(next(iter(size)) if len(size) == 1 else None for size in sizes)
            found[item.name] = Declared(item.name, numpy_type(item.dtype), shape)
        return found

    def shapes(self) -> Mapping[str, Sequence[int]]:
        """The usual shapes of the first profile."""
        return {item.name: item.opt for item in self.profiles[0].inputs} if self.profiles else {}

    def limits(self, declared: Mapping[str, Declared]) -> Mapping[str, int]:
        del declared
        return {}

    def example(self) -> Mapping[str, Array] | None:
        return None

    @contextlib.contextmanager
    def open(self) -> Iterator[EngineRunner]:
        yield EngineRunner(self)

    def plain(self) -> None:
        return None


class EngineRunner:
    """An engine, loaded for each run."""

    def __init__(self, side: EngineSide) -> None:
        self._side = side
        self.declared = side.declared()

    def run(self, feeds: Mapping[str, Array]) -> Answer:
        return self._side.engine.run(feeds, profile_for(self._side.profiles, feeds))


def profile_for(profiles: Sequence[EngineProfile], feeds: Mapping[str, Array]) -> int:
    """Number of the first profile that takes these shapes; 0 where none does."""
    for number, profile in enumerate(profiles):
        if all(
            item.name not in feeds
            or (
                feeds[item.name].ndim == len(item.min)
                and all(
                    low <= size <= high
                    for low, size, high in zip(
                        item.min, feeds[item.name].shape, item.max, strict=True
                    )
                )
            )
            for item in profile.inputs
        ):
            return number
    return 0


def reduced_by(info: BackendInfo, *, tf32: bool) -> str:
    """Why an engine computes float32 with fewer digits, or ""."""
    if info.name == "tensorrt-rtx":
        return f"{info.label} decides on TF32 by itself"
    return "the engine was built with TF32" if tf32 else ""
