"""The text of a report: what it says for many, few and no norms."""

from __future__ import annotations

import math
from typing import Any

import pytest
from samples import ALIKE, PROOF, REFUSAL, REPORT, SITE, change, sites

from rmsnorm_export.show import show_blocks, to_text
from rmsnorm_export.show.text import render

HUNDRED = sites(100) + sites(100, "/layers.{}/post/Mul_1", op="SkipRMSNorm", epsilon=0.5)
VARIANTS = (
    SITE,
    change(SITE, op="GatedRMSNorm", n=None),
    change(SITE, numerics="upcast"),
    change(SITE, epsilon=1e-5),
    change(SITE, attributes={}),
)
FORTY = tuple(
    change(REFUSAL, node=f"/head{i}/Add", found=f"the graph input eps_{i}") for i in range(40)
)
ALIKES = tuple(change(ALIKE, node=f"/b.{i}/Div") for i in range(200))
MODULES = tuple(change(SITE, name=f"node_{i}/N", module=f"layers.{i}.norm") for i in range(3))
WORSE = change(PROOF, max_ulp=2.0, error_after=0.625, bound_ulp=4.0)
FAILED = change(PROOF, passed=False, reason="3 ulp", max_ulp=math.nan)
PROVED = change(SITE, proof=PROOF)
MARKUP = "[red]x[/red] :smile: [/] {0}"

HUNDREDS = """200 of 200 RMSNorms are one node
100 x  RMSNorm      float16  n=4096  epsilon=1e-06  exact  scale_before_cast=1
100 x  SkipRMSNorm  float16  n=4096  epsilon=0.5    exact  scale_before_cast=1
nodes  /layers.{0-99}/norm/Mul_1
nodes  /layers.{0-99}/post/Mul_1"""
EVERY_SITE = """/layers.29/norm/Mul_1
was    Pow ReduceMean Add Sqrt Reciprocal Mul Mul
/layers.0/norm/Pow, /layers.0/norm/Mul_1"""
REFUSED = """1 of 41 RMSNorms are one node: 1 fused, 40 refused
refused (40): RMSNorms that were not fused
40 x  epsilon-not-constant: epsilon is not a constant
nodes  /head{0-39}/Add
found  the graph input eps_{0-39}
fix    make it an initializer"""
APART = """1 of 2 RMSNorms are one node: 1 fused, 1 refused; 200 look-alikes left alone
look-alikes (200): no RMSNorms, left alone
200 x  layer-norm: this is a LayerNorm
nodes  /b.{0-199}/Div"""
PLANNED = """3 of 4 RMSNorms can be one node: 1 fusable, 2 already one node, 1 refused
no target, numerics reordered, 0.00 s
refused (1): RMSNorms that cannot be fused"""
WORST = """proofs: 2 of 2 sites hold, computed by onnxruntime 9.9 (CPU)
largest difference from the original: 2 ulp (4 allowed), at w
largest error against float64: 0.75 ulp before, 0.625 ulp after"""
FAILING = """proofs: 1 of 3 sites hold, computed by onnxruntime 9.9 (CPU)
largest difference from the original: nan ulp (1 allowed), at w"""

CASES: list[tuple[dict[str, Any], int, str, str]] = [
    ({"fused": HUNDRED}, 0, HUNDREDS, "/layers.7/"),
    ({"fused": sites(30)}, 1, EVERY_SITE, "30 x"),
    ({"refused": FORTY}, 0, REFUSED, "/head7/"),
    ({"refused": (REFUSAL, *ALIKES)}, 0, APART, ALIKE.hint),
    (
        {"kept": sites(2), "refused": (REFUSAL,), "planned": True, "target": None},
        0,
        PLANNED,
        "were",
    ),
    ({"fused": ()}, 0, "no RMSNorm found, and nothing that looks like one", "fused ("),
    ({"fused": (), "refused": (ALIKE,)}, 0, "no RMSNorm found; 1 look-alike left alone", "refused"),
    ({"fused": MODULES}, 0, "from   layers.{0-2}.norm", "layers.0"),
    ({"fused": (PROVED, change(SITE, name="w", proof=WORSE))}, 0, WORST, "failed"),
    ({"fused": (PROVED, change(SITE, name="w", proof=FAILED), SITE)}, 0, FAILING, "of 2"),
    ({"fused": (change(SITE, name=MARKUP),)}, 0, f"nodes  {MARKUP}", "\x1b"),
    (
        {"opset_after": 23, "functions": 2},
        0,
        "model.onnx: opset 18 -> 23, 1,234 nodes -> 1,200 + 2 functions",
        "note",
    ),
]
"""Changes of a report, verbosity -> lines of its text, and what is not in it."""


@pytest.mark.parametrize(("changes", "verbose", "lines", "other"), CASES)
def test_the_text_of_a_report(
    changes: dict[str, Any], verbose: int, lines: str, other: str
) -> None:
    text = to_text(change(REPORT, **changes), verbose=verbose)
    assert set(lines.splitlines()) <= {line.strip() for line in text.splitlines()}
    assert other not in text


def test_sites_that_differ_in_one_fact_are_groups_of_their_own() -> None:
    text = to_text(change(REPORT, fused=VARIANTS))
    assert text.count("1 x ") == len(VARIANTS)
    assert to_text(change(REPORT, notes=("x",)), verbose=-1) == f"{REPORT.headline()}\n"
    assert "n=?" in text


def test_styles_only_on_request() -> None:
    assert render(show_blocks(REPORT), styled=True).startswith("\x1b[32m\x1b[1m1 of 1 RMSNorm")
