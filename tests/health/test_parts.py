"""The rows that norms survive which recognition does not follow, held against NumPy's steps."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import rmsnorm_export as rx
from rmsnorm_export.health.result import KEEP, STORED
from rmsnorm_export.runtime.session import open_session, run_session
from rmsnorm_export.show import to_text
from tests.health.test_runs import EPS, half, model

CENTRED = """mean = ReduceMean <axes = [-1]> (h) d = Sub (h, mean) q = Pow (d, two)
    v = ReduceMean <axes = [-1]> (q) a = Add (v, eps) s = Sqrt (a) n = Div (d, s) y = Mul (n, w)"""
WEIGHTS = "float two = {2}, float[8] w = {1, 1, 1, 1, 1, 1, 1, 1}"
INPUTS = "float[B, 8] x, float[B, 8] r"


def layer_norm(epsilon: str = "0.00001") -> onnx.ModelProto:
    """LayerNorm of a residual sum, an operator for each step."""
    constants = f"{WEIGHTS}, float eps = {{{epsilon}}}"
    return model(f"h = Add (x, r) {CENTRED}", INPUTS, constants)


def steps(rows: np.ndarray, epsilon: float) -> np.ndarray:
    """The same, each result rounded to float16."""
    h = rows.astype(np.float16)
    with np.errstate(all="ignore"):
        d = h - h.astype(np.float64).mean(-1, keepdims=True).astype(np.float16)
        v = (d * d).astype(np.float64).mean(-1, keepdims=True).astype(np.float16)
        return d / np.sqrt(v + np.float16(epsilon))


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("epsilon", [1e-5, 1e-12])
def test_the_rows_that_a_layer_norm_survives(epsilon: float, stored: bool) -> None:
    source = layer_norm(f"{epsilon:.15f}")
    report = rx.inspect(half(source) if stored else source, health=True)
    assert [one.kind for one in report.health] == ["residual sum", "norm"]
    norm = report.health[1]
    assert (norm.op, norm.computed, norm.converted) == ("Pow", "float16", not stored)
    signs = np.resize([1.0, -1.0], 8)
    grid = 2.0 ** (np.arange(-24 * 8, 16 * 8) / 8)
    fine = [size for size in grid if np.allclose(np.abs(steps(size * signs, epsilon)), 1, atol=0.3)]
    assert fine[-1] / 1.2 <= norm.largest <= 1.2 * fine[-1]
    assert norm.epsilon == np.float16(epsilon)
    assert (norm.least > 0) == (not np.isfinite(steps(0 * signs, epsilon)).all())
    cure = KEEP if epsilon == 1e-5 or not stored else STORED
    assert (norm.cure, norm.keep) == (cure, ("mean", "d", "q", "v", "a", "s"))
    assert (STORED in to_text(report)) == (cure == STORED)


def test_an_epsilon_that_is_stored_again_cures_rows_of_zeros() -> None:
    zeros = {"x": np.zeros((1, 8), np.float16), "r": np.zeros((1, 8), np.float16)}
    source, finite = half(layer_norm("0.000000000001")), []
    for epsilon in (0.0, 6.1e-5):
        eps = next(one for one in source.graph.initializer if one.name == "eps")
        eps.CopyFrom(numpy_helper.from_array(np.array(epsilon, np.float16), "eps"))
        result = run_session(open_session(source.SerializeToString(), threads=1), zeros)["y"]
        finite.append(bool(np.isfinite(result).all()))
        runs = rx.inspect(source, inputs=zeros).health_runs
        assert [run.odd > 0 for run in runs[:2]] == [not finite[-1]] * 2
    assert finite == [False, True]


@pytest.mark.parametrize("root", ["l = ReduceL2 <axes = [-1]> (x) s = Add (l, r)",
    "q = Mul (x, x) l = ReduceMean <axes = [-1]> (q) a = Add (l, r) s = Sqrt (a)"])  # fmt: skip
def test_a_norm_that_cannot_be_cut_out_has_a_reason(root: str) -> None:
    """Its epsilon is an input; the range of its rows is known."""
    source = model(f"{root} y = Div (x, s)", "float[B, 8] x, float r")
    feeds = {"x": np.full((2, 8), 3, np.float32), "r": np.array(1, np.float32)}
    (norm,) = rx.inspect(source, inputs=feeds).health
    assert (norm.kind, norm.site, norm.measured) == ("norm", "l", 3.0)
    assert "epsilon" in norm.problem


def test_what_recognition_refuses_is_examined() -> None:
    """A second root is no RMSNorm; two epsilons are none that one node has."""
    body = """q = Mul (x, x) v = ReduceMean <axes = [-1]> (q) a = Add (v, eps) s = Sqrt (a)
        t = Sqrt (s) y = Div (x, t)"""
    report = rx.inspect(model(body, "float[B, 8] x"), health=True)
    assert (len(report.fused), len(report.refused)) == (0, 1)
    (norm,) = report.health
    assert (norm.kind, norm.op, norm.cure) == ("norm", "Mul", KEEP)
    assert 250 < norm.largest < 256


@pytest.mark.parametrize(
    ("op", "more", "constants"),
    [("LayerNormalization", "w", WEIGHTS), ("Softmax", "", EPS), ("LpNormalization", "", EPS)],
)
def test_operators_that_sum_in_float32_are_ranges(op: str, more: str, constants: str) -> None:
    operands = ", ".join(filter(None, ("h", more)))
    source = model(f"h = Add (x, r) y = {op} ({operands})", INPUTS, constants)
    feeds = {"x": np.full((2, 8), 30000, np.float32), "r": np.zeros((2, 8), np.float32)}
    report = rx.inspect(source, inputs=feeds)
    kinds = [one.kind for one in report.health]
    assert kinds == [*(["residual sum"] if op != "Softmax" else []), op]
    assert not any(one.cure or one.beyond for one in report.health)
    assert [run.odd for run in report.health_runs] == [0, 0]
