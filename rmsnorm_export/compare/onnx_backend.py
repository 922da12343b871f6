"""ONNX models in ONNX Runtime, and what every backend of ONNX models has in common."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import onnx
import onnx_ir as ir

from rmsnorm_export.compare.backend import Answer, Backend, Chosen, ReadValues, RunModel
from rmsnorm_export.compare.flow import Flow
from rmsnorm_export.errors import BackendMissingError, VerificationError
from rmsnorm_export.graph.load import LoadedModel, load_model
from rmsnorm_export.graph.tensors import tensor_slots
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.inputs import type_name_of
from rmsnorm_export.runtime.session import (
    Device,
    onnxruntime,
    open_session,
    run_session,
    runtime_name,
)
from rmsnorm_export.runtime.support import CUDA
from rmsnorm_export.system.files import copy_contents, refusals_as
from rmsnorm_export.system.packages import pip_install
from rmsnorm_export.tensorrt.engine.backends import gpu_visible
from rmsnorm_export.tensorrt.plugin.libraries import onnxruntime_library


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class OnnxBackend(Backend):
    """A runtime that takes ONNX models; ``load`` is all that one has to add which runs in memory.

    Attributes:
        source: the model; the runtime gets what was given, not what was put right.
        optimized: as for ``Backend``.
    """

    source: LoadedModel
    optimized: bool = False

    closed = ""

    @classmethod
    def open(cls, chosen: Chosen) -> Backend:
        return cls(load_model(chosen.model), chosen.optimize and bool(cls.optimization))

    @property
    def graph(self) -> ir.Model:
        return self.source.model

    @property
    def weights_type(self) -> str:
        sizes: Counter[str] = Counter()
        for slot in tensor_slots(self.graph):
            dtype = ir.DataType(slot.tensor.dtype)
            if dtype.is_floating_point():
                sizes[type_name_of(dtype)] += math.prod(slot.tensor.shape.numpy())
        return sizes.most_common(1)[0][0] if sizes else ""

    def load(self, content: bytes, names: Sequence[str] | None = None) -> RunModel:
        """Make the model, or a copy of it, ready to run.

        Args:
            content: serialised model, whose external data lies in ``source.folder``.
            names: of the outputs that are wanted; None: every one.

        Raises:
            VerificationError, BackendMissingError: the runtime does not load it.
        """
        raise NotImplementedError

    @contextlib.contextmanager
    def running(self) -> Iterator[RunModel]:
        yield self.load(self.source.to_bytes())

    @contextlib.contextmanager
    def probing(self, feeds: Mapping[str, Array], flow: Flow) -> Iterator[ReadValues]:
        """A copy of the model for each set of values, which are outputs of it."""
        del flow
        proto = onnx.ModelProto.FromString(self.source.to_bytes())
        own = {name: feeds[name] for name in self.declared() or ()}

        def read_values(names: Sequence[str]) -> Mapping[str, Array]:
            return self.load(marked_bytes(proto, names), names)(own).by_name()

        yield read_values


class OnnxRuntime(OnnxBackend):
    """A model that ONNX Runtime runs on the CPU."""

    __slots__ = ()
    name = "onnxruntime"
    optimization = "ONNX Runtime's graph optimization"
    device: ClassVar[Device] = "cpu"

    @staticmethod
    def kernels() -> Path | None:
        """A library of custom operators that the model runs with."""
        return None

    @classmethod
    def require(cls, chosen: Chosen) -> None:
        del chosen
        onnxruntime()

    @property
    def runtime(self) -> str:
        return runtime_name(self.device)

    def plain(self) -> OnnxRuntime | None:
        return dataclasses.replace(self, optimized=False) if self.optimized else None

    def load(self, content: bytes, names: Sequence[str] | None = None) -> RunModel:
        try:
            session = open_session(
                content,
                optimize=self.optimized,
                external_folder=self.source.folder,
                device=self.device,
                kernels=self.kernels(),
            )
        except VerificationError as error:
            error.what = f"ONNX Runtime does not load the model: {self.source.description}"
            raise

        def run(feeds: Mapping[str, Array]) -> Answer:
            outputs = run_session(session, feeds, names)
            return Answer(tuple(outputs), tuple(outputs.values()))

        return run


class OnnxRuntimeNative(OnnxRuntime):
    """A model that ONNX Runtime runs on the CPU, norms by the kernels of this package."""

    __slots__ = ()
    name = "onnxruntime-native"

    @staticmethod
    def kernels() -> Path:
        return onnxruntime_library()

    @classmethod
    def require(cls, chosen: Chosen) -> None:
        super().require(chosen)
        cls.kernels()

    @property
    def runtime(self) -> str:
        return f"{runtime_name()} with the kernels of rmsnorm-export"


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
        if CUDA not in providers:
            raise BackendMissingError(
                "The installed ONNX Runtime has no CUDA provider.",
                found=f"{runtime_name()}: {', '.join(providers)}",
                fix=f"pip uninstall onnxruntime, then {pip_install('[ort-gpu]')}",
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


class OnnxRuntimeNativeCuda(OnnxRuntimeNative, OnnxRuntimeCuda):
    """A model that ONNX Runtime runs in CUDA, norms by the CUDA kernels of this package."""

    __slots__ = ()
    name = "onnxruntime-native-cuda"

    @staticmethod
    def kernels() -> Path:
        return onnxruntime_library(cuda=True)


def marked_bytes(
    proto: onnx.ModelProto, names: Sequence[str], types: Mapping[str, int] | None = None
) -> bytes:
    """The serialised model with these values as outputs, after its own.

    The model is as before when this returns: a copy of it would hold its weights twice.

    Args:
        proto: the model.
        names: of values that nodes of the main graph compute.
        types: their ONNX element types; without them the runtime infers them.
    """
    outputs = proto.graph.output
    before = len(outputs)
    own = {output.name for output in outputs}
    for name in names:
        if name not in own:
            output = outputs.add(name=name)
            if types is not None:
                output.type.tensor_type.elem_type = types[name]
    try:
        return proto.SerializeToString()
    finally:
        del outputs[before:]


def copy_external(model: ir.Model, source: str | None, target: Path) -> None:
    """Put the external data of a model into another folder, under the same locations.

    Raises:
        InputError: it cannot be read, or there is no room.
    """
    locations = {
        os.fspath(value.const_value.location)
        for graph in (model.graph, *model.graph.subgraphs())
        for value in graph.initializers.values()
        if isinstance(value.const_value, ir.ExternalTensor)
    }
    for location in sorted(locations):
        place = target / location
        if place.exists():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        with (
            refusals_as(
                "The external data cannot be copied for a marked model.",
                location,
                fix="free some space in the folder of temporary files, or switch bisection off",
            ),
            place.open("wb") as file,
        ):
            copy_contents(os.path.join(source or "", location), file.fileno())
