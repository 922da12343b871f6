"""Norms that are spelled by algebra are one node, in every type; what only looks so is left alone,
with the reason."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto
from spellings.algebra import BY_BEHAVIOUR, LEFT_ALONE, NORMS, UPCAST, built
from spellings.case import Case

import rmsnorm_export as rx
from rmsnorm_export.recognize.refusal import kind_of
from rmsnorm_export.runtime.session import load_session, run_session
from tests.sample import crossed

TYPES = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "f64": TensorProto.DOUBLE}
SCALES = (1.0, 1e-3, 50.0)


def outputs(case: Case, result: rx.Result | None, scale: float) -> np.ndarray:
    """What the case or its result computes of rows of this size, the first of them zeros."""
    feeds = {name: array * array.dtype.type(scale) for name, array in case.feeds.items()}
    for array in feeds.values():
        array[: array.ndim and 1] = 0
    model = case.model if result is None else ir.to_proto(result.model)
    (output,) = run_session(load_session(model.SerializeToString(), threads=1), feeds).values()
    return output.astype(np.float64)


FUSED = {**NORMS, **UPCAST, **BY_BEHAVIOUR}


@crossed(3, name=[*FUSED], dtype=[*TYPES])
def test_a_norm_by_algebra_is_one_node(name: str, dtype: str) -> None:
    if (name, dtype) == ("a pool", "f64"):
        pytest.skip("ONNX Runtime has no such kernel")
    case = built(FUSED[name], TYPES[dtype])
    result = rx.optimize(case.model, numerics="upcast", prove=True)
    (site,) = result.report.fused
    assert (site.n, result.report.refused) == (8, ())
    default = rx.inspect(case.model)
    assert not default.look_alikes
    assert any("does not follow" in note for note in site.notes) == (name not in NORMS)
    if name in NORMS:
        assert default.fused or dtype == "f16"
    elif name in BY_BEHAVIOUR:
        assert [s.numerics for s in default.fused] == ["reordered"] * (dtype != "f16")
    half = 2e-2 if dtype == "f16" else 0.0  # of the source, which adds squares in it
    for scale in SCALES:
        before, after = (outputs(case, one, scale) for one in (None, result))
        np.testing.assert_allclose(after, before, rtol=2e-5 + half, atol=2e-6 + half)


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_looks_like_it_is_left_alone(name: str) -> None:
    case, reason = built(LEFT_ALONE[name]), LEFT_ALONE[name].get("reason")
    for numerics in ("exact", "upcast"):
        result = rx.optimize(case.model, numerics=numerics)
        assert not result.report.fused
        assert [r.reason for r in result.report.refused] == ([reason] if reason else [])
        assert all(r.kind == kind_of(r.reason) for r in result.report.refused)
    assert np.array_equal(outputs(case, None, 1.0), outputs(case, result, 1.0), equal_nan=True)


@pytest.mark.parametrize("factor", [1e200, 1e-200])
def test_factors_whose_squares_are_no_numbers_are_no_factors(factor: float) -> None:
    square = {"square": "a = Div(x, k)\n q = Pow(a, two)"}
    root = {"root": "a = Sqrt(e)\n b = Mul(a, k)\n c = Pow(b, two)\n r = Sqrt(c)"}
    for steps in (square, root):
        case = built({"stored": f", T k = {{{factor}}}", **steps}, TensorProto.DOUBLE)
        report = rx.inspect(case.model)
        assert not report.fused
        assert "recognition-failed" not in [r.reason for r in report.refused]


@pytest.mark.parametrize("numerics", ["exact", "reordered"])
@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_what_a_refusal_advises_is_enough(target: Any, numerics: Any) -> None:
    advised = 0
    for name in (
        "a pool",
        "a maximum with less",
        "one maximum after another",
        "a row times a multiple",
    ):
        model = built(FUSED[name], TYPES["f16"]).model
        for refusal in rx.inspect(model, target=target, numerics=numerics).refused:
            for advice in refusal.hint.split(", or "):
                named = re.search("--numerics ([a-z]+)", advice)
                one: Any = "portable" if "the portable target" in advice else target
                allowed: Any = named[1] if named else numerics
                assert not rx.inspect(model, target=one, numerics=allowed).refused, advice
                advised += 1
    assert advised > 3
