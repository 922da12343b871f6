"""Codes of a norm by the kernels of ONNX Runtime: those that its function body makes."""

from __future__ import annotations

import itertools
import pathlib
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from rmsnorm_export.op.body import build_function
from rmsnorm_export.op.body_key import assign_bodies, body_key
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.native import ROW_KINDS
from rmsnorm_export.op.spec import NormSpec, Quantize, scaled_by
from rmsnorm_export.runtime.session import run_session
from rmsnorm_export.tensorrt.plugin.libraries import session_options
from tests.op.test_codes import at_every_place, reference_codes, same
from tests.plugins.native_process import TYPES, Case, run_all
from tests.tools.node_model import node_model

HOWS: tuple[Quantize, ...] = ("int8", "fp8", "int8_per_row", "fp8_per_row")
"""MXFP8 keeps its function bodies."""
STEPS = (0.02, 1e-3, -4.0, 0.0, 1e-42)


def run(model: onnx.ModelProto, feeds: dict[str, Array], options: Any) -> dict[str, Array]:
    return run_session(onnxruntime.InferenceSession(model.SerializeToString(), options), feeds)


def rows(dtype: Any, n: int, seed: int) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    x, second = (random.normal(0, 2, (2, 5, n)).astype(dtype) for _ in range(2))
    x[0, 0], x[0, 1, 3], x[1, 2, 4], x[1, 3, :5] = 0, np.nan, np.inf, -0.0
    return x, second


def sweep(library: str) -> int:
    """Every kind, type and way to make codes against the reference of the kernels' own norms."""
    norms, coded = [], []
    for seed, (kind, dtype, how) in enumerate(itertools.product(ROW_KINDS, TYPES, HOWS)):
        x, second = rows(TYPES[dtype], 111, seed)
        given = None if kind == "RMSNorm" else second
        weights = np.random.default_rng(seed).normal(0, 1, (2, x.shape[-1])).astype(np.float32)
        scale, bias = (weights[i] if seed % 4 > i else None for i in range(2))
        axis = -2 if seed % 5 == 0 and scale is None else -1
        spec = NormSpec(kind=kind, axis=axis, epsilon=2.0**-17)
        step = np.array(STEPS[seed % len(STEPS)], np.float32)
        for cases, more in ((norms, {}), (coded, {"quantize": how, "step": step})):
            if more and scaled_by(how) != "tensor":
                more["step"] = None
            model, feeds = node_model(spec, x, scale, bias, given, **more)  # type: ignore[arg-type]
            outputs = tuple(x for _ in model.graph.output)
            cases.append((Case(dtype, spec, model, feeds, bias, outputs), how, float(step)))
    for dtype, how in itertools.product(TYPES, HOWS[2:]):
        x = at_every_place(37, TYPES[dtype])
        spec = NormSpec(epsilon=0.0, partial_size=1)  # changes nothing
        for cases, made in ((norms, None), (coded, how)):
            model, feeds = node_model(spec, x, None, None, None, quantize=made)
            outputs = (x,) * len(model.graph.output)
            cases.append((Case(dtype, spec, model, feeds, None, outputs), how, 0.0))
    options = session_options(library, threads=1)
    found = [*run_all(options, [case for case, _, _ in norms + coded])]
    for (case, how, step), norm, codes in zip(coded, found, found[len(norms) :], strict=False):
        expected = reference_codes(norm[0], how, step)
        total = norm[1:]
        for a, b in zip(codes, (expected[0], *total, *expected[1:]), strict=True):
            assert same(a, b), (case.spec, case.dtype, how, step)
    return len(coded)


@pytest.mark.parametrize("how", HOWS)
def test_every_half_number_has_the_code_of_its_body(
    native_library: pathlib.Path, how: Quantize
) -> None:
    """All of float16, as a row of ones scaled to them: kernel and body side by side."""
    scale = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    scale = scale[np.isfinite(scale)]
    x = np.ones((2, scale.size), np.float16)
    spec = NormSpec(epsilon=0.0)
    for step in (0.02, 3.0) if scaled_by(how) == "tensor" else (None,):
        given = None if step is None else np.array(step, np.float32)
        model, feeds = node_model(spec, x, scale, None, None, quantize=how, step=given)
        options = session_options(native_library, threads=2)
        kernel = run(model, feeds, options)
        model.opset_import[0].version = 19
        key = body_key(spec, dtype=10, scale_dtype=10, bias_dtype=None, opset=19, quantize=how)
        ((name, body),) = assign_bodies([key])
        assert name == model.graph.node[0].op_type
        model.functions.append(ir.serde.serialize_function(build_function(name, body, 19)))
        own = run(model, feeds, None)
        for a, b in zip(kernel.values(), own.values(), strict=True):
            assert same(a, b)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(
    ("axis", "shape"),
    [
        (-1, (3,)),
        (-1, (700, 33)),
        (-1, (0, 1)),
        (-1, (2, 0)),
        (-1, (2, 3, 5, 1)),
        (-3, (2, 37, 5, 7)),
    ],
)
def test_any_shape(
    native_library: pathlib.Path, how: Quantize, shape: tuple[int, ...], axis: int
) -> None:
    """Codes have a scale for each row of the last axis, whatever is normalised."""
    step = np.array(0.02, np.float32) if scaled_by(how) == "tensor" else None
    x = np.random.default_rng(0).normal(0, 1, shape).astype(np.float16)
    spec = NormSpec(axis=axis, last_axis=axis)
    options = session_options(native_library, threads=3)
    norm = run(*node_model(spec, x, None, None, None), options)
    model, feeds = node_model(spec, x, None, None, None, quantize=how, step=step)
    if step is None and shape == (2, 0):
        with pytest.raises(Exception, match="node 'a norm': a row must have elements"):
            run(model, feeds, options)
        return
    codes = run(model, feeds, options)
    if x.size:
        for a, b in zip(codes.values(), reference_codes(norm["y"], how, 0.02), strict=True):
            assert same(a, b)
    else:
        assert codes["y"].shape == shape


def test_a_step_that_does_not_fit_is_named(native_library: pathlib.Path) -> None:
    x, step = np.ones((2, 8), np.float32), np.array([1, 2], np.float32)
    model, feeds = node_model(NormSpec(), x, None, None, None, quantize="int8", step=step)
    options = session_options(native_library, threads=1)
    with pytest.raises(Exception, match="node 'a norm': the last input must be the scale"):
        run(model, feeds, options)


if __name__ == "__main__":
    import sys

    print(sweep(sys.argv[1]))
