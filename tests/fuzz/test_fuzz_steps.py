"""Norms of which one step is drawn at random compute what they did; a few here, thousands in a
thorough run."""

from __future__ import annotations

import collections
import random

import pytest

from fuzz.steps import draw
from rmsnorm_export.lower.targets import TARGETS
from tests.tools.judge import CLASSES, InvalidError, Subject, judge

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

_AT_ONCE = 100


@pytest.mark.parametrize(
    "start",
    [0, *(pytest.param(k * _AT_ONCE, marks=pytest.mark.thorough) for k in range(1, 40))],
)
def test_what_was_fused_computes_the_same(start: int) -> None:
    """Exact and proved, in the class that fuses most, and to some target in some class."""
    counts: collections.Counter[str] = collections.Counter()
    for number in range(start, start + _AT_ONCE):
        rng, drawn = random.Random(f"settings {number}"), draw(number)
        try:
            subject = Subject(drawn.model, drawn.feeds, number)
        except InvalidError:
            continue
        exact = {"target": "portable", "numerics": "exact", "prove": True}
        most = {"target": "portable", "numerics": "upcast"}
        other = {"target": rng.choice(list(TARGETS)), "numerics": rng.choice(CLASSES)}
        verdict = judge(subject, [exact, most, other])
        counts["judged"] += 1
        counts["fused"] += verdict.norms > 0
        assert not verdict.findings, (number, drawn.done, verdict.findings)
    assert counts["judged"] > _AT_ONCE / 3
    assert counts["fused"] > _AT_ONCE / 10
