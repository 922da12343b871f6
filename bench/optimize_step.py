"""One step of scripts/bench_optimize: ``python -m bench.optimize_step``, then one of

    run TOOL MODEL OUTPUT RESULT LIMIT   optimize MODEL with TOOL
    count MODEL RESULT                   count nodes and fused norms
    decoder MODEL NODES OPSET RESULT     write a synthetic decoder
    hard MODEL NAME SIZE RESULT          write a graph that asks for much work
    sparse MODEL RESULT                  write the sparse 126-layer model

RESULT is a JSON file: tools print what they like on stdout. A tool's imports come before the clock
starts; loading, optimizing and saving come after it.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rmsnorm_export.benchmark.worker import PEERS

FILE_LIMIT = 8 << 30
"""Bytes that a tool may write to one file: none needs more, and a sparse copy would fill a disk."""

FUSED = {
    ("", "RMSNormalization"),
    ("", "SimplifiedLayerNormalization"),
    ("com.microsoft", "SkipSimplifiedLayerNormalization"),
    ("rmsnorm_export", "RMSNorm"),
    ("rmsnorm_export", "SkipRMSNorm"),
    ("rmsnorm_export", "GatedRMSNorm"),
}

Optimize = Callable[[str, str], dict[str, float]]


def _ours(target: str) -> Optimize:
    import onnx
    import onnx_ir  # noqa: F401 - imports are not what is timed

    import rmsnorm_export as rx

    optimize = rx.optimize

    def run(model: str, output: str) -> dict[str, float]:
        result = optimize(model, target=target)
        result.save(output)
        return {"optimize_seconds": result.report.seconds}

    assert onnx.__version__
    return run


def _floor() -> Optimize:
    import onnx_ir as ir

    def run(model: str, output: str) -> dict[str, float]:
        ir.save(ir.load(model), output)
        return {}

    return run


def _onnxscript_onnx() -> Optimize:
    import onnx_ir as ir
    import onnxscript.optimizer
    from onnxscript.rewriter.onnx_fusions import fuse

    def run(model: str, output: str) -> dict[str, float]:
        loaded = ir.load(model)
        onnxscript.optimizer.optimize(loaded)
        fuse(loaded)
        ir.save(loaded, output)
        return {}

    return run


def _peer(name: str) -> Optimize:
    run = PEERS[name].load()

    def timed(model: str, output: str) -> dict[str, float]:
        run(model, output)
        return {}

    return timed


TOOLS: dict[str, Callable[[], Optimize]] = {
    "ours portable": lambda: _ours("portable"),
    "ours ort": lambda: _ours("ort"),
    "onnx_ir load + save": _floor,
    "onnxscript ort": lambda: _peer("onnxscript"),
    "onnxscript onnx": _onnxscript_onnx,
    "ort.transformers": lambda: _peer("ort.transformers"),
    "onnxsim": lambda: _peer("onnxsim"),
    "onnxslim": lambda: _peer("onnxslim"),
}


def _timed(tool: str, model: str, output: str, limit: int) -> dict[str, float]:
    # RLIMIT_DATA counts what is allocated; RLIMIT_AS would also count a mapped weights file.
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT, FILE_LIMIT))
    run = TOOLS[tool]()
    import_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start, cpu = time.perf_counter(), time.process_time()
    extra = run(model, output)
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
        "import_mb": import_mb,
        **extra,
    }


def _count(model: str) -> dict[str, int]:
    import onnx

    nodes = onnx.load(model, load_external_data=False).graph.node
    ops = Counter((node.domain, node.op_type) for node in nodes)
    return {"nodes": len(nodes), "fused": sum(n for key, n in ops.items() if key in FUSED)}


def _sparse(path: Path) -> dict[str, int]:
    """The model with 795 GB of weights that take no room on disk."""
    from tests.tools.corpus.sparse_llm import make_sparse_llm, norm_count

    layers = 126
    make_sparse_llm(path.parent, layers, name=path.name)
    return {"nodes": _count(str(path))["nodes"], "norms": norm_count(layers)}


def main() -> None:
    action, *arguments = sys.argv[1:]
    result: dict[str, Any]
    if action == "run":
        tool, model, output, target, limit = arguments
        result = _timed(tool, model, output, int(limit))
    elif action == "count":
        model, target = arguments
        result = _count(model)
    elif action == "decoder":
        from bench.graphs import write_decoder

        model, nodes, opset, target = arguments
        written, norms = write_decoder(Path(model), int(nodes), opset=int(opset))
        result = {"nodes": written, "norms": norms}
    elif action == "hard":
        from bench.graphs import write_hard

        model, name, size, target = arguments
        written, norms = write_hard(Path(model), name, int(size))
        result = {"nodes": written, "norms": norms}
    elif action == "sparse":
        model, target = arguments
        result = _sparse(Path(model))
    else:
        raise SystemExit(f"unknown action {action!r}")
    Path(target).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
