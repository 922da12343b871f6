"""Nothing is wrong with any mutant: some here, thousands in a thorough run."""

from __future__ import annotations

import collections
import random

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rmsnorm_export as rx
from fuzz.seeds import SPELLED, norm, singles
from rmsnorm_export.lower.targets import TARGETS
from tests.tools.fuzz.draft import MUTATIONS
from tests.tools.fuzz.mutants import Mutated, Seed, apply, mutants
from tests.tools.judge import CLASSES, InvalidError, Subject, judge

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

EXPORTS = [
    "LlamaRMSNorm-float32",
    "MambaRMSNormGated-bfloat16",
    pytest.param("", marks=pytest.mark.thorough),
]
SEEDS = [norm("llama", "float16"), norm("gemma", "float32", 17), norm("llama", "float64", 23)]


def nothing_is_wrong(seeds: st.SearchStrategy[Seed], one_in: int) -> None:
    """Judge mutants, one for ``one_in`` examples of the profile: every target, one with a proof."""
    counts: collections.Counter[str] = collections.Counter()
    classes = st.fixed_dictionaries({target: st.sampled_from(CLASSES) for target in TARGETS})

    @settings(max_examples=settings.default.max_examples // one_in)
    @given(st.integers(0, 2**32 - 1), mutants(seeds), classes, st.sampled_from(sorted(TARGETS)))
    def judged(number: int, mutated: Mutated, classes: dict[str, str], proved: str) -> None:
        counts["drawn"] += 1
        try:
            mutant = Subject(mutated.model, mutated.feeds, number)
        except InvalidError:
            return
        options = [{"target": target, "numerics": name} for target, name in classes.items()]
        options.append({"target": proved, "numerics": classes[proved], "prove": True})
        verdict = judge(mutant, options)
        counts["judged"] += 1
        counts["with a norm"] += verdict.norms > 0
        counts["compared"] += verdict.compared
        assert not verdict.findings, (mutated.seed.name, mutated.done, verdict.findings)

    judged()
    assert counts["judged"] >= counts["drawn"] / 3
    assert counts["with a norm"] >= counts["drawn"] / 5
    assert counts["compared"] > 200 * counts["drawn"]


def test_mutated_spellings() -> None:
    nothing_is_wrong(SPELLED, 5)


@pytest.mark.export
@pytest.mark.parametrize("name", EXPORTS)
def test_mutated_exports(name: str) -> None:
    pytest.importorskip("torch", reason="exports come from it: pip install 'rmsnorm-export[torch]'")
    pytest.importorskip("transformers", reason="needs the catalogue: pip install transformers")
    from toolbox.corpus.exporters import norm_exports

    exports = [export for export in norm_exports(name) if export.path is not None]
    seeds = [Seed(e.key, onnx.load(e.path), e.inputs(), e.norms) for e in exports]
    nothing_is_wrong(st.sampled_from(seeds), 20)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_makes_valid_models_and_says_how(name: str) -> None:
    mutated = [apply(seed, [(name, number)]) for seed in SEEDS for number in range(12)]
    mutated = [one for one in mutated if one.done]
    assert all(one.done[0].startswith(f"{name}: ") for one in mutated)
    assert any(map(is_valid, mutated))


def is_valid(mutated: Mutated) -> bool:
    try:
        Subject(mutated.model, mutated.feeds)
    except InvalidError:
        return False
    return True


def norms_of(model: onnx.ModelProto) -> tuple[int, set[str]]:
    report = rx.optimize(model, numerics="upcast").report
    return len(report.fused) + len(report.kept), {refusal.reason for refusal in report.refused}


def test_norms_are_found_behind_mutations_and_none_is_lost_but_where_an_if_cuts_it() -> None:
    kept: collections.Counter[str] = collections.Counter()
    seeds, cut = [seed for seed in singles() if norms_of(seed.model)[0] >= seed.norms], 0
    for index, name in enumerate(sorted(MUTATIONS) * 30):
        rng = random.Random(f"1/{index}")
        seed = rng.choice(seeds)
        mutated = apply(seed, [(name, rng.randrange(2**32))])
        if not (mutated.keeps and mutated.done and is_valid(mutated)):
            continue
        norms, reasons = norms_of(mutated.model)
        kept[name] += 1
        if norms < seed.norms:
            assert reasons, f"silent: {seed.name}: {mutated.done}"
            # A norm that an If cuts in two cannot be one node: no other loss is excused.
            assert (name, reasons) == ("into_if", {"crosses-subgraph"}), (seed.name, mutated.done)
            cut += 1
    assert len(kept) == 8  # all that keep the numbers
    assert kept.total() >= 100
    assert cut <= 0.4 * kept["into_if"]
