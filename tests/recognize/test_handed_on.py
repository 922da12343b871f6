"""Functions that hand epsilon on as an attribute to others, which hold the norm or a part of it."""

from __future__ import annotations

import pytest

import rmsnorm_export as rx
from tests.recognize import text_models as text

IMPORTS = ', "my" : 1'
HEAD = '\n<domain: "my", opset_import: ["" : 17, "my" : 1]>\n'
HANDED = "<epsilon: float = @epsilon>"
EPSILON = "e = Constant<value_float: float = @epsilon>()"
ROOT = f"""two = Constant<value_float = 2.0>() {EPSILON} q = Pow(x, two)
 m = ReduceMean<axes = [-1]>(q) a = Add(m, e) r = Sqrt(a)"""
WHOLE = HEAD + f"Norm<epsilon> (x, w) => (y) {{ {ROOT} d = Div(x, r) y = Mul(d, w) }}"
PARTS = (
    HEAD + f"Root<epsilon> (x) => (r) {{ {ROOT} }}"
    + HEAD + f"Norm<epsilon> (x, w) => (y) {{ r = my.Root{HANDED}(x) d = Div(x, r) y = Mul(d, w) }}"
)  # fmt: skip
OUTER = HEAD + f"Outer<epsilon> (x, w) => (y) {{ t = Tanh(x) y = my.Norm{HANDED}(t, w) }}"
BOTH = HEAD + (
    f"Both<epsilon> (x, w) => (y) {{ a = my.Outer{HANDED}(x, w) y = my.Outer{HANDED}(a, w) }}"
)


@pytest.mark.parametrize("inner", [WHOLE, PARTS])
@pytest.mark.parametrize(
    ("body", "epsilons"),
    [("y = my.Norm<epsilon = 0.5>(x, w)", [0.5]),
     ("y = my.Outer<epsilon = 0.5>(x, w)", [0.5]),
     ("a = my.Outer<epsilon = 0.5>(x, w) y = my.Outer<epsilon = 0.25>(a, w)", [0.5, 0.25]),
     ("a = my.Both<epsilon = 0.5>(x, w) y = my.Norm<epsilon = 0.25>(a, w)", [0.5, 0.5, 0.25])],
)  # fmt: skip
def test_epsilon_is_that_of_the_outermost_call(
    inner: str, body: str, epsilons: list[float]
) -> None:
    source = text.model(body, imports=IMPORTS, functions=inner + OUTER + BOTH)
    result = rx.optimize(source)
    assert [site.epsilon for site in result.report.fused] == epsilons
    assert not result.report.refused
    text.optimized(source, "portable")
