"""What runs in the process that ``process.run_worker`` starts: a peer's optimizer, or a trial.

``{"action": "peer", "name", "model", "output"}`` -> ``{"missing", "version"}``
``{"action": "trial", "model", "provider", "threads", "optimize", "feeds", "outputs"}`` ->
``{"on", "load_seconds", "base", "peak"}``, and the outputs of each file of feeds in the
file of outputs at its place.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

FILE_LIMIT = 64 << 30
"""Bytes that a peer may write to one file: a sparse model, copied, would fill a disk."""


def main() -> None:
    """Read the request, do it, write the result, which may be ``{"error"}``."""
    request: dict[str, Any] = json.load(sys.stdin)
    try:
        _limit(request["memory_limit"])
        result = _ACTIONS[request["action"]](request)
    # Whatever a tool raises is its result; SystemExit among it, but not a signal.
    except (Exception, SystemExit) as error:
        result = {"error": f"{type(error).__name__}: {str(error).strip()[:2000]}"}
    Path(request["result"]).write_text(json.dumps(result), encoding="utf-8")


def _limit(memory: int | None) -> None:
    if memory is None:
        return
    try:
        import resource
    except ImportError:  # no such limits on this system
        return
    # RLIMIT_DATA counts what is allocated; RLIMIT_AS would also count a mapped weights file.
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT, FILE_LIMIT))


def _peer(request: dict[str, Any]) -> dict[str, Any]:
    from rmsnorm_export.benchmark.machine import versions
    from rmsnorm_export.benchmark.peers import PEERS

    peer = PEERS[request["name"]]
    try:
        run = peer.load()
    except ImportError as error:
        return {"missing": str(error), "version": ""}
    run(request["model"], request["output"])
    return {"missing": "", "version": versions([peer.package]).get(peer.package, "")}


def _trial(request: dict[str, Any]) -> dict[str, Any]:
    from rmsnorm_export.benchmark.arrays import read_arrays, write_arrays
    from rmsnorm_export.benchmark.machine import peak_memory
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
    wanted = {item.name for item in session.get_inputs()}
    for feeds_path, outputs_path in zip(request["feeds"], request["outputs"], strict=True):
        feeds = read_arrays(Path(feeds_path))
        if lacking := sorted(wanted - feeds.keys()):
            raise ValueError(f"inputs that the raw model lacks: {', '.join(lacking)}")
        outputs = run_session(session, {name: feeds[name] for name in wanted})
        write_arrays(Path(outputs_path), outputs)
    return {
        "on": is_on(session, request["provider"]),
        "load_seconds": load_seconds,
        "base": base,
        "peak": peak_memory(),
    }


_ACTIONS = {"peer": _peer, "trial": _trial}
