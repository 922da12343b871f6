"""Asking a runtime about an engine, in the process that ``process`` starts."""

from __future__ import annotations

import importlib
from typing import Any

from rmsnorm_export.tensorrt.engine.out import Out

_TEXTS = 50
"""Messages that are passed on, the last ones."""


def validate(request: dict[str, Any], out: Out) -> None:
    """Ask the runtime about an engine, as far as it answers without loading it or with it."""
    trt: Any = importlib.import_module(request["module"])
    out.say("version", version=str(trt.__version__), polygraphy="")
    texts: list[str] = []

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            if severity <= trt.ILogger.Severity.INFO:
                texts.append(text)

    logger = Logger()
    library = request["plugin"]
    if library:
        trt.get_plugin_registry().load_library(library)
    with open(request["engine"], "rb") as file:
        data = file.read()
    runtime = trt.Runtime(logger)
    validity, reasons = "", 0
    if hasattr(runtime, "get_engine_validity"):
        answer, bits = runtime.get_engine_validity(data)
        validity, reasons = str(answer).rpartition(".")[2], int(bits)
    loaded = None
    if request["load"]:
        loaded = runtime.deserialize_cuda_engine(data) is not None
    out.say("validity", validity=validity, reasons=reasons, loaded=loaded, texts=texts[-_TEXTS:])
