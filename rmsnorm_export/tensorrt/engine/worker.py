"""A backend at work, through Polygraphy, in the process that ``run_backend`` starts.

Python objects of the backend are untyped, so they are ``Any`` in that process and nowhere else.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from rmsnorm_export.system.libraries import loadable
from rmsnorm_export.system.reading import LARGEST_ENGINE, read_file
from rmsnorm_export.tensorrt.engine.norms import is_layer_log

Request = dict[str, Any]

_OUR_NAMES = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16"}
"""TensorRT's names of types that are not ours in capitals."""

_WARM_UP = 10
"""Runs that are not counted."""


def _logger(trt: Any) -> Any:
    """Return a logger that prints errors, and keeps warnings and the list of layers."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.layers = ""
            self.warnings: list[str] = []

        def log(self, severity: Any, text: str) -> None:
            if is_layer_log(text):
                self.layers = text
            elif severity < trt.ILogger.Severity.WARNING:
                print(f"error: {text}", file=sys.stderr, flush=True)
            elif severity == trt.ILogger.Severity.WARNING:
                self.warnings.append(text)

    return Logger()


def _start(request: Request) -> tuple[Any, Any, Any]:
    """Import the backend and Polygraphy's module for it, make a logger, and load the plugin."""
    trt = importlib.import_module(request["module"])
    importlib.import_module("polygraphy.logger").G_LOGGER.module_severity = 50  # errors
    logger = _logger(trt)
    plugin = request["plugin"]
    if plugin and not trt.get_plugin_registry().load_library(loadable(plugin)):
        raise ValueError(f"load_library does not take {plugin}")
    return trt, importlib.import_module("polygraphy.backend.trt"), logger


def build(request: Request) -> dict[str, Any]:
    """Build an engine; ``refused`` are the nodes that the parser does not take."""
    trt, pg, logger = _start(request)
    builder = trt.Builder(logger)
    # From TensorRT 11 on, and in TensorRT-RTX, every network is strongly typed.
    typed = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if typed is None else 1 << int(typed))
    # Polygraphy's NetworkFromOnnxPath does not say which node was refused.
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(request["model"]):
        return {"refused": [_refusal(parser.get_error(i)) for i in range(parser.num_errors)]}
    config = _config(request, trt, pg)(builder, network)
    engine = pg.engine_bytes_from_network((builder, network, parser), config=config)
    with open(request["engine"], "wb") as file:
        file.write(memoryview(engine))
        file.flush()
        os.fsync(file.fileno())
    inspected = _inspect(trt, logger, engine) if request["inspect"] else ""
    return {
        "version": str(trt.__version__),
        "warnings": logger.warnings,
        "layers": logger.layers,
        "inspected": inspected,
    }


def _refusal(error: Any) -> dict[str, str]:
    stack = getattr(error, "local_function_stack", list)
    return {
        "code": str(error.code()).rpartition(".")[2],
        "text": error.desc(),
        "node": error.node_name(),
        "op": error.node_operator(),
        "function": error.func(),  # of the parser, which names no node in some
        "inside": ", ".join(map(str, stack())),
    }


def _config(request: Request, trt: Any, pg: Any) -> Any:
    """Return Polygraphy's maker of a builder configuration."""
    profiles = []
    for least, usual, most in request["profiles"]:
        profile = pg.Profile()
        for name in least:  # Polygraphy takes names for patterns
            profile.add(glob.escape(name), min=least[name], opt=usual[name], max=most[name])
        profiles.append(profile)
    options: dict[str, Any] = {
        "profiles": profiles,
        "profiling_verbosity": trt.ProfilingVerbosity.DETAILED,  # else no layer names its nodes
    }
    if request["memory_limit"] is not None:
        size = int(request["memory_limit"] * 2**30)
        options["memory_pool_limits"] = {trt.MemoryPoolType.WORKSPACE: size}
    if request["module"] == "tensorrt_rtx":
        rtx = importlib.import_module("polygraphy.backend.tensorrt_rtx")
        return rtx.CreateConfigRTX(**options)
    if request["hardware_compatible"]:
        options["hardware_compatibility_level"] = trt.HardwareCompatibilityLevel.AMPERE_PLUS
    return pg.CreateConfig(tf32=request["tf32"], **options)


def _inspect(trt: Any, logger: Any, engine: Any) -> str:
    """Return the engine inspector's JSON; "" where the engine cannot be loaded."""
    loaded = trt.Runtime(logger).deserialize_cuda_engine(engine)
    if loaded is None:
        return ""
    inspector = loaded.create_engine_inspector()
    return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))


def infer(request: Request) -> dict[str, Any]:
    """Run an engine once; arrays are files of raw bytes, for NumPy has no bfloat16."""
    outputs = []
    with _runner(request) as runner:
        # The caller has checked the inputs; Polygraphy could not check raw bytes.
        answers = runner.infer(_feeds(request), check_inputs=False, return_raw_buffers=True)
        for number, (name, answer) in enumerate(answers.items()):
            dtype, size = _type(runner.engine, name)
            shape = [int(length) for length in answer.shape]
            data = np.ascontiguousarray(answer.array).view(np.uint8).reshape(-1)
            if data.nbytes != math.prod(shape) * size:
                raise ValueError(f"output {name}: {data.nbytes} bytes for {dtype} {shape}")
            file = Path(request["folder"]) / f"output{number}.bin"
            data.tofile(file)
            outputs.append({"name": name, "dtype": dtype, "shape": shape, "file": str(file)})
    return {"outputs": outputs}


def measure(request: Request) -> dict[str, Any]:
    """Run an engine over and over, and return the seconds of each run.

    Inputs and outputs stay on the GPU, and an output that is bound to an input's buffer is written
    there. A run is from its launch until the GPU is done, on the clock of the host.
    """
    cuda: Any = importlib.import_module("polygraphy.cuda")
    raw = importlib.import_module("polygraphy.common").FormattedArray
    times, end = list[float](), math.inf
    with contextlib.ExitStack() as stack:
        runner, feeds = stack.enter_context(_runner(request)), _feeds(request)
        for name, one in feeds.items():
            if not runner.engine.is_shape_inference_io(name):
                buffer = stack.enter_context(cuda.DeviceArray.raw((one.array.nbytes,)))
                feeds[name] = raw(buffer.copy_from(one.array), one.shape)
        while len(times) < request["least"] or time.monotonic() < end:
            runner.infer(
                feeds, check_inputs=False, copy_outputs_to_host=False, return_raw_buffers=True
            )
            times.append(runner.last_inference_time())
            if len(times) == _WARM_UP and end == math.inf:
                times, end = [], time.monotonic() + request["seconds"]
    return {"times": times}


def _feeds(request: Request) -> dict[str, Any]:
    raw = importlib.import_module("polygraphy.common").FormattedArray
    return {
        item["name"]: raw(np.fromfile(item["file"], np.uint8), tuple(item["shape"]))
        for item in request["inputs"]
    }


def _runner(request: Request) -> Any:
    trt, pg, logger = _start(request)
    content = read_file(request["engine"], LARGEST_ENGINE)
    engine = pg.engine_from_bytes(content, runtime=trt.Runtime(logger))
    return pg.TrtRunner(engine, optimization_profile=request["profile"])


def _type(engine: Any, name: str) -> tuple[str, int]:
    """Return the name of a tensor's type, and the bytes of an element."""
    dtype = engine.get_tensor_dtype(name)
    own = str(dtype).rpartition(".")[2]
    return _OUR_NAMES.get(own, own.lower()), int(dtype.itemsize)
