"""ONNX models in ONNX Runtime: on the CPU or in CUDA, with or without kernels of this package."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx

from rmsnorm_export.compare.backend import Answer, Backend, RunModel, Searchable
from rmsnorm_export.errors import BackendMissingError, VerificationError
from rmsnorm_export.graph.load import LoadedModel, load_model
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.inputs import Limits, graph_inputs, in_types_of, index_limits
from rmsnorm_export.runtime.session import (
    Device,
    onnxruntime,
    open_session,
    run_session,
    runtime_name,
)
from rmsnorm_export.runtime.sizes import Declared
from rmsnorm_export.runtime.support import CUDA
from rmsnorm_export.system.packages import pip_install
from rmsnorm_export.tensorrt.engine.backends import gpu_visible
from rmsnorm_export.tensorrt.plugin.libraries import onnxruntime_library

_NATIVE, _CUDA = "-native", "-cuda"
"""In the name of the backend."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class OnnxRuntime(Backend):
    """A model that ONNX Runtime runs.

    A runtime of ONNX models that runs them in memory overrides ``load`` and ``runtime``.

    Attributes:
        source: the model; the runtime gets what was given, not what was put right.
        name: as for ``Backend``.
        optimized: with ONNX Runtime's own graph optimization.
    """

    source: LoadedModel
    name: str = "onnxruntime"
    optimized: bool = False

    @classmethod
    def require(cls, name: str) -> None:
        providers = onnxruntime().get_available_providers()
        if _NATIVE in name:
            onnxruntime_library(cuda=_CUDA in name)
        if _CUDA in name and not (CUDA in providers and gpu_visible()):
            found = f"{', '.join(providers)}; {'a' if gpu_visible() else 'no'} GPU is visible"
            fix = f"where a GPU is: pip uninstall onnxruntime, then {pip_install('[ort-gpu]')}"
            raise BackendMissingError("ONNX Runtime cannot run in CUDA here.", found=found, fix=fix)

    @classmethod
    def open(cls, model: Any, name: str, *, optimize: bool, **_: Any) -> Backend:
        return cls(load_model(model), name, optimize)

    @property
    def _device(self) -> Device:
        return "cuda" if _CUDA in self.name else "cpu"

    @property
    def runtime(self) -> str:
        kernels = " with the kernels of rmsnorm-export" if _NATIVE in self.name else ""
        return runtime_name(self._device) + kernels

    def declared(self) -> Mapping[str, Declared]:
        return graph_inputs(self.source.model)

    def limits(self) -> Limits:
        return index_limits(self.source.model)

    def load(self, content: bytes, names: Sequence[str] | None = None) -> RunModel:
        """Make the model, or a copy of it, ready to run.

        Args:
            content: serialised model, whose external data lies in ``source.folder``.
            names: of the outputs to compute; None: every one.

        Raises:
            VerificationError, BackendMissingError: the runtime does not load it.
        """
        native = _NATIVE in self.name
        try:
            session = open_session(
                content,
                optimize=self.optimized,
                external_folder=self.source.folder,
                device=self._device,
                kernels=onnxruntime_library(cuda=_CUDA in self.name) if native else None,
            )
        except VerificationError as error:
            error.what = f"ONNX Runtime does not load the model: {self.source.description}"
            raise

        declared = self.declared()

        def run(feeds: Mapping[str, Array]) -> Answer:
            return Answer(run_session(session, in_types_of(declared, feeds), names))

        return run

    @contextlib.contextmanager
    def running(self) -> Iterator[RunModel]:
        yield self.load(self.source.to_bytes())

    @contextlib.contextmanager
    def searched(self, feeds: Mapping[str, Array]) -> Iterator[Searchable]:
        """Load a copy for each set of values, which are outputs of it; nothing is optimized."""
        plain = dataclasses.replace(self, optimized=False)
        proto = onnx.ModelProto.FromString(self.source.to_bytes())

        def read(names: Sequence[str]) -> Mapping[str, Array]:
            return plain.load(_marked_bytes(proto, names), names)(feeds).outputs

        yield self.source.model, read


def _marked_bytes(proto: onnx.ModelProto, names: Sequence[str]) -> bytes:
    """Return the serialised model with these values as outputs, after its own.

    The model is as before when this returns: a copy of it would hold its weights twice.
    """
    outputs = proto.graph.output
    before = len(outputs)
    own = {output.name for output in outputs}
    outputs.extend(onnx.ValueInfoProto(name=name) for name in names if name not in own)
    try:
        return proto.SerializeToString()
    finally:
        del outputs[before:]
