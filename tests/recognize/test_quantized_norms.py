"""QuantizeLinear and DequantizeLinear inside a norm, and behind it: each has its own reason."""

from __future__ import annotations

import re

import pytest

import rmsnorm_export as rx
from recognize.text_models import CONSTANTS, WEIGHT, model, norm

QUANTIZERS = (
    "float qs = {0.01}, int8 qz = {0}, int8 q_two = {127}, float two_s = {0.015748}, "
    "float root = {2.8284271}"
)
ROUND = "{v}i = QuantizeLinear({x}, qs, qz)\n {v} = DequantizeLinear({v}i, qs, qz)\n"
NORM = norm("x", "y")


def rounded(value: str) -> str:
    """Return the norm with a value that is quantized and made a float again."""
    behind = ROUND.format(v=value, x=f"{value}0")
    return re.sub(rf"\b{value} = (.*)\n", rf"{value}0 = \1\n {behind}", NORM)


TO_THE_ROOT = NORM[: NORM.index("n = ")]
UNIT = "l = ReduceL2<axes = [-1], keepdims = 1>(x)\n u0 = Div(x, l)\n" + ROUND.format(v="u", x="u0")
CASES = {
    "the numerator": (ROUND.format(v="v", x="x") + NORM.replace("Div(x", "Div(v"), "Div 'n'", 0),
    "two": ("v = DequantizeLinear(q_two, two_s, qz)\n" + NORM.replace("two)", "v)"), "Linear", 0),
    **{value: (rounded(value), "Linear", 0) for value in ("sq", "m", "e", "s")},
    "the inverse with its scale": (
        f"{TO_THE_ROOT}i = Reciprocal(s)\n p = Mul(i, w)\n {ROUND.format(v='q', x='p')}"
        "y = Mul(x, q)", "Linear", 0,
    ),
    "a row of length one": (f"{UNIT}n = Mul(u, root)\n y = Mul(n, w)", "Linear", 0),
    "behind the division": (rounded("n"), "", 5),
    "behind the norm": (rounded("y"), "", 6),
    "one row made a float twice": (
        "i = QuantizeLinear(x, qs, qz)\n a = DequantizeLinear(i, qs, qz)\n"
        "b = DequantizeLinear(i, qs, qz)\n" + norm("a", "y").replace("Div(a", "Div(b"), "", 6,
    ),
}  # fmt: skip
"""Body, what is found where it is refused, nodes of the norm where it is one."""


@pytest.mark.parametrize("name", CASES)
def test_it_is_told_where_a_norm_is_quantized(name: str) -> None:
    body, place, nodes = CASES[name]
    report = rx.inspect(model(body, constants=f"{WEIGHT}, {CONSTANTS}, {QUANTIZERS}"))
    assert [len(site.nodes) for site in report.fused] == ([nodes] if nodes else [])
    assert [(r.reason, r.kind) for r in report.refused] == (
        [] if nodes else [("quantized", "norm")]
    )
    assert all(place in refusal.found for refusal in report.refused)


def test_a_quantized_row_of_length_one_is_a_look_alike_where_no_root_of_n_follows() -> None:
    report = rx.inspect(model(f"{UNIT}y = Tanh(u)", constants=QUANTIZERS))
    assert not report.fused
    assert [(r.reason, r.kind) for r in report.refused] == [("not-the-mean", "look-alike")]
