"""A model in ONNX Runtime, on the CPU or in CUDA."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

from rmsnorm_export.compare.backend import Answer, Chosen, RunModel
from rmsnorm_export.compare.onnx_backend import OnnxBackend
from rmsnorm_export.errors import BackendMissingError, VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.session import (
    CUDA_PROVIDER,
    Device,
    onnxruntime,
    open_session,
    run_session,
    runtime_name,
)
from rmsnorm_export.tensorrt.engine.backends import gpu_visible


class OnnxRuntime(OnnxBackend):
    """A model that ONNX Runtime runs on the CPU."""

    __slots__ = ()
    name = "onnxruntime"
    optimization = "ONNX Runtime's graph optimization"
    device: ClassVar[Device] = "cpu"

    @classmethod
    def require(cls, chosen: Chosen) -> None:
        del chosen
        onnxruntime()

    @property
    def runtime(self) -> str:
        return runtime_name(self.device)

    def plain(self) -> OnnxRuntime | None:
        return dataclasses.replace(self, optimized=False) if self.optimized else None

    def load(self, content: bytes | str, names: Sequence[str] | None = None) -> RunModel:
        folder = self.source.folder if isinstance(content, bytes) else None
        try:
            session = open_session(
                content, optimize=self.optimized, external_folder=folder, device=self.device
            )
        except VerificationError as error:
            error.what = f"ONNX Runtime does not load the model: {self.source.description}"
            raise

        def run(feeds: Mapping[str, Array]) -> Answer:
            outputs = run_session(session, feeds, names)
            return Answer(tuple(outputs), tuple(outputs.values()))

        return run


class OnnxRuntimeCuda(OnnxRuntime):
    """A model that ONNX Runtime runs in CUDA, with TF32 where it is optimized."""

    __slots__ = ()
    name = "onnxruntime-cuda"
    optimization = "ONNX Runtime's graph optimization (and TF32)"
    device = "cuda"

    @classmethod
    def require(cls, chosen: Chosen) -> None:
        del chosen
        providers = onnxruntime().get_available_providers()
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

    @property
    def reduced(self) -> str:
        return "TF32 products on CUDA" if self.optimized else ""
