"""A file of less than 10 KB is answered in 5 s and 500 MB, whatever it asks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _answers(step: int, offset: int) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "recognize.attacks", str(step), str(offset)],
        cwd=ROOT / "tests",
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done.stdout + (done.stderr[-2000:] if done.returncode else "")


def test_a_sample_of_the_attacks() -> None:
    assert _answers(11, 0) == ""


@pytest.mark.thorough
@pytest.mark.parametrize("offset", range(4))
def test_all_attacks(offset: int) -> None:
    assert _answers(4, offset) == ""
