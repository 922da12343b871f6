"""Using an engine that is there, in the process that ``run_backend`` starts: is it good here, what
are its inputs, what does it answer.

Arrays go through files of raw bytes: NumPy, and so Polygraphy, has no bfloat16.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from rmsnorm_export.system.process import Request, Say
from rmsnorm_export.system.reading import LARGEST_ENGINE, read_file

# TensorRT's names of types -> (name, bytes of an element)
TYPES = {
    "FLOAT": ("float32", 4),
    "HALF": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "INT8": ("int8", 1),
    "UINT8": ("uint8", 1),
    "INT32": ("int32", 4),
    "INT64": ("int64", 8),
    "BOOL": ("bool", 1),
}

_WARM_UP = 10
"""Runs that are not counted."""

_LAST_MESSAGES = 50
"""Messages of the runtime that are passed on."""


def validate(request: Request, say: Say) -> None:
    """Ask the runtime about an engine, as far as it answers without loading it or with it."""
    trt: Any = importlib.import_module(request["module"])
    say("version", version=str(trt.__version__), polygraphy="")
    texts: list[str] = []

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            if severity <= trt.ILogger.Severity.INFO:
                texts.append(text)

    logger = Logger()
    if request["plugin"]:
        trt.get_plugin_registry().load_library(request["plugin"])
    data = read_file(request["engine"], LARGEST_ENGINE)
    runtime = trt.Runtime(logger)
    validity, reasons = "", 0
    if hasattr(runtime, "get_engine_validity"):
        answer, bits = runtime.get_engine_validity(data)
        validity, reasons = str(answer).rpartition(".")[2], int(bits)
    loaded = None
    if request["load"]:
        loaded = runtime.deserialize_cuda_engine(data) is not None
    say(
        "validity", validity=validity, reasons=reasons, loaded=loaded, texts=texts[-_LAST_MESSAGES:]
    )


def describe_inputs(request: Request, say: Say, trt: Any, pg: Any) -> None:
    """Say what the inputs of an engine are: an event ``input`` for each, ranges by profile."""
    engine = _load(request, say, pg)()
    for name in (engine.get_tensor_name(i) for i in range(engine.num_io_tensors)):
        if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
            profiles = range(engine.num_optimization_profiles)
            ranges = [engine.get_tensor_profile_shape(name, profile) for profile in profiles]
            say(
                "input",
                name=name,
                dtype=_type(engine, name)[0],
                ranges=[[list(shape) for shape in three] for three in ranges],
            )
    say("done")


def infer(request: Request, say: Say, trt: Any, pg: Any) -> None:
    """Run an engine once: an event ``output`` for each array, whose bytes are in a file."""
    del trt
    feeds, runner = _feeds(request), _runner(request, say, pg)
    with runner:
        say("stage", stage="run")
        # The caller has checked the inputs; Polygraphy could not check raw bytes.
        answers = runner.infer(feeds, check_inputs=False, return_raw_buffers=True)
        for number, (name, answer) in enumerate(answers.items()):
            dtype, size = _type(runner.engine, name)
            shape = [int(length) for length in answer.shape]
            data = np.ascontiguousarray(answer.array).view(np.uint8).reshape(-1)
            if data.nbytes != math.prod(shape) * size:
                raise ValueError(f"output {name}: {data.nbytes} bytes for {dtype} {shape}")
            file = Path(request["folder"]) / f"output{number}.bin"
            data.tofile(file)
            say("output", name=name, dtype=dtype, shape=shape, file=str(file))
    say("done")


def measure(request: Request, say: Say, trt: Any, pg: Any) -> None:
    """Run an engine over and over: an event ``times`` with the seconds of each run.

    Inputs and outputs stay on the GPU, and an output that is bound to an input's buffer is written
    there. A run is from its launch until the GPU is done, on the clock of the host.
    """
    del trt
    cuda: Any = importlib.import_module("polygraphy.cuda")
    raw = importlib.import_module("polygraphy.common").FormattedArray
    runner, times = _runner(request, say, pg), list[float]()
    with contextlib.ExitStack() as stack:
        stack.enter_context(runner)
        feeds = _feeds(request)
        for name, one in feeds.items():
            if not runner.engine.is_shape_inference_io(name):
                buffer = stack.enter_context(cuda.DeviceArray.raw((one.array.nbytes,)))
                feeds[name] = raw(buffer.copy_from(one.array), one.shape)
        say("stage", stage="run")
        end = math.inf
        while len(times) < request["least"] or time.monotonic() < end:
            runner.infer(
                feeds, check_inputs=False, copy_outputs_to_host=False, return_raw_buffers=True
            )
            times.append(runner.last_inference_time())
            if len(times) == _WARM_UP and end == math.inf:
                times, end = [], time.monotonic() + request["seconds"]
    say("times", seconds=times)
    say("done")


def _feeds(request: Request) -> dict[str, Any]:
    raw = importlib.import_module("polygraphy.common").FormattedArray
    return {
        item["name"]: raw(np.fromfile(item["file"], np.uint8), tuple(item["shape"]))
        for item in request["inputs"]
    }


def _runner(request: Request, say: Say, pg: Any) -> Any:
    return pg.TrtRunner(_load(request, say, pg), optimization_profile=request["profile"])


def _load(request: Request, say: Say, pg: Any) -> Any:
    say("stage", stage="load")
    return pg.EngineFromBytes(read_file(request["engine"], LARGEST_ENGINE))


def _type(engine: Any, name: str) -> tuple[str, int]:
    """Name of the type of a tensor, and the bytes of an element."""
    dtype = str(engine.get_tensor_dtype(name)).rpartition(".")[2]
    if dtype not in TYPES:
        raise ValueError(f"tensor {name} is of type {dtype}, which cannot be compared")
    return TYPES[dtype]
