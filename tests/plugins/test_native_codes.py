"""Codes of a norm by the kernels of ONNX Runtime: those that its function body makes."""

from __future__ import annotations

import itertools
import pathlib
from typing import Any

import numpy as np
import onnxruntime
import pytest

from rmsnorm_export.op.native import ROW_KINDS
from rmsnorm_export.op.spec import NormSpec, Quantize, scaled_by
from tests.op.test_codes import at_every_place, reference_codes, same
from tests.plugins.native_process import EPSILON, TYPES, Case, run, run_all
from toolbox.node_model import node_model

HOWS: tuple[Quantize, ...] = ("int8", "fp8", "int8_per_row", "fp8_per_row")
"""MXFP8 keeps its function bodies."""
STEPS = (0.02, 1e-3, -4.0, 0.0, 1e-42)
_SHAPES = (
    (-3, (2, 37, 5, 7)),
    *((-1, of) for of in ((3,), (700, 33), (0, 1), (2, 0), (2, 3, 5, 1))),
)
"""Codes have a scale for each row of the last axis, whatever is normalised."""


def coded(spec: NormSpec, how: Quantize | None, step: float, *tensors: Any) -> Case:
    """Of x, scale, bias and second; what it comes to is its number of outputs."""
    given = np.array(step, np.float32) if how and scaled_by(how) == "tensor" else None
    model, feeds = node_model(spec, *tensors, quantize=how, step=given)
    return Case(spec, model, feeds, (tensors[0],) * len(model.graph.output))


def sweep(library: str) -> str:
    """Every kind, type and way to make codes against the reference of the kernels' own norms."""
    rows: list[tuple[NormSpec, Quantize, float, Any]] = []
    for seed, (kind, dtype, how) in enumerate(itertools.product(ROW_KINDS, TYPES, HOWS)):
        random = np.random.default_rng(seed)
        x, second = (random.normal(0, 2, (2, 5, 111)).astype(TYPES[dtype]) for _ in range(2))
        x[0, 0], x[0, 1, 3], x[1, 2, 4], x[1, 3, :5] = 0, np.nan, np.inf, -0.0
        weights = random.normal(0, 1, (2, x.shape[-1])).astype(np.float32)
        scale, bias = (weights[i] if seed % 4 > i else None for i in range(2))
        axis = -2 if seed % 5 == 0 and scale is None else -1
        spec = NormSpec(kind=kind, axis=axis, epsilon=EPSILON)
        rows.append((spec, how, STEPS[seed % len(STEPS)], (x, scale, bias, second)))
    for dtype, how in itertools.product(TYPES, HOWS[2:]):
        spec = NormSpec(epsilon=0.0, partial_size=1)  # changes nothing
        rows.append((spec, how, 0.0, (at_every_place(37, TYPES[dtype]), None, None, None)))
    numbers = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    numbers = numbers[np.isfinite(numbers)]  # of a row of ones, scaled to them
    for how, step in (*((how, 0.02) for how in HOWS), ("int8", 3.0), ("fp8", 3.0)):
        ones = np.ones((2, numbers.size), np.float16)
        rows.append((NormSpec(epsilon=0.0), how, step, (ones, numbers, None, None)))
    for how, (axis, shape) in itertools.product(HOWS, _SHAPES):
        x = np.random.default_rng(0).normal(0, 1, shape).astype(np.float16)
        if x.size or scaled_by(how) == "tensor" or shape[-1]:
            rows.append((NormSpec(axis=axis, last_axis=axis), how, 0.02, (x, None, None, None)))
    cases = [coded(spec, None, 0.0, *tensors) for spec, _, _, tensors in rows]
    cases += [coded(spec, how, step, *tensors) for spec, how, step, tensors in rows]
    outputs = [*run_all(library, cases, threads=3)]
    for row, norm, codes in zip(rows, outputs, outputs[len(rows) :], strict=False):
        expected, *scales = reference_codes(norm[0], *row[1:3])
        for a, b in zip(codes, (expected, *norm[1:], *scales), strict=True):
            assert same(a, b), row
    return f"{len(rows)} by {onnxruntime.__version__}"


@pytest.mark.parametrize("how", HOWS[2:])
def test_a_row_without_elements_has_no_scale(native_library: pathlib.Path, how: Quantize) -> None:
    one = coded(NormSpec(), how, 0.0, np.ones((2, 0), np.float16), None, None, None)
    with pytest.raises(Exception, match="node 'a norm': a row must have elements"):
        run(native_library, one.model, one.feeds)


def test_a_step_that_does_not_fit_is_named(native_library: pathlib.Path) -> None:
    x, step = np.ones((2, 8), np.float32), np.array([1, 2], np.float32)
    model, feeds = node_model(NormSpec(), x, None, None, None, quantize="int8", step=step)
    with pytest.raises(Exception, match="node 'a norm': the last input must be the scale"):
        run(native_library, model, feeds)


if __name__ == "__main__":
    import sys

    print(sweep(sys.argv[1]))
