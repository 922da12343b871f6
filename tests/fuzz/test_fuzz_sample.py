"""A sample of what ``tests.tools.fuzz`` does for hours: nothing is wrong with any mutant."""

from __future__ import annotations

import collections
import random
from pathlib import Path

import pytest

import rmsnorm_export as rx
from fuzz.norms import norm
from fuzz.spelled import spelled_seeds
from tests.tools.fuzz.draft import MUTATIONS
from tests.tools.fuzz.judge import InvalidError, Mutant
from tests.tools.fuzz.mutants import Seed, Step, apply, corpus_seeds, draw
from tests.tools.fuzz.work import work

SEEDS = [norm("llama", "float16"), norm("gemma", "float", 17), norm("llama", "double", 23)]


def right(seeds: list[Seed], seed: int, count: int, folder: Path) -> None:
    done = work(seeds, seed, count, folder)
    assert {cause: p.with_suffix(".json").read_text() for cause, p in done.written.items()} == {}
    assert done.counts["judged"] >= count / 3
    assert done.counts["with a norm"] >= count / 5
    assert done.counts["elements compared"] > 200 * count


def test_mutated_spellings(tmp_path: Path) -> None:
    right(spelled_seeds(80), 1, 60, tmp_path)


@pytest.mark.export
def test_mutated_exports(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="exports come from it: pip install 'rmsnorm-export[torch]'")
    pytest.importorskip("transformers", reason="needs the catalogue: pip install transformers")
    names = ("LlamaRMSNorm-float32", "MambaRMSNormGated-bfloat16")
    right([seed for name in names for seed in corpus_seeds(name)], 2, 30, tmp_path)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_makes_valid_models_and_says_how(name: str) -> None:
    made = [apply(seed, (Step(name, number),)) for seed in SEEDS for number in range(12)]
    made = [mutated for mutated in made if mutated.steps]
    assert all(mutated.done[0].startswith(f"{name}: ") for mutated in made)
    assert any(valid(mutated.model, mutated.signature) for mutated in made)


def valid(model: object, signature: object) -> bool:
    try:
        Mutant(model, signature)  # type: ignore[arg-type]
    except InvalidError:
        return False
    return True


def test_a_mutant_is_the_same_every_time() -> None:
    for index in range(20):
        (_, first), (_, second) = (draw(SEEDS, 3, index) for _ in range(2))
        assert first.model == second.model
        assert first.done == second.done
    assert draw(SEEDS, 3, 0)[1].model != draw(SEEDS, 4, 0)[1].model


def norms_of(model: object) -> tuple[int, str]:
    report = rx.optimize(model, numerics="upcast").report  # type: ignore[call-overload]
    reasons = ", ".join(sorted({refusal.reason for refusal in report.refused}))
    return len(report.fused) + len(report.kept), reasons


def test_norms_are_found_behind_mutations_and_none_is_lost_without_a_reason() -> None:
    seeds = [s for s in (*spelled_seeds(60), norm(), norm("gemma", "bfloat16")) if s.norms]
    seeds = [seed for seed in seeds if norms_of(seed.model)[0] >= seed.norms]
    kept: collections.Counter[str] = collections.Counter()
    lost: collections.Counter[str] = collections.Counter()
    for index, name in enumerate(sorted(MUTATIONS) * 30):
        rng = random.Random(f"1/{index}")
        seed = rng.choice(seeds)
        mutated = apply(seed, (Step(name, rng.randrange(2**32)),))
        if not (mutated.keeps and mutated.steps and valid(mutated.model, mutated.signature)):
            continue
        norms, reasons = norms_of(mutated.model)
        kept[name] += 1
        if norms < seed.norms:
            lost[name] += 1
            assert reasons, f"silent: {seed.name}: {mutated.done}"
    assert len(kept) == 9  # all that keep the numbers
    assert kept.total() >= 100
    assert all(count <= 0.1 * kept[name] + 1 for name, count in lost.items()), (lost, kept)
    assert lost.total() <= 0.04 * kept.total()
