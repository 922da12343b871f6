"""Every spelling is found, nothing else is, and no number changes more than was declared.

Hypothesis profiles (``conftest``) say how many examples are drawn.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spellings.case import Case
from spellings.choices import FRAME_OPTIONS, SINGLE, shown, single
from spellings.look_alikes import LOOK_ALIKES
from spellings.place import build
from spellings.strategy import look_alikes, true_norms

import rmsnorm_export as rx
from tests.sample import crossed
from tests.tools.judge import Subject, UnrunnableError, disagreements, judge

TARGETS = ("portable", "onnx", "ort")
NUMERICS = ("exact", "reordered", "upcast")


# Every target is held against the same models.
built = functools.cache(lambda name, value: build(*single(name, value)))
alike = functools.cache(lambda name: LOOK_ALIKES[name].build())


@functools.lru_cache(maxsize=1024)
def subject_of(case: Case) -> Subject | None:
    """What the model computes; None of bfloat16 inside control flow, which nothing here runs."""
    try:
        return Subject(case.model, case.feeds, alone=True)
    except UnrunnableError:
        return None


def prove_ground_truth(case: Case) -> None:
    """The model is valid, runs, and computes in float64 what the case claims."""
    subject = subject_of(case)
    assert subject is None or not disagreements(subject, case.expected or {})


def hold(case: Case, target: str, numerics: str) -> None:
    """Optimizes a case and holds the result against its ground truth."""

    def optimize(model: onnx.ModelProto, **setting: Any) -> Any:
        result = rx.optimize(model, **setting)
        report = result.report
        taken = len(report.fused) + len(report.kept)
        assert taken <= case.most, f"{taken} norms where there are {case.most}: {report.fused}"
        for r in report.refused:
            assert all((r.reason, r.message, r.found, r.hint)), r
        looser = "upcast" if case.reassociated else "reordered" if case.reordered else "exact"
        if target == "portable" and NUMERICS.index(numerics) >= NUMERICS.index(looser):
            assert taken >= case.norms, f"{taken} of {case.norms}; refused: {report.refused}"
        else:
            assert taken + len(report.refused) >= case.norms, "a norm was passed over in silence"
        if case.refusal:
            assert report.refused, "nobody is told why this is not a norm"
        return result

    setting, subject = {"target": target, "numerics": numerics}, subject_of(case)
    if subject is None:
        optimize(case.model, **setting)
    else:
        assert not judge(subject, [setting], optimize).findings


# the generator itself


@pytest.mark.parametrize(("name", "value"), SINGLE, ids=shown)
def test_ground_truth_of_each_choice(name, value):
    spelling, frame = single(name, value)
    settled = frame.settled() if name in FRAME_OPTIONS else spelling.settled(frame.settled())
    assert getattr(settled, name) == value, "the choice is not what gets built"
    prove_ground_truth(built(name, value))


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_look_alike_is_a_valid_model(name):
    """At the first opset that it has, and at those that change an operator; others are drawn."""
    opsets = LOOK_ALIKES[name].opsets
    for opset in opsets:
        if opset in (opsets[0], 13, 18, 24):
            prove_ground_truth(LOOK_ALIKES[name].build(opset))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_ground_truth_notices_a_wrong_claim(dtype):
    """The comparison can fail: one wrong element; in a wide type another epsilon."""
    spelling, frame = single("dtype", dtype)
    case = build(dataclasses.replace(spelling, epsilon_value=1e-3), frame)
    ((name, expected),) = case.expected.items()
    assert not disagreements(subject_of(case), {name: expected})
    wrong = np.where(expected == expected.max(), 0, expected)
    assert "result" in disagreements(subject_of(case), {name: wrong})
    other = disagreements(subject_of(case), {name: expected * (1 + 1e-5)})
    assert ("mathematics" in other) == dtype.endswith(("32", "64"))


# recall and numbers


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "value"), SINGLE, ids=shown)
def test_each_choice_is_found(name, value, target):
    hold(built(name, value), target, "exact")


@given(true_norms(), st.sampled_from(TARGETS), st.sampled_from(NUMERICS))
def test_drawn_norms_are_found(case, target, numerics):
    prove_ground_truth(case)
    hold(case, target, numerics)


# look-alikes


@crossed(3, name=[*LOOK_ALIKES], target=TARGETS)
def test_look_alike_keeps_its_numbers(name, target):
    hold(alike(name), target, "upcast")


REASONS = {
    "epsilon_negative": "epsilon-negative", "epsilon_twice_inside": "spelling-unknown",
    "epsilon_of_higher_rank": "epsilon-rank", "epsilon_is_overridable": "epsilon-not-constant",
    "rows_without_elements": "empty-row", "exponent_next_to_two": "exponent-not-two",
    "mean_over_first_and_last": "axes-not-trailing", "count_is_a_little_off": "not-the-mean",
}  # fmt: skip


@pytest.mark.parametrize("name", REASONS)
def test_look_alike_is_refused_for_its_own_reason(name):
    """And not because something further on happens to stop it."""
    assert [r.reason for r in rx.optimize(alike(name).model).report.refused] == [REASONS[name]]


@given(look_alikes(), st.sampled_from(TARGETS), st.sampled_from(NUMERICS))
def test_drawn_look_alikes_keep_their_numbers(case, target, numerics):
    hold(case, target, numerics)
