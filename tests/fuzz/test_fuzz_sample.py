"""A sample of what ``scripts/fuzz`` does for hours: nothing is wrong with any of these mutants."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.spelled import spelled_seeds
from tests.tools.fuzz.seeds import corpus_seeds
from tests.tools.fuzz.work import Counts, Plan, work


def right(counts: Counts, written: list[Path], least: int) -> None:
    found = {path.name: path.with_suffix(".json").read_text() for path in written}
    assert found == {}
    assert counts.causes == {}
    assert counts.numbers["judged"] >= least
    assert counts.numbers["with a norm"] >= least / 4
    assert counts.numbers["elements compared"] > 1000 * least


def test_mutated_spellings(tmp_path: Path) -> None:
    plan = Plan(1, 0, 1, 60, 0.0, False, tmp_path)
    right(*work(plan, spelled_seeds(80)), least=30)


@pytest.mark.export
def test_mutated_exports(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="exports come from it: pip install 'rmsnorm-export[torch]'")
    pytest.importorskip("transformers", reason="needs the catalogue: pip install transformers")
    names = (
        "LlamaRMSNorm-float32",
        "GemmaRMSNorm-float16",
        "MambaRMSNormGated-bfloat16",
        "MambaRMSNormGated-ungated-float32",
        "T5LayerNorm-float16",
        "Olmo2RMSNorm-bfloat16",
    )
    seeds = [seed for name in names for seed in corpus_seeds(name)]
    plan = Plan(2, 0, 1, 60, 0.0, False, tmp_path)
    right(*work(plan, seeds), least=35)
