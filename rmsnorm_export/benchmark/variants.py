"""The files that are compared: raw as it is, each target, and what the peers' optimizers make."""

from __future__ import annotations

import time
from pathlib import Path

import onnx
import onnx_ir as ir

from rmsnorm_export.benchmark.result import Variant
from rmsnorm_export.benchmark.worker import PEERS, run_worker
from rmsnorm_export.errors import Error
from rmsnorm_export.graph.load import Source
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.printable import one_line
from rmsnorm_export.rewrite.optimize import optimize
from rmsnorm_export.system.machine import memory_available

MEMORY_SHARE = 0.8
"""Of the memory that is free, what a peer may allocate: beyond it the machine would swap."""


def make_target(source: Source, target: Target, numerics: Numerics, path: Path) -> Variant:
    """Optimize ``source`` for ``target`` and write it to ``path``."""
    start = time.perf_counter()
    try:
        result = optimize(source, target=target, numerics=numerics)
        result.save(path, force=True)
    except Error as error:
        reason = one_line(": ".join(filter(None, (error.what, error.found))), 300)
        return Variant(target, "target", "failed", reason, seconds=time.perf_counter() - start)
    report = result.report
    return Variant(
        target,
        "target",
        nodes=report.nodes_after,
        fused=len(report.fused) + len(report.kept),
        refused=len(report.unfused),
        seconds=time.perf_counter() - start,
    )


def make_peer(
    name: str, model: str, path: Path, *, time_limit: float, memory_limit: int | None
) -> Variant:
    """Let a peer optimize ``model`` to ``path``, in a process of its own.

    Args:
        name: a key of ``PEERS``.
        model: path of the raw file.
        path: in a folder of its own, which is the process's working directory.
        time_limit: seconds.
        memory_limit: bytes; None: ``MEMORY_SHARE`` of what is free.
    """
    if memory_limit is None:
        free = memory_available()
        memory_limit = None if free is None else int(free * MEMORY_SHARE)
    request = {"action": "peer", "name": name, "model": model, "output": str(path)}
    ended = run_worker(
        request, folder=path.parent, time_limit=time_limit, memory_limit=memory_limit
    )
    version, nodes, status, detail = "", None, ended.status, ended.detail
    if status == "out of memory" and memory_limit is not None:
        detail = f"with {memory_limit / 2**30:.1f} GiB: {detail}"
    elif status == "ok" and ended.result["missing"]:
        status = "not installed"
        detail = f"{one_line(ended.result['missing'], 200)} (pip install {PEERS[name].package})"
    elif status == "ok":
        version, nodes = str(ended.result["version"]), count_nodes(path)
        if nodes is None:
            status, detail = "failed", "it ended without an error and wrote no ONNX model"
    return Variant(name, "peer", status, detail, nodes, seconds=ended.seconds, version=version)


def count_nodes(path: str | Path) -> int | None:
    """Nodes of a file's graphs, functions left out; None where it cannot be read."""
    try:
        model = ir.from_proto(onnx.load(path, load_external_data=False))
    # A peer may have written anything, and the readers raise what they like.
    except Exception:
        return None
    return len(model.graph) + sum(len(graph) for graph in model.graph.subgraphs())
