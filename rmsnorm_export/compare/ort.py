"""A model in ONNX Runtime, on the CPU or in CUDA."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rmsnorm_export.compare.marked import marked_bytes, read_proto
from rmsnorm_export.compare.onnx_side import OnnxSide
from rmsnorm_export.compare.side import Answer, Backend
from rmsnorm_export.errors import BackendMissingError, VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.inputs import Declared, declared_inputs
from rmsnorm_export.runtime.session import (
    CUDA_PROVIDER,
    Device,
    onnxruntime,
    open_session,
    run_session,
    runtime_name,
)
from rmsnorm_export.tensorrt.engine.backends import gpu_visible


def require(device: Device) -> None:
    """Before any work: ONNX Runtime is there, and a GPU where it needs one.

    Raises:
        BackendMissingError: naming what is not.
    """
    providers = onnxruntime().get_available_providers()
    if device == "cpu":
        return
    if CUDA_PROVIDER not in providers:
        raise BackendMissingError(
            "The installed ONNX Runtime has no CUDA provider.",
            found=f"{runtime_name()}: {', '.join(providers)}",
            fix='pip uninstall onnxruntime, then pip install "rmsnorm-export[ort-gpu]"',
        )
    if not gpu_visible():
        raise BackendMissingError(
            "ONNX Runtime's CUDA provider runs only where a GPU is.",
            found="no GPU is visible",
            fix="run verify where the GPU is, or compare with the backend onnxruntime",
        )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class OrtSide(OnnxSide):
    """A model that ONNX Runtime runs.

    Attributes:
        device: where.
        optimized: graph optimization, and TF32 on CUDA.
    """

    device: Device
    optimized: bool

    @property
    def backend(self) -> Backend:
        return "onnxruntime" if self.device == "cpu" else "onnxruntime-cuda"

    @property
    def runtime(self) -> str:
        return runtime_name(self.device)

    @property
    def reduced(self) -> str:
        return "TF32 products on CUDA" if self.device == "cuda" and self.optimized else ""

    @contextlib.contextmanager
    def open(self) -> Iterator[OrtRunner]:
        yield OrtRunner(self.session(self.source.content, self.source.external_folder))

    def plain(self) -> OrtSide | None:
        return dataclasses.replace(self, optimized=False) if self.optimized else None

    def session(self, content: bytes | str, folder: str | None) -> Any:
        """A session of this model, or of a copy of it.

        Raises:
            VerificationError, BackendMissingError: as ``open_session``.
        """
        try:
            return open_session(
                content, optimize=self.optimized, external_folder=folder, device=self.device
            )
        except VerificationError as error:
            error.what = f"{error.what}: {self.source.description}"
            raise


class OrtRunner:
    """A session."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.declared: Mapping[str, Declared] | None = declared_inputs(session)

    def run(self, feeds: Mapping[str, Array]) -> Answer:
        answers = run_session(self._session, feeds)
        return Answer(tuple(answers), tuple(answers.values()))


class OrtProber:
    """A session for each set of values, which are outputs of a copy of the model."""

    def __init__(self, side: OrtSide, feeds: Mapping[str, Array]) -> None:
        self._side, self._feeds = side, feeds
        self._proto = read_proto(side.source)

    def values(self, names: Sequence[str]) -> Mapping[str, Array]:
        content = marked_bytes(self._proto, names)
        session = self._side.session(content, self._side.source.folder)
        wanted = {argument.name for argument in session.get_inputs()}
        feeds = {name: array for name, array in self._feeds.items() if name in wanted}
        return run_session(session, feeds, names)
