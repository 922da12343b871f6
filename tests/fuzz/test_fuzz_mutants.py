"""Mutations: each can be made, says what it did, and comes out the same a second time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import rmsnorm_export as rx
from fuzz.norms import norm
from tests.tools.fuzz.change import MUTATIONS
from tests.tools.fuzz.mutants import Mutated, Step, apply, draw
from tests.tools.fuzz.subject import InvalidError, Mutant
from tests.tools.fuzz.work import Plan, replay, work

SEEDS = [norm("llama", "float16"), norm("gemma", "float", 17), norm("llama", "double", 23)]


def made(name: str) -> list[Mutated]:
    steps = [Step(name, number) for number in range(12)]
    found = [apply(seed, (step,)) for seed in SEEDS for step in steps]
    return [mutated for mutated in found if mutated.steps]


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_makes_valid_models_and_says_how(name: str) -> None:
    mutants = made(name)
    assert mutants, "nothing to change in any seed"
    valid = 0
    for mutated in mutants:
        (words,) = mutated.done
        assert words.startswith(f"{name}: ")
        try:
            Mutant(mutated.model, mutated.signature)
        except InvalidError:
            continue
        valid += 1
    assert valid, [mutated.done for mutated in mutants]


def test_a_mutant_is_the_same_every_time() -> None:
    for index in range(20):
        (_, first), (_, second) = (draw(SEEDS, 3, index) for _ in range(2))
        assert first.model == second.model
        assert first.done == second.done
    assert draw(SEEDS, 3, 0)[1].model != draw(SEEDS, 4, 0)[1].model


def test_a_step_undone_leaves_the_others_as_they_were() -> None:
    steps = (Step("view_there_and_back", 5), Step("epsilon_value", 6), Step("extra_reader", 7))
    both = apply(SEEDS[0], steps)
    fewer = apply(SEEDS[0], steps[1:])
    assert both.steps == steps
    assert fewer.steps == steps[1:]
    assert fewer.done[0] == both.done[1]


def doubled_epsilon(model: onnx.ModelProto, **options: Any) -> Any:
    """What `optimize` does, on a model whose norms it reads wrongly."""
    wrong = onnx.ModelProto()
    wrong.CopyFrom(model)
    for node in wrong.graph.node:
        if node.output[0] == "epsilon":
            node.attribute[0].t.CopyFrom(numpy_helper.from_array(np.float32(2e-3)))
    return rx.optimize(wrong, **options)


def test_findings_are_written_small_and_judged_again(tmp_path: Path) -> None:
    """Mutations that a finding does not need are undone; the file shows it again."""
    plan = Plan(1, 0, 1, 12, 0.0, False, tmp_path)
    counts, written = work(plan, [norm("llama", "float", 23)], doubled_epsilon)
    assert counts.numbers["judged"] > 5
    assert counts.numbers["finding: mathematics"] > 5
    path = next(path for path in written if "mathematics" in path.name)
    about = json.loads(path.with_suffix(".json").read_text())
    assert about["mutations"] == []
    assert "outside of" in about["detail"]
    assert "mathematics" in {finding.kind for finding in replay(path, doubled_epsilon)}
    assert replay(path) == []


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    seeds = [norm("llama", "float", 23)]
    whole, _ = work(Plan(2, 0, 1, 8, 0.0, False, tmp_path / "whole"), seeds)
    work(Plan(2, 0, 1, 3, 0.0, False, tmp_path / "parts"), seeds)
    parts, _ = work(Plan(2, 0, 1, 8, 0.0, False, tmp_path / "parts"), seeds)
    assert parts.numbers == whole.numbers
    assert whole.numbers["drawn"] == 8
    state = tmp_path / "parts" / "state-2-0-of-1.json"
    kept = json.loads(state.read_text())
    state.write_text(json.dumps({**kept, "began": 8, "next": 8}))
    crashed, _ = work(Plan(2, 0, 1, 10, 0.0, False, tmp_path / "parts"), seeds)
    assert crashed.numbers["crashes"] == 1
    assert crashed.numbers["drawn"] == 9
