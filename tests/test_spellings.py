"""Every spelling is found, nothing else is, and no number changes more than was declared.

Hypothesis profiles (``conftest``) say how many examples are drawn.
"""

from __future__ import annotations

import functools

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spellings import run
from spellings.case import Case
from spellings.choices import FRAME_OPTIONS, SINGLE, single
from spellings.look_alikes import LOOK_ALIKES
from spellings.place import build
from spellings.strategy import look_alikes, true_norms

import rmsnorm_export as rx

TARGETS = ("portable", "onnx", "ort")
NUMERICS = ("exact", "reordered", "upcast")


def shown(value: object) -> str:
    return "+".join(sorted(value)) or "none" if isinstance(value, frozenset) else str(value)


# Every target is held against the same models.
built = functools.cache(lambda name, value: build(*single(name, value)))
alike = functools.cache(lambda name: LOOK_ALIKES[name].build())


def prove_ground_truth(case: Case) -> None:
    """The model is valid, runs, and computes in float64 what the case claims."""
    onnx.checker.check_model(case.model, full_check=True)
    outputs = run.outputs(case)
    for name, expected in (case.expected or {}).items():
        actual = outputs[name]
        problem = run.disagreement(actual, expected, run.tolerance(case, actual), case.axes)
        assert not problem, f"{name}: {problem}"


def judge(case: Case, target: str, numerics: str) -> None:
    """Optimizes a case and holds the result against its ground truth."""
    before = case.model.SerializeToString(deterministic=True)
    result = rx.optimize(case.model, target=target, numerics=numerics)
    assert case.model.SerializeToString(deterministic=True) == before, "the input was changed"
    report = result.report
    optimized = ir.serde.serialize_model(result.model)
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
    check_valid(case, optimized)
    # A scale may be spread over the row of a norm that is one node already.
    changed = bool(report.fused) or report.nodes_after > report.nodes_before
    compare(case, optimized, changed=changed)


NATIVE = {"RMSNormalization", "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"}


def operators(model: onnx.ModelProto) -> set[str]:
    """Return the operators of the graph, its subgraphs and the functions."""
    parts = ir.serde.deserialize_model(model)
    holders = (parts.graph, *parts.functions.values())
    return {node.op_type for holder in holders for node in holder.all_nodes()}


def check_valid(case: Case, model: onnx.ModelProto) -> None:
    """``onnx.checker`` accepts the model; ONNX Runtime does for what only that one knows."""
    foreign = "SimplifiedLayerNormalization" in operators(model)
    if not foreign:
        onnx.checker.check_model(model, full_check=True)
    elif case.runs:
        run.session(model)


def compare(case: Case, model: onnx.ModelProto, *, changed: bool) -> None:
    """The outputs of the optimized model against those of the source."""
    assert [output.name for output in model.graph.output] == [
        output.name for output in case.model.graph.output
    ]
    if not case.runs and operators(model) & NATIVE:
        return  # nothing here computes these operators in bfloat16 as the targets do
    wanted, outputs = run.outputs(case), run.outputs(case, model)
    for name, expected in wanted.items():
        actual = outputs[name]
        assert actual.dtype == expected.dtype
        if not changed:
            assert np.array_equal(*(value.astype(np.float64) for value in (actual, expected)), True)
            continue
        problem = run.disagreement(actual, expected, run.tolerance(case, expected), case.axes)
        assert not problem, f"{name}: {problem}"


# the generator itself


@pytest.mark.parametrize(("name", "value"), SINGLE, ids=shown)
def test_ground_truth_of_each_choice(name, value):
    spelling, frame = single(name, value)
    settled = frame.settled() if name in FRAME_OPTIONS else spelling.settled(frame.settled())
    assert getattr(settled, name) == value, "the choice is not what gets built"
    prove_ground_truth(built(name, value))


@given(true_norms())
def test_ground_truth_of_drawn_norms(case):
    prove_ground_truth(case)


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_look_alike_is_a_valid_model(name):
    for opset in LOOK_ALIKES[name].opsets:
        prove_ground_truth(LOOK_ALIKES[name].build(opset))


def test_ground_truth_notices_a_wrong_claim():
    """The comparison can fail: another epsilon, one wrong element."""
    case = build(*single("epsilon_value", 1e-3))
    ((name, expected),) = case.expected.items()
    for wrong in (expected * (1 + 1e-4), np.where(expected == expected.max(), 0, expected)):
        assert run.disagreement(
            run.outputs(case)[name], wrong, run.tolerance(case, np.zeros(1, np.float32))
        )


# recall and numbers


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "value"), SINGLE, ids=shown)
def test_each_choice_is_found(name, value, target):
    judge(built(name, value), target, "exact")


@given(true_norms(), st.sampled_from(TARGETS), st.sampled_from(NUMERICS))
def test_drawn_norms_are_found(case, target, numerics):
    judge(case, target, numerics)


# look-alikes


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_look_alike_keeps_its_numbers(name, target):
    judge(alike(name), target, "upcast")


@given(look_alikes(), st.sampled_from(TARGETS), st.sampled_from(NUMERICS))
def test_drawn_look_alikes_keep_their_numbers(case, target, numerics):
    judge(case, target, numerics)
