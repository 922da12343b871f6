"""The self test of ``doctor``: a norm spelled out, made one node for every target, and run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from rmsnorm_export.lower.targets import Target
from rmsnorm_export.show.doctor import SelfTest

if TYPE_CHECKING:
    import onnx


_ROWS, _N, _EPSILON = 3, 40, 1e-5

_TOLERANCE = 1e-5
"""float32 sums of 40 squares are off by at most 40 * 2**-24 = 2.4e-6, relatively; a wrong norm by
far more."""


def run_self_tests(*, with_runtime: bool) -> Iterator[SelfTest]:
    """One test per target; ``with_runtime``: the result is run in ONNX Runtime too."""
    for target in get_args(Target):
        try:
            yield _test(target, with_runtime)
        except Exception as error:
            # whatever is wrong with this installation is what the user asked to see
            detail = " ".join(f"{type(error).__name__}: {error}".split())
            yield SelfTest(f"target {target}", False, detail)


def _test(target: Target, with_runtime: bool) -> SelfTest:
    import rmsnorm_export

    name = f"target {target}"
    result = rmsnorm_export.optimize(_model(), target=target)
    if len(result.report.fused) != 1 or result.report.refused:
        reasons = ", ".join(refusal.reason for refusal in result.report.refused)
        return SelfTest(name, False, f"the norm was not made one node; refused: {reasons or '-'}")
    op = result.report.fused[0].op
    if not with_runtime:
        return SelfTest(name, True, f"{op}; not run, as onnxruntime is not installed")
    random = np.random.default_rng(0)
    x = random.standard_normal((_ROWS, _N)).astype(np.float32)
    error = float(np.max(np.abs(_run(result.to_bytes(), x) - _expected(x))))
    if not error <= _TOLERANCE:
        return SelfTest(name, False, f"{op}, wrong by {error:.2g} in ONNX Runtime")
    return SelfTest(name, True, f"{op}, right within {error:.2g}")


def _run(model: bytes, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def _weight() -> np.ndarray[Any, Any]:
    return np.linspace(0.5, 1.5, _N, dtype=np.float32)


def _expected(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """``x / sqrt(mean(x ** 2) + epsilon) * weight`` in float64."""
    wide = x.astype(np.float64)
    root = np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + _EPSILON)
    return np.asarray(wide / root * _weight())


def _model() -> onnx.ModelProto:
    """An RMSNorm of [rows, 40] float32 as torch.onnx spells it."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Pow", ["x", "two"], ["square"]),
        helper.make_node("ReduceMean", ["square", "axes"], ["mean"], keepdims=1),
        helper.make_node("Add", ["mean", "epsilon"], ["sum"]),
        helper.make_node("Sqrt", ["sum"], ["root"]),
        helper.make_node("Reciprocal", ["root"], ["inverse"]),
        helper.make_node("Mul", ["x", "inverse"], ["normalised"]),
        helper.make_node("Mul", ["normalised", "weight"], ["y"]),
    ]
    constants: dict[str, np.ndarray[Any, Any]] = {
        "two": np.array(2, np.float32),
        "axes": np.array([-1], np.int64),
        "epsilon": np.array(_EPSILON, np.float32),
        "weight": _weight(),
    }
    graph = helper.make_graph(
        nodes,
        "self_test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", _N])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", _N])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opset = helper.make_opsetid("", 18)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9)
