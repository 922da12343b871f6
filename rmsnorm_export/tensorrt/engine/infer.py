"""Running an engine through Polygraphy, in the process that ``process`` starts.

Arrays go through files of raw bytes: NumPy, and so Polygraphy, has no bfloat16.
"""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np

from rmsnorm_export.tensorrt.engine.out import Out

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


def describe(request: dict[str, Any], out: Out, trt: Any, pg: Any) -> None:
    """Say what the inputs of an engine are: an event ``input`` for each, ranges by profile."""
    engine = _load(request, out, pg)()
    for name in (engine.get_tensor_name(i) for i in range(engine.num_io_tensors)):
        if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
            profiles = range(engine.num_optimization_profiles)
            ranges = [engine.get_tensor_profile_shape(name, profile) for profile in profiles]
            out.say(
                "input",
                name=name,
                dtype=_type(engine, name)[0],
                ranges=[[list(shape) for shape in three] for three in ranges],
            )
    out.say("done")


def infer(request: dict[str, Any], out: Out, trt: Any, pg: Any) -> None:
    """Run an engine once: an event ``output`` for each array, whose bytes are in a file."""
    del trt
    raw = importlib.import_module("polygraphy.common").FormattedArray
    feeds = {
        item["name"]: raw(np.fromfile(item["file"], np.uint8), tuple(item["shape"]))
        for item in request["inputs"]
    }
    runner = pg.TrtRunner(_load(request, out, pg), optimization_profile=request["profile"])
    with runner:
        out.say("stage", stage="run")
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
            out.say("output", name=name, dtype=dtype, shape=shape, file=str(file))
    out.say("done")


def _load(request: dict[str, Any], out: Out, pg: Any) -> Any:
    out.say("stage", stage="load")
    return pg.EngineFromBytes(Path(request["engine"]).read_bytes())


def _type(engine: Any, name: str) -> tuple[str, int]:
    """Name of the type of a tensor, and the bytes of an element."""
    said = str(engine.get_tensor_dtype(name)).rpartition(".")[2]
    if said not in TYPES:
        raise ValueError(f"tensor {name} is of type {said}, which cannot be compared")
    return TYPES[said]
