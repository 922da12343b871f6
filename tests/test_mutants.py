"""A fault of a bound, tolerance, guard or refusal is noticed by a test of the default run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools import mutants
from tests.tools.mutants import MUTANTS, PACKAGE, ROOT, Mutant


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mutants.copy_of_package(tmp_path_factory.mktemp("mutants"))


def test_each_stands_once_in_the_package_and_its_test_exists() -> None:
    assert [problem for mutant in MUTANTS if (problem := mutant.problem(ROOT / PACKAGE))] == []
    assert len({mutant[:3] for mutant in MUTANTS}) == len(MUTANTS) >= 30


def test_a_row_that_fits_no_more_says_so() -> None:
    for row, words in (
        (("proof/judge.py", "import", "", "proof/test_cut.py::test_inside_a_subgraph"), "times"),
        (("proof/judge.py", "no such text", "", MUTANTS[0].test), "0 times"),
        (("proof/judge.py", "MATHEMATICS = 1e-10", "", "proof/test_cut.py::test_x"), "no test"),
    ):
        assert words in Mutant(*row).problem(ROOT / PACKAGE)


@pytest.mark.thorough
def test_without_a_fault_all_tests_pass(package: Path) -> None:
    assert mutants.failure(package, *(mutant.test for mutant in MUTANTS)) == ""


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_is_noticed(mutant: Mutant, package: Path) -> None:
    assert mutants.killed(package, mutant), f"{mutant.test} passes with this fault"
