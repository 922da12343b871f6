"""Models written in ONNX's text form, and the checks that every optimized model must pass."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.runtime.session import load_session, run_session

TARGETS: tuple[Target, ...] = ("portable", "onnx", "ort")
CONSTANTS = "float two = {2.0}, float eps = {0.00001}"
WEIGHT = "float[8] w = {1.5, 2, 3, 4, 5, 6, 7, 8}"

_SIZE_OF_A_SYMBOL = 3


def norm(x: str, y: str, prefix: str = "", weight: str | None = "w") -> str:
    """Pow, ReduceMean, Add, Sqrt, Div, Mul from ``x`` to ``y``; intermediates start with prefix."""
    p = prefix
    scaled = f"{p}n = Div({x}, {p}s)\n {y} = Mul({p}n, {weight})"
    last = f"{y} = Div({x}, {p}s)" if weight is None else scaled
    mean = f"{p}sq = Pow({x}, two)\n {p}m = ReduceMean<axes = [-1], keepdims = 1>({p}sq)"
    return f"{mean}\n {p}e = Add({p}m, eps)\n {p}s = Sqrt({p}e)\n {last}\n "


def model(
    body: str,
    *,
    inputs: str = "float[B,S,8] x",
    outputs: str = "float[B,S,8] y",
    constants: str = f"{WEIGHT}, {CONSTANTS}",
    opset: int = 17,
    imports: str = "",
    functions: str = "",
) -> onnx.ModelProto:
    """A model of one graph; ``imports`` and ``functions`` are appended in text form."""
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}{imports}]>\n'
        f"g ({inputs}) => ({outputs}) <{constants}> {{\n{body}\n}}\n{functions}"
    )


def function(name: str, signature: str, body: str, *, imports: str = "") -> str:
    """A model-local function of domain ``my`` in text form; it has ``two`` and ``eps``."""
    constants = "two = Constant<value_float = 2.0>()\n eps = Constant<value_float = 0.00001>()"
    head = f'\n<domain: "my", opset_import: ["" : 17{imports}]>\n{name} {signature} '
    return f"{head}{{\n {constants}\n {body}\n}}\n"


def feeds(source: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Random arrays for every input without a default."""
    rng = np.random.default_rng(0)
    defaults = {tensor.name for tensor in source.graph.initializer}
    arrays = {}
    for value in source.graph.input:
        if value.name not in defaults:
            tensor = value.type.tensor_type
            shape = [d.dim_value or _SIZE_OF_A_SYMBOL for d in tensor.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            arrays[value.name] = rng.standard_normal(shape).astype(dtype)
    return arrays


def run(
    proto: onnx.ModelProto, arrays: dict[str, np.ndarray], *, optimized: bool = False
) -> list[np.ndarray]:
    """All outputs in order, from ONNX Runtime on the CPU."""
    session = load_session(proto.SerializeToString(), optimize=optimized, threads=1)
    return list(run_session(session, arrays).values())


def ops(proto: onnx.ModelProto) -> list[str]:
    """Operator types of the main graph in order."""
    return [node.op_type for node in proto.graph.node]


def calls_of(function: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, int]:
    """What a function returns, and how many calls of functions that takes on any machine."""
    profile = cProfile.Profile()
    result = profile.runcall(function, *arguments, **options)
    return result, pstats.Stats(profile).total_calls  # type: ignore[attr-defined]


def check_same(source: onnx.ModelProto, result: onnx.ModelProto) -> None:
    """Same inputs and outputs by name, type and shape, and the same numbers to a few f32 ulps."""
    assert [v.name for v in result.graph.input] == [v.name for v in source.graph.input]
    assert [v.name for v in result.graph.output] == [v.name for v in source.graph.output]
    arrays = feeds(source)
    expected = run(source, arrays)
    for optimized in (False, True):
        for old, new in zip(expected, run(result, arrays, optimized=optimized), strict=True):
            assert (old.dtype, old.shape) == (new.dtype, new.shape)
            # One f32 norm is within 1e-6; a residual chain of a few adds up. A gain, bias or row
            # that is not the right one is off by far more.
            np.testing.assert_allclose(new, old, rtol=2e-5, atol=2e-5)


def optimized(source: onnx.ModelProto, target: Target) -> tuple[rx.Report, onnx.ModelProto]:
    """Optimize, and check all that holds for every model: valid, same numbers, stable, no harm."""
    before = source.SerializeToString()
    result = rx.optimize(source, target=target, numerics="upcast")
    assert source.SerializeToString() == before, "the caller's model was changed"
    proto = ir.to_proto(result.model)
    if b"SimplifiedLayerNormalization" not in proto.SerializeToString():
        onnx.checker.check_model(proto, full_check=True)
    check_same(source, proto)
    again = rx.optimize(proto, target=target, numerics="upcast")
    assert not again.report.fused, "a second run found more"
    norms = len(result.report.fused) + len(result.report.kept)
    assert len(again.report.kept) == norms, "a second run lost a norm"
    assert ops(ir.to_proto(again.model)) == ops(proto)
    return result.report, proto
