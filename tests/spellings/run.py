"""Runs models and measures how far two results are apart."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import ml_dtypes
import numpy as np
import onnx
import onnx.inliner
import onnx.reference
import onnxruntime as ort

from .case import Case

Outputs = dict[str, np.ndarray]


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    """An ONNX Runtime session that runs the graph as it is written, on the CPU."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> Outputs:
    """Outputs by name, from ONNX Runtime."""
    names = [output.name for output in model.graph.output]
    return dict(zip(names, session(model).run(names, dict(feeds)), strict=True))


def evaluate(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> Outputs:
    """Outputs by name, from onnx's reference evaluator: for types without kernels.

    Functions are inlined first: the evaluator wants each one behind those that it calls.
    """
    names = [output.name for output in model.graph.output]
    model = onnx.inliner.inline_local_functions(model)
    with np.errstate(all="ignore"):
        values = onnx.reference.ReferenceEvaluator(model).run(names, dict(feeds))
    return dict(zip(names, values, strict=True))


def outputs(case: Case, model: onnx.ModelProto | None = None) -> Outputs:
    """Runs the case's model (once), or another one on its feeds, in what can run it."""
    if model is None:
        return _source_outputs(case)
    return run(model, case.feeds) if case.runs else evaluate(model, case.feeds)


@functools.lru_cache(maxsize=1024)
def _source_outputs(case: Case) -> Outputs:
    return outputs(case, case.model)


def tolerance(case: Case, array: np.ndarray) -> float:
    """Relative difference allowed between two evaluations of a case, for one of its outputs.

    In a half type every rounding moves a value by at most half a spacing; two evaluations that
    round nearly equal numbers are therefore apart by at most one spacing per rounding, and one for
    the sums in front of it. In float32 and float64 the rounding steps themselves are compared: up
    to 64 elements are summed in any order (64 half spacings, halved by the root) and about a dozen
    steps follow, on both sides: within 4 spacings per counted step (1.2e-5 for a float32 norm with
    all its extras).
    """
    spacing = float(ml_dtypes.finfo(array.dtype).eps)  # 2**-23 for float32, 2**-10 for float16
    half = array.dtype.itemsize == 2
    return spacing * (case.roundings + 1 if half else 4 * case.roundings + 24)


def disagreement(actual: np.ndarray, wanted: np.ndarray, relative: float, axes: int = 1) -> str:
    """Why two arrays do not agree, or "".

    NaN must meet NaN and an infinity itself. Elsewhere ``|actual - wanted| <= relative * top`` with
    ``top`` the largest magnitude of the row, the last ``axes`` axes: a bias or a residual that
    cancels leaves an error in proportion to what was cancelled, not to what is left. Rows of one
    element are measured together for that reason.
    """
    if actual.shape != wanted.shape:
        return f"shape {actual.shape} instead of {wanted.shape}"
    a, b = actual.astype(np.float64), wanted.astype(np.float64)
    # one step among the subnormals, where the spacing is no longer relative
    tiny = float(ml_dtypes.finfo(actual.dtype).smallest_subnormal)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return f"NaN at {int(np.sum(np.isnan(a) != np.isnan(b)))} elements of one only"
    infinite = np.isinf(a) | np.isinf(b)
    if not np.array_equal(a[infinite], b[infinite]):
        return f"infinities differ: {a[infinite]} instead of {b[infinite]}"
    finite = np.isfinite(a) & np.isfinite(b)
    a, b = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
    if not a.size:
        return ""
    axes = min(axes, b.ndim)
    row = tuple(range(-axes, 0))
    if math.prod(b.shape[axis] for axis in row) == 1:
        row = tuple(range(b.ndim))
    top = np.max(np.abs(b), axis=row, keepdims=True)
    excess = np.abs(a - b) - (relative * top + tiny)
    if np.any(excess > 0):
        where = np.unravel_index(int(np.argmax(excess)), a.shape)
        return f"{a[where]} instead of {b[where]} at {tuple(int(i) for i in where)}"
    return ""
