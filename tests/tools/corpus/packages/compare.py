"""What becomes of one export: norms and residual sums found here and by others, and the numbers."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import pathlib
import tempfile
from typing import Any, get_args

import numpy as np
import onnx
import onnxruntime as ort

import rmsnorm_export as rx
from rmsnorm_export.benchmark.worker import PEERS
from rmsnorm_export.lower.targets import TARGETS as ROWS
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.op.native import KINDS, RMS_NORMALIZATION, SIMPLIFIED, SKIP_SIMPLIFIED
from tests.tools.corpus.packages.exports import PackageExport
from tests.tools.lib.quiet import quiet

TARGETS: tuple[Target, ...] = get_args(Target)
ONE_NODE = tuple(target for target in TARGETS if ROWS[target].form == "one node")
OTHERS = ("session", "ort.transformers", "onnxscript")
"""ONNX Runtime's own session optimizer, its transformers optimizer, onnxscript's rewriter."""

OURS = "ours"
"""All targets of this package together, where files are wrong."""

# Of the largest number: chains of some 50 operators round otherwise once a norm is one node.
TOLERANCE = {"float32": 2e-5, "float16": 1e-2}


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """Norms that are one node, and those of them that have their residual sum."""

    norms: int
    residuals: int


def ours(path: pathlib.Path, target: Target, **options: Any) -> tuple[Found, bytes]:
    """What this package makes of a file, and the file."""
    result = rx.optimize(str(path), target=target, **options)
    data = result.to_bytes()
    norms = len(result.report.fused) + len(result.report.kept)
    return Found(norms, _count(onnx.load_from_string(data)).residuals), data


def others(path: pathlib.Path, tool: str) -> tuple[Found, bytes] | str:
    """What one of ``OTHERS`` makes of a file, and its file; or why it makes nothing."""
    with tempfile.TemporaryDirectory() as folder, quiet(), contextlib.ExitStack():
        output = str(pathlib.Path(folder) / "out.onnx")
        try:
            if tool == "session":
                options = _options(ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
                options.optimized_model_filepath = output
                ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            else:
                PEERS[tool].load()(str(path), output)
            written = onnx.load(output)
            data = written.SerializeToString()
            _leave_other_rows_out(written, path)
            return _count(written), data
        except Exception as error:  # the reason is the outcome
            return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _leave_other_rows_out(model: onnx.ModelProto, source: pathlib.Path) -> None:
    """Take from ``model`` the norms over other rows than those of ``source``.

    ONNX Runtime's transformers optimizer makes ``axis = 1`` of a mean over the channels of NCHW,
    which is the mean over C, H and W; the scale has an element for each channel all the same.
    """
    norms = [node for node in model.graph.node if node.op_type == SIMPLIFIED]
    axes = [next((a.i for a in n.attribute if a.name == "axis"), -1) for n in norms]
    if set(axes) <= {-1}:
        return
    inferred = onnx.shape_inference.infer_shapes(onnx.load(source)).graph
    dims = {
        value.name: [d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*inferred.input, *inferred.value_info)
    }
    sizes = {tensor.name: math.prod(tensor.dims) for tensor in model.graph.initializer}
    for node, axis in zip(norms, axes, strict=True):
        row = dims.get(node.input[0], [])[axis:]
        if math.prod(row) not in (0, sizes.get(node.input[1])):
            model.graph.node.remove(node)


def _count(model: onnx.ModelProto) -> Found:
    ops = collections.Counter(node.op_type for node in model.graph.node)
    sums = sum(ops[op] for op in (SKIP_SIMPLIFIED, "SkipRMSNorm"))
    single = (RMS_NORMALIZATION, SIMPLIFIED, *(k for k in KINDS if k != "SkipRMSNorm"))
    return Found(sums + sum(ops[op] for op in single), sums)


def run(model: bytes, export: PackageExport, *, optimized: bool) -> np.ndarray:
    """The first output for the example inputs.

    Raises:
        Exception: ONNX Runtime does not load or run the file.
    """
    levels = ort.GraphOptimizationLevel
    options = _options(levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL)
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}
    feeds = {name: array for name, array in export.inputs().items() if name in names}
    return np.asarray(session.run(None, feeds)[0], np.float64)


def worst(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference over the largest number; infinite where one alone is not finite."""
    if np.array_equal(a, b, equal_nan=True):
        return 0.0
    if a.shape != b.shape or not np.isfinite(a).all() or not np.isfinite(b).all():
        return float("inf")
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30))


def _options(level: Any) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = level
    return options
