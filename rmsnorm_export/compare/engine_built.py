"""An ONNX model as one of the two, run as the engine that is built from it."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rmsnorm_export.compare.engine_file import reduced_by
from rmsnorm_export.compare.flow import Flow
from rmsnorm_export.compare.marked import copy_external, marked_bytes, read_proto
from rmsnorm_export.compare.onnx_side import OnnxSide
from rmsnorm_export.compare.running import Engine
from rmsnorm_export.compare.side import Answer, Backend
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.system.packages import version_of
from rmsnorm_export.tensorrt.engine.backends import BackendInfo
from rmsnorm_export.tensorrt.engine.build import build_engine
from rmsnorm_export.tensorrt.engine.plugins import library_or_none
from rmsnorm_export.tensorrt.engine.result import EngineResult


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class BuiltSide(OnnxSide):
    """An ONNX model that TensorRT or TensorRT-RTX runs.

    Attributes:
        info: the backend.
    """

    info: BackendInfo

    @property
    def backend(self) -> Backend:
        return self.info.name

    @property
    def runtime(self) -> str:
        return f"{self.info.label} {version_of(self.info.module)}".rstrip()

    @property
    def optimized(self) -> bool:
        return False

    @property
    def reduced(self) -> str:
        return reduced_by(self.info, tf32=False)  # build_engine leaves it off

    @contextlib.contextmanager
    def open(self) -> Iterator[BuiltRunner]:
        with tempfile.TemporaryDirectory(prefix="rmsnorm-verify-") as folder:
            yield BuiltRunner(self, Path(folder))

    def plain(self) -> None:
        return None


def build(model: bytes | str, path: Path, info: BackendInfo, feeds: Mapping[str, Array]) -> Engine:
    """An engine for exactly these shapes.

    Raises:
        Error: as ``build_engine``.
    """
    shapes = {name: tuple(array.shape) for name, array in feeds.items()}
    made: EngineResult = build_engine(model, path, backend=info.name, shapes=shapes, force=True)
    return Engine(path, info, library_or_none() if made.record.plugin.library else "")


class BuiltRunner:
    """A model that is built for the shapes of each run."""

    def __init__(self, side: BuiltSide, folder: Path) -> None:
        self._side, self._folder = side, folder
        self.declared = side.declared()

    def run(self, feeds: Mapping[str, Array]) -> Answer:
        target = self._folder / "model.engine"
        return build(self._side.source.content, target, self._side.info, feeds).run(feeds)


class BuiltProber:
    """An engine for each set of values, which are outputs of a copy of the model."""

    def __init__(
        self, side: BuiltSide, flow: Flow, feeds: Mapping[str, Array], folder: Path
    ) -> None:
        self._side, self._flow, self._folder = side, flow, folder
        declared = side.declared() or {}
        self._feeds = {name: array for name, array in feeds.items() if name in declared}
        self._proto = read_proto(side.source)
        copy_external(side.source.model, side.source.folder, folder)

    def engine(self, names: Sequence[str]) -> Engine:
        """The engine that has these values as outputs, those of an unknown type left out.

        Raises:
            Error: as ``build_engine``.
        """
        found = {name: self._flow.dtype(name) for name in names}
        types = {name: dtype for name, dtype in found.items() if dtype is not None}
        model = self._folder / "marked.onnx"
        model.write_bytes(marked_bytes(self._proto, tuple(types), types))
        return build(str(model), self._folder / "marked.engine", self._side.info, self._feeds)

    def values(self, names: Sequence[str]) -> Mapping[str, Array]:
        answer = self.engine(names).run(self._feeds)
        found = dict(zip(answer.names, answer.arrays, strict=True))
        return {name: found[name] for name in names if name in found}
