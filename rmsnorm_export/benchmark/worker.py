"""A peer's optimizer or a trial in a process of its own: with a clock and a memory ceiling.

A peer may run out of memory, never end, or delete files in its working directory; a model may crash
a runtime. None of that reaches the caller.

``{"action": "peer", "name", "model", "output"}`` -> ``{"missing", "version"}``
``{"action": "trial", "model", "provider", "threads", "optimize", "kernels", "feeds", "outputs"}``
-> ``{"on", "load_seconds", "base", "peak"}``, and the outputs of each file of feeds in the file of
outputs at its place.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rmsnorm_export.benchmark.result import Status
from rmsnorm_export.printable import one_line
from rmsnorm_export.system.machine import peak_memory
from rmsnorm_export.system.packages import version_of
from rmsnorm_export.system.process import Child, Request, Say, memory_signs

PeerRun = Callable[[str, str], object]


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """Other people's optimizer, as its documentation says to run it on an exported model.

    Attributes:
        package: the distribution that holds it; also what pip installs.
        load: imports it, in a process of its own, and returns what to call with the paths of the
            model and of the output.
    """

    package: str
    load: Callable[[], PeerRun]


def _transformers() -> PeerRun:
    from onnxruntime.transformers import optimizer

    def run(model: str, output: str) -> None:
        # The type whose fusions cover RMSNorm; heads and width are found by the tool. Level 0:
        # ONNX Runtime's own optimization, which every session here does itself, is left to it.
        result = optimizer.optimize_model(
            model, model_type="gpt2", num_heads=0, hidden_size=0, opt_level=0
        )
        result.save_model_to_file(output)

    return run


def _onnxscript() -> PeerRun:
    import onnx_ir as ir
    from onnxscript.rewriter.ort_fusions import optimize_for_ort

    def run(model: str, output: str) -> None:
        optimized, _ = optimize_for_ort(ir.load(model))
        ir.save(optimized, output)

    return run


def _command(module: str) -> PeerRun:
    """A tool through the function behind its command line."""
    main = importlib.import_module(module).main

    def run(model: str, output: str) -> None:
        sys.argv = ["tool", model, output]
        try:
            main()
        except SystemExit as stop:
            if stop.code not in (None, 0):
                raise RuntimeError(f"exit code {stop.code}") from stop

    return run


PEERS = {
    "ort.transformers": Peer("onnxruntime", _transformers),
    "onnxscript": Peer("onnxscript", _onnxscript),
    "onnxsim": Peer("onnxsim", functools.partial(_command, "onnxsim.onnx_simplifier")),
    "onnxslim": Peer("onnxslim", functools.partial(_command, "onnxslim.cli")),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a request.

    Attributes:
        status: ``ok``, or what went wrong.
        detail: the line that says why, or "".
        seconds: from the start of the process to its end.
        result: what it handed back; empty unless ``ok``.
    """

    status: Status
    detail: str
    seconds: float
    result: Mapping[str, Any]


def run_worker(
    request: Mapping[str, object], *, folder: Path, time_limit: float, memory_limit: int | None
) -> Outcome:
    """Run one request in a new process, and wait for its end.

    Args:
        request: see above.
        folder: the process's working directory, and that of its temporary files.
        time_limit: seconds until it is ended, with all that it started.
        memory_limit: bytes that it may allocate; None: no limit.
    """
    ended = Child(
        "rmsnorm_export.benchmark.worker:main",
        request,
        time_limit=time_limit,
        memory_limit=memory_limit,
        folder=folder,
        environment={"TMPDIR": str(folder)},  # what is left there goes with the folder
    ).end()
    if ended.code is None:
        return Outcome("time limit", f"after {time_limit:g} s", ended.seconds, {})
    result = ended.first("result")
    if result is not None:
        return Outcome("ok", "", ended.seconds, result)
    error = str((ended.first("error") or {}).get("text", ""))
    lines = [line.strip() for line in (error or ended.tail).splitlines() if line.strip()]
    signs = memory_signs(lines)
    reason = signs[-1] if signs else " ".join(lines[:3]) if error else ended.last_line()
    detail = one_line(": ".join(filter(None, (ended.signal_name(), reason))), 300)
    status: Status = "failed"
    if signs:
        status = "out of memory"
    elif ended.signal_name():
        status = "killed"
    return Outcome(status, detail, ended.seconds, {})


def main(request: Request, say: Say) -> None:
    """Do what is asked for, in the process."""
    try:
        say("result", **_ACTIONS[request["action"]](request))
    # Whatever a tool raises is its result; SystemExit among it, but not a signal.
    except (Exception, SystemExit) as error:
        say("error", text=f"{type(error).__name__}: {str(error).strip()[:2000]}")


def _peer(request: Request) -> dict[str, Any]:
    peer = PEERS[request["name"]]
    try:
        run = peer.load()
    except ImportError as error:
        return {"missing": str(error), "version": ""}
    run(request["model"], request["output"])
    return {"missing": "", "version": version_of(peer.package)}


def _trial(request: Request) -> dict[str, Any]:
    from rmsnorm_export.benchmark.sessions import is_on, open_session
    from rmsnorm_export.runtime.inputs import read_arrays, write_arrays
    from rmsnorm_export.runtime.session import onnxruntime, run_session

    onnxruntime()
    base, start = peak_memory(), time.perf_counter()
    session = open_session(
        request["model"],
        request["provider"],
        threads=request["threads"],
        optimize=request["optimize"],
        kernels=request["kernels"],
    )
    load_seconds = time.perf_counter() - start
    names = {item.name for item in session.get_inputs()}
    for feeds_path, outputs_path in zip(request["feeds"], request["outputs"], strict=True):
        feeds = read_arrays(Path(feeds_path))
        if lacking := sorted(names - feeds.keys()):
            raise ValueError(f"inputs that the raw model lacks: {', '.join(lacking)}")
        outputs = run_session(session, {name: feeds[name] for name in names})
        write_arrays(Path(outputs_path), outputs)
    return {
        "on": is_on(session, request["provider"]),
        "load_seconds": load_seconds,
        "base": base,
        "peak": peak_memory(),
    }


_ACTIONS = {"peer": _peer, "trial": _trial}
