"""A peer's optimizer or a trial in a process of its own: with a clock and a memory ceiling.

A peer may run out of memory, never end, or delete files in its working directory; a model may crash
a runtime. None of that reaches the caller.

``{"action": "peer", "name", "model", "output"}`` -> ``{"missing", "version"}``
``{"action": "trial", "model", "provider", "threads", "optimize", "feeds", "outputs"}`` ->
``{"on", "load_seconds", "base", "peak"}``, and the outputs of each file of feeds in the
file of outputs at its place.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rmsnorm_export.benchmark.result import Status
from rmsnorm_export.printable import one_line
from rmsnorm_export.system.machine import peak_memory
from rmsnorm_export.system.packages import version_of
from rmsnorm_export.system.process import Child, Request, Say

_NO_MEMORY = (
    "memoryerror",
    "bad_alloc",
    "unable to allocate",
    "cannot allocate memory",
    "failed to allocate",
    "memory allocation",
    "failed to map segment",
    "out of memory",
)
"""What Python, C++, NumPy, the C library, ONNX Runtime, CUDA and the loader say."""


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
    signs = [line for line in lines if any(sign in line.lower() for sign in _NO_MEMORY)]
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
    from rmsnorm_export.benchmark.peers import PEERS

    peer = PEERS[request["name"]]
    try:
        run = peer.load()
    except ImportError as error:
        return {"missing": str(error), "version": ""}
    run(request["model"], request["output"])
    return {"missing": "", "version": version_of(peer.package)}


def _trial(request: Request) -> dict[str, Any]:
    from rmsnorm_export.benchmark.arrays import read_arrays, write_arrays
    from rmsnorm_export.benchmark.sessions import is_on, open_session
    from rmsnorm_export.runtime.session import onnxruntime, run_session

    onnxruntime()
    base, start = peak_memory(), time.perf_counter()
    session = open_session(
        request["model"],
        request["provider"],
        threads=request["threads"],
        optimize=request["optimize"],
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
