"""A backend at work, through Polygraphy, in the process that ``run_backend`` starts.

Python objects of the backend are untyped, so they are ``Any`` in that process and nowhere else.
"""

from __future__ import annotations

import glob
import importlib
import os
import sys
from typing import Any

from rmsnorm_export.system.libraries import loadable
from rmsnorm_export.tensorrt.engine.norms import is_layer_log

Request = dict[str, Any]


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
    for inputs in request["profiles"]:
        profile = pg.Profile()
        for one in inputs:  # Polygraphy takes names for patterns
            profile.add(glob.escape(one["name"]), min=one["min"], opt=one["opt"], max=one["max"])
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
