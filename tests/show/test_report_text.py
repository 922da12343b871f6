"""The text of a report: sites and refusals that differ in names alone are one, counts are right."""

from __future__ import annotations

import math
from typing import Any

import pytest
from samples import ALIKE, PROOF, REFUSAL, REPORT, SITE, change, sites

from rmsnorm_export.show import to_text

HUNDRED = sites(100) + sites(100, "/layers.{}/post/Mul_1", op="SkipRMSNorm", epsilon=0.5)
FORTY = tuple(
    change(REFUSAL, node=f"/head{i}/Add", found=f"the graph input eps_{i}") for i in range(40)
)
ALIKES = tuple(change(ALIKE, node=f"/b.{i}/Div") for i in range(200))
MODULES = tuple(change(SITE, name=f"node_{i}/N", module=f"layers.{i}.norm") for i in range(3))
WORSE = change(PROOF, max_ulp=2.0, error_after=0.625, bound_ulp=4.0)
FAILED = change(PROOF, passed=False, reason="3 ulp", max_ulp=math.nan)
PROVED = change(SITE, proof=PROOF)

HUNDREDS = """200 of 200 RMSNorms can be one node
100 x  RMSNorm      float32  n=40  epsilon=1e-06  exact  scale_before_cast=1
100 x  SkipRMSNorm  float32  n=40  epsilon=0.5    exact  scale_before_cast=1
nodes  /layers.{0-99}/norm/Mul_1
nodes  /layers.{0-99}/post/Mul_1"""
EVERY_SITE = """was    Pow ReduceMean Add Sqrt Reciprocal Mul
/layers.29/norm/Mul_1  RMSNorm   exact     float32  40    1e-06          /layers.0/norm/Pow, \
/layers.0/norm/Mul_1"""
REFUSED = """1 of 41 RMSNorms are one node: 1 fused, 40 refused
40 x  epsilon-not-constant: epsilon is not a constant
nodes  /head{0-39}/Add
found  the graph input eps_{0-39}
fix    make it an initializer"""
APART = """1 of 2 RMSNorms are one node: 1 fused, 1 refused; 200 look-alikes left alone
200 x  layer-norm: this is a LayerNorm
nodes  /b.{0-199}/Div"""
PLANNED = "3 of 4 RMSNorms can be one node: 1 fusable, 2 already one node, 1 refused"
ALONE = "no RMSNorm found; 1 look-alike left alone"
FORM = "(1 form, each site's scale)"
WORST = f"""proofs: 2 of 2 sites hold {FORM}, computed by onnxruntime 9.9 (CPU)
largest difference from the original: 2 ulp (4 allowed), at w
largest error against float64: 0.75 ulp before, 0.625 ulp after"""
FAILING = f"""proofs: 1 of 3 sites hold {FORM}, computed by onnxruntime 9.9 (CPU)
largest difference from the original: nan ulp (1 allowed), at w"""


@pytest.mark.parametrize(
    ("lines", "changes", "verbose", "other"),
    [
        (HUNDREDS, {"fused": HUNDRED, "planned": True}, 0, "/layers.7/"),
        (EVERY_SITE, {"fused": sites(30)}, 1, "29 x"),
        (REFUSED, {"refused": FORTY}, 0, "/head7/"),
        (APART, {"refused": (REFUSAL, *ALIKES)}, 0, ALIKE.hint),
        (PLANNED, {"kept": sites(2), "refused": (REFUSAL,), "planned": True}, 0, "were"),
        (ALONE, {"fused": (), "refused": (ALIKE,)}, 0, "refused"),
        ("from   layers.{0-2}.norm", {"fused": MODULES, "planned": True}, 0, "layers.0"),
        (WORST, {"fused": (PROVED, change(SITE, name="w", proof=WORSE))}, 0, "failed"),
        (
            FAILING,
            {"fused": (PROVED, change(SITE, name="w", proof=FAILED), SITE)},
            0,
            "of 2 sites hold",
        ),
    ],
)
def test_the_text_of_a_report(
    lines: str, changes: dict[str, Any], verbose: int, other: str
) -> None:
    text = to_text(change(REPORT, **changes), verbose=verbose)
    assert set(lines.splitlines()) <= {line.strip() for line in text.splitlines()}
    assert other not in text


@pytest.mark.parametrize(
    ("used", "allowed", "words"),
    [
        (("exact", "exact"), "reordered", "numerics exact (allowed: reordered),"),
        (("exact", "reordered"), "reordered", "numerics reordered,"),
        (("reordered", "upcast"), "unclamped", "numerics upcast (allowed: unclamped),"),
        ((), "reordered", "numerics up to reordered,"),
    ],
)
def test_the_numerics_are_those_of_the_sites(
    used: tuple[str, ...], allowed: str, words: str
) -> None:
    fused = tuple(change(SITE, numerics=one) for one in used)
    assert words in to_text(change(REPORT, fused=fused, numerics=allowed))


def test_sites_that_differ_in_one_fact_are_groups_of_their_own() -> None:
    changes = ({"op": "GatedRMSNorm"}, {"n": None}, {"numerics": "upcast"}, {"epsilon": 1e-5})
    variants = (SITE, *(change(SITE, **one) for one in (*changes, {"attributes": {}})))
    text = to_text(change(REPORT, fused=variants, planned=True))
    assert text.count("1 x ") == len(variants)
    assert "n=?" in text
    assert to_text(change(REPORT, notes=("x",)), verbose=-1) == f"{REPORT.headline()}\n"
