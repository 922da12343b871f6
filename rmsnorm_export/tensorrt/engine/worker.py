"""What drives a backend through Polygraphy, in the process that ``run_backend`` starts.

Events: ``version``, ``stage``, ``message`` (a warning or an error of the backend), ``progress``,
``layers``, ``input``, ``output``, ``done``, and ``error`` with a ``kind``. Python objects of the
backend are untyped, so they are ``Any`` in that process and nowhere else.
"""

from __future__ import annotations

import glob
import importlib
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

from rmsnorm_export.errors import Error
from rmsnorm_export.printable import one_line
from rmsnorm_export.system.files import locked, write_whole
from rmsnorm_export.system.process import Request, Say
from rmsnorm_export.system.reading import LARGEST_LIBRARY, read_file
from rmsnorm_export.tensorrt.engine.layers import is_layer_log
from rmsnorm_export.tensorrt.engine.use import describe_inputs, infer, measure, validate

_VERBOSITY = {"detailed": "DETAILED", "names": "LAYER_NAMES_ONLY", "none": "NONE"}

TOTAL = 100
"""Progress is told in per cent."""


class StopError(Exception):
    """An error that the caller explains."""

    def __init__(self, kind: str, **details: object) -> None:
        super().__init__(kind)
        self.details = {"kind": kind} | details


def main(request: Request, say: Say) -> None:
    """Answer one request; what goes wrong is an event, too."""
    try:
        _COMMANDS[request["command"]](request, say)
    except StopError as stop:
        say("error", **stop.details)
    except OSError as error:
        say("error", kind="system", errno=error.errno or 0, text=error.strerror or str(error),
            file=str(error.filename or ""))  # fmt: skip
    except MemoryError as error:
        say("error", kind="memory", text=str(error))
    except ImportError as error:
        say("error", kind="import", text=str(error))
    except Exception as error:
        say("error", kind="failed", text=f"{type(error).__name__}: {error}")


def _logger(trt: Any, say: Say) -> Any:
    """A logger that passes on warnings and errors, and keeps the list of layers."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.stage = "parse"
            self.layers = ""
            self.muted = False

        def log(self, severity: Any, text: str) -> None:
            try:
                if is_layer_log(text):
                    self.layers = text
                elif not self.muted and severity <= trt.ILogger.Severity.WARNING:
                    bad = severity < trt.ILogger.Severity.WARNING
                    severity_name = "error" if bad else "warning"
                    say("message", severity=severity_name, stage=self.stage, text=text)
            except Exception:  # C++ cannot take an exception; the pipe may be gone
                os._exit(1)

    return Logger()


def _start(request: Request, say: Say) -> tuple[Any, Any, Any]:
    """The backend, Polygraphy's module for it, and the logger."""
    trt = importlib.import_module(request["module"])
    polygraphy = importlib.import_module("polygraphy")
    console: Any = importlib.import_module("polygraphy.logger").G_LOGGER
    console.module_severity = console.CRITICAL
    util = importlib.import_module("polygraphy.backend.trt.util")
    say("version", version=str(trt.__version__), polygraphy=str(polygraphy.__version__))
    logger = _logger(trt, say)
    vars(util)["TRT_LOGGER"] = logger  # what get_trt_logger() gives out, once it is set
    return trt, importlib.import_module("polygraphy.backend.trt"), logger


def _build(request: Request, say: Say) -> None:
    trt, pg, logger = _start(request, say)
    library = request["plugin"]
    if library:
        _load_plugin(trt, library)
    flags = trt.NetworkDefinitionCreationFlag
    # From TensorRT 11 on, and in TensorRT-RTX, every network is strongly typed.
    builder, network = pg.create_network(strongly_typed=hasattr(flags, "STRONGLY_TYPED") or None)
    parser = trt.OnnxParser(network, logger)
    say("stage", stage="parse")
    if not parser.parse_from_file(request["model"]):
        raise StopError(
            "parse", errors=[_parser_error(parser, i) for i in range(parser.num_errors)]
        )
    for i in range(network.num_inputs):
        if network.get_input(i).is_shape_tensor:
            raise StopError("shape-input", name=network.get_input(i).name)
    logger.stage = "build"
    say("stage", stage="build")
    with tempfile.TemporaryDirectory(prefix="rmsnorm-engine-") as folder:
        scratch = folder if request["timing_cache"] else ""
        config = _config(request, say, trt, pg, scratch)(builder, network)
    if request["embed_plugin"]:
        config.plugins_to_serialize = [library]
    try:
        engine = pg.engine_bytes_from_network((builder, network, parser), config=config)
    except Exception as error:  # Polygraphy's; the backend's own messages are out already
        raise StopError("build", text=str(error)) from error
    size = memoryview(engine).nbytes
    with open(request["engine"], "wb") as file:
        file.write(memoryview(engine))
        file.flush()
        os.fsync(file.fileno())
    say("stage", stage="inspect")
    inspected = _inspect(trt, logger, engine) if request["inspect"] else ""
    if inspected:
        say("layers", source="inspector", text=inspected)
    if logger.layers:
        say("layers", source="builder log", text=logger.layers)
    if request["timing_cache"]:
        say("timing-cache", text=timing_note(config, request["timing_cache"]))
    say("done", bytes=size)


def _load_plugin(trt: Any, library: str) -> None:
    try:
        handle = trt.get_plugin_registry().load_library(library)
    except Exception as error:
        raise StopError("plugin", text=str(error)) from error
    if handle is None:
        raise StopError("plugin", text="the registry's load_library returned nothing")


def _config(request: Request, say: Say, trt: Any, pg: Any, folder: str) -> Any:
    """Polygraphy's maker of a builder configuration; ``folder`` holds its copies of files."""
    profiles = []
    for given in request["profiles"]:
        profile = pg.Profile()
        for item in given:
            # Polygraphy takes names for patterns.
            profile.add(
                glob.escape(item["name"]), min=item["min"], opt=item["opt"], max=item["max"]
            )
        profiles.append(profile)
    asked = request["profiling_verbosity"]
    options: dict[str, Any] = {
        "profiles": profiles,
        "profiling_verbosity": getattr(trt.ProfilingVerbosity, _VERBOSITY[asked]),
        "builder_optimization_level": request["optimization_level"],
        "refittable": request["refit"],
        "strip_plan": request["strip_weights"],
        "progress_monitor": _monitor(trt, say),
    }
    if request["memory_limit"] is not None:
        pool = trt.MemoryPoolType.WORKSPACE
        options["memory_pool_limits"] = {pool: request["memory_limit"]}
    if request["module"] == "tensorrt_rtx":
        rtx = importlib.import_module("polygraphy.backend.tensorrt_rtx")
        return rtx.CreateConfigRTX(**options)
    if folder and os.path.exists(request["timing_cache"]):
        # A copy: beside the path that it is given, Polygraphy empties a file NAME.lock.
        options["load_timing_cache"] = shutil.copy(request["timing_cache"], folder)
    if request["hardware_compatible"]:
        options["hardware_compatibility_level"] = trt.HardwareCompatibilityLevel.AMPERE_PLUS
    if request["version_compatible"]:
        options["version_compatible"] = True
    return pg.CreateConfig(tf32=request["tf32"], **options)


def _parser_error(parser: Any, index: int) -> dict[str, object]:
    error = parser.get_error(index)
    stack = getattr(error, "local_function_stack", list)
    return {
        "code": str(error.code()).rpartition(".")[2],
        "text": error.desc(),
        "node": error.node_name(),
        "op": error.node_operator(),
        "inside": [str(call) for call in stack()],
    }


def _inspect(trt: Any, logger: Any, engine: Any) -> str:
    """The engine inspector's JSON; "" where the engine cannot be loaded."""
    logger.muted = True
    try:
        loaded = trt.Runtime(logger).deserialize_cuda_engine(engine)
        if loaded is None:
            return ""
        inspector = loaded.create_engine_inspector()
        return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))
    except Exception:
        return ""
    finally:
        logger.muted = False


class Phases:
    """The phases of a build that are under way, each with its parent, its steps and those done."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[str | None, int, int]] = {}
        self._best = 0

    def start(self, name: str, parent: str | None, steps: int) -> None:
        self._open[name] = (parent, max(steps, 1), 0)

    def step(self, name: str, step: int) -> None:
        """Step ``step`` of a phase, counted from 0, is over."""
        if name in self._open:
            parent, steps, done = self._open[name]
            self._open[name] = (parent, steps, min(max(done, step + 1), steps))

    def finish(self, name: str) -> None:
        self._open.pop(name, None)

    def done(self) -> int:
        """How much is over, in ``TOTAL`` steps; never less than said before.

        A phase inside another counts as a part of the step that the other is at.
        """
        best = max(map(self._fraction, self._open), default=0.0)
        self._best = max(self._best, min(TOTAL, int(best * TOTAL)))
        return self._best

    def _fraction(self, name: str) -> float:
        _, steps, done = self._open[name]
        fraction, seen = done / steps, {name}
        parent = self._open[name][0]
        while parent in self._open and parent not in seen:
            seen.add(parent)
            above, steps, done = self._open[parent]
            fraction = min(1.0, (done + fraction) / steps)
            parent = above
        return fraction


def _monitor(trt: Any, say: Say) -> Any:
    """An ``IProgressMonitor`` that tells ``say`` of every change worth showing.

    The builder calls it from several threads.
    """

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._phases = Phases()
            self._lock = threading.Lock()
            self._told = (-1, "")

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            with self._lock:
                self._phases.start(phase_name, parent_phase, num_steps)
                self._tell(phase_name)

        def phase_finish(self, phase_name: str) -> None:
            with self._lock:
                self._phases.finish(phase_name)

        def step_complete(self, phase_name: str, step: int) -> bool:
            with self._lock:
                self._phases.step(phase_name, step)
                self._tell(phase_name)
            return True

        def _tell(self, phase: str) -> None:
            now = (self._phases.done(), phase)
            if now[0] != self._told[0]:
                self._told = now
                say("progress", phase=phase, done=now[0], total=TOTAL)

    return Monitor()


def timing_note(config: Any, name: str) -> str:
    """What became of the timing cache; a file that cannot be extended does not cost the engine."""
    try:
        return save_timing_cache(config, name)
    except (OSError, Error) as error:
        return f"{Path(name).name} was not extended: {one_line(str(error), 300)}"


def save_timing_cache(config: Any, name: str) -> str:
    """Add what the ``IBuilderConfig`` of a build that is over measured to the file ``name``.

    Several builds may share one file: each takes the newest content under a lock, and puts the sum
    in its place with one rename. What the backend does not take for a cache is left as it is.

    Returns:
        What was done, for the notes.
    """
    path = Path(name)
    cache = config.get_timing_cache()
    if cache is None:
        return "the backend has no timing cache to keep"
    with locked(path.parent / f".{path.name}.lock"):
        try:
            before = read_file(path, LARGEST_LIBRARY)
        except FileNotFoundError:
            before = b""
        if before and not _absorb(config, cache, before):
            return f"{path.name} is no timing cache of this backend and GPU: left as it is"
        data = bytes(cache.serialize())
        if data == before:
            return f"{path.name} has all that was measured"
        write_whole(path, data)
    return f"{path.name}: {len(before)} bytes before, {len(data)} after"


def _absorb(config: Any, cache: Any, before: bytes) -> bool:
    """Add the content of a file to ``cache``, unless the backend does not take it for a cache.

    What it does not take it replaces by an empty cache, without an error.
    """
    old, empty = config.create_timing_cache(before), config.create_timing_cache(b"")
    if old is None:
        return False
    taken = bytes(old.serialize())
    if taken == bytes(empty.serialize()) and before != taken:
        return False
    return bool(cache.combine(old, ignore_mismatch=False))


def _use(request: Request, say: Say) -> None:
    """Describe, run or time an engine that was built before."""
    trt, pg, logger = _start(request, say)
    logger.stage = "run"
    if request["plugin"]:
        _load_plugin(trt, request["plugin"])
    _USES[request["command"]](request, say, trt, pg)


_USES = {"infer": infer, "describe": describe_inputs, "measure": measure}
_COMMANDS = {"build": _build, "validate": validate, **dict.fromkeys(_USES, _use)}
