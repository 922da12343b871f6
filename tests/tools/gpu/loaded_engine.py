"""An engine of TensorRT or TensorRT-RTX run on tensors of PyTorch, timed by CUDA events.

Not run yet: it needs a GPU.
"""

from __future__ import annotations

import importlib
import statistics
from pathlib import Path
from typing import Any

import torch

from tests.tools.gpu.part import SkippedError
from tests.tools.gpu.trial import Buffers


class Engine:
    """A loaded engine.

    Args:
        path: of the engine.
        module: ``tensorrt`` or ``tensorrt_rtx``.
        plugin: library to load first, or None.

    Raises:
        SkippedError: the runtime does not load it.
    """

    def __init__(self, path: Path, module: str, plugin: Path | None = None) -> None:
        self._trt: Any = importlib.import_module(module)
        self._log = self._trt.Logger(self._trt.Logger.WARNING)
        if plugin is not None:
            self._trt.get_plugin_registry().load_library(str(plugin))
        self._runtime = self._trt.Runtime(self._log)
        self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self._engine is None:
            raise SkippedError(
                f"{module} {self._trt.__version__} does not load {path.name}",
                "see what it logged above; rmsnorm-export check says whether it fits this machine",
            )

    def on(self, buffers: Buffers) -> EngineRun:
        """One run of it on ``buffers``."""
        return EngineRun(self._trt, self._engine, buffers)


class EngineRun:
    """One execution context with its addresses set; called, it runs once and waits.

    Raises:
        RuntimeError: the engine does not take the shapes or types of the buffers.
    """

    def __init__(self, trt: Any, engine: Any, buffers: Buffers) -> None:
        self._stream = torch.cuda.Stream()
        self._context = _context(trt, engine)
        tensors = buffers.inputs | buffers.outputs
        for name, tensor in buffers.inputs.items():
            if not self._context.set_input_shape(name, tuple(tensor.shape)):
                raise RuntimeError(f"{name}: the engine does not take {tuple(tensor.shape)}")
        kinds = {torch.int64: trt.DataType.INT64, torch.float16: trt.DataType.HALF}
        for number in range(engine.num_io_tensors):
            name = engine.get_tensor_name(number)
            tensor, kind = tensors[name], engine.get_tensor_dtype(name)
            if kind != kinds[tensor.dtype]:
                raise RuntimeError(f"{name}: the engine has {kind}, the model {tensor.dtype}")
            self._context.set_tensor_address(name, tensor.data_ptr())

    def __call__(self) -> None:
        self._enqueue()
        self._stream.synchronize()

    def _enqueue(self) -> None:
        if not self._context.execute_async_v3(self._stream.cuda_stream):
            raise RuntimeError("the engine did not run: see what its runtime logged")

    def device_ms(self, rounds: int = 21) -> float:
        """Median time on the device between two events around a run, in milliseconds."""
        samples = []
        for _ in range(rounds):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record(self._stream)
            self._enqueue()
            end.record(self._stream)
            end.synchronize()
            samples.append(float(start.elapsed_time(end)))
        return statistics.median(samples)


def _context(trt: Any, engine: Any) -> Any:
    """An execution context that has its best kernels from the first run on."""
    if not hasattr(trt, "DynamicShapesKernelSpecializationStrategy"):
        return engine.create_execution_context()
    # TensorRT-RTX otherwise compiles kernels for a new shape in the background, and runs slower
    # ones until they are there: the first rounds would be of those.
    config = engine.create_runtime_config()
    eager = trt.DynamicShapesKernelSpecializationStrategy.EAGER
    config.dynamic_shapes_kernel_specialization_strategy = eager
    return engine.create_execution_context(config)
