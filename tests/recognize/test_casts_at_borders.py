"""Converters to half types put a Cast at every border: one row is cast for each of its readers, and
a root is rounded and widened again."""

from __future__ import annotations

import re

import numpy as np
import pytest

import rmsnorm_export as rx
from rmsnorm_export.runtime.session import load_session, run_session

from .text_models import CONSTANTS, WEIGHT, model, norm

HALF = "float[8] w32 = {1.5, 2, 3, 4, 5, 6, 7, 8}, float eps32 = {0.001}, int64 two = {2}"
TYPES = "w = Cast<to = 10>(w32)\n eps = Cast<to = 10>(eps32)\n"
CASTS = "a = Cast<to = 10>(x)\n b = Cast<to = 10>(x)\n c = Cast<to = 10>(x)\n"
NORM = norm("a", "y")
ROWS = {
    "numerator": NORM.replace("Div(a", "Div(b"),
    "product": NORM.replace("Pow(a, two)", "Mul(a, b)"),
    "all": NORM.replace("Pow(a, two)", "Mul(a, b)").replace("Div(a", "Div(c"),
}
OTHERS = {
    "another type": ("b = Cast<to = 10>", "b = Cast<to = 16>", "spelling-unknown"),
    "another row": ("b = Cast<to = 10>(x)", "b = Cast<to = 10>(z)", "different-numerator"),
}


def rows(shape: tuple[int, ...] = (2, 3, 8)) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def outputs(proto: bytes, x: np.ndarray) -> np.ndarray:
    (output,) = run_session(load_session(proto, threads=1), {"x": x}).values()
    return output


@pytest.mark.parametrize("name", ROWS)
def test_a_row_that_is_cast_for_each_reader_is_one(name: str) -> None:
    source = model(TYPES + CASTS + ROWS[name], outputs="float16[B,S,8] y", constants=HALF)
    result = rx.optimize(source, prove=True)
    (site,) = result.report.fused
    assert (site.numerics, site.n, site.proof and site.proof.passed) == ("exact", 8, True)
    before, after = outputs(source.SerializeToString(), rows()), outputs(result.to_bytes(), rows())
    np.testing.assert_allclose(after, before, rtol=2e-3)


@pytest.mark.parametrize("name", OTHERS)
def test_other_casts_are_another_row(name: str) -> None:
    cast, other, reason = OTHERS[name]
    body = (CASTS + ROWS["numerator"]).replace(cast, other)
    body = body.replace("Div(b", "Div(b2").replace(" n = ", " b2 = Cast<to = 10>(b)\n n = ")
    inputs = "float[B,S,8] x, float[B,S,8] z"
    report = rx.inspect(
        model(TYPES + body, inputs=inputs, outputs="float16[B,S,8] y", constants=HALF),
        numerics="upcast",
    )
    assert not report.fused
    assert [r.reason for r in report.refused] == [reason]


@pytest.mark.parametrize("value", ["sq", "m", "e", "s"])
def test_a_value_that_is_rounded_and_widened_again_takes_upcast(value: str) -> None:
    rounded = f"{value}h = Cast<to = 10>({value}0)\n {value} = Cast<to = 1>({value}h)\n"
    body = re.sub(rf"\b{value} = (.*)\n", rf"{value}0 = \1\n {rounded}", norm("x", "y"))
    source = model(body, constants=f"{WEIGHT}, {CONSTANTS}")
    (refusal,) = rx.inspect(source).refused
    assert (refusal.reason, refusal.kind) == ("numerics", "norm")
    result = rx.optimize(source, numerics="upcast", prove=True)
    assert [site.numerics for site in result.report.fused] == ["upcast"]
    x = rows()
    true = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-5) * np.array([1.5, *range(2, 9)])
    np.testing.assert_allclose(outputs(result.to_bytes(), x), true, rtol=3e-6)


def test_a_row_that_is_cast_and_cut_twice_has_its_square_and_mean() -> None:
    """One Cast and one Reshape for the squares, another of each for the numerator."""
    source = model(
        "a = Cast<to = 1>(h)\n b = Cast<to = 1>(h)\n p = Reshape(a, cut)\n q = Reshape(b, cut)\n"
        " s = Pow(p, two)\n m = ReduceMean<axes = [-1]>(s)\n e = Add(m, eps)\n r = Sqrt(e)\n"
        " n = Div(q, r)\n j = Reshape(n, joined)\n y = Mul(j, w)",
        inputs="float16[B,S,8] h", outputs="float[B,S,8] y",
        constants=f"{CONSTANTS}, {WEIGHT}, int64[4] cut = {{0, 0, 2, 4}}, "
        "int64[3] joined = {0, 0, 8}",
    )  # fmt: skip
    (site,) = rx.inspect(source).fused
    assert {"s", "m"} <= set(site.nodes)
