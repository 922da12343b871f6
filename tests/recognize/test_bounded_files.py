"""A file of less than 10 KB is answered in 5 s and 500 MB, whatever it asks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("step", "offset"),
    [(11, 0), *(pytest.param(4, offset, marks=pytest.mark.thorough) for offset in range(4))],
)
def test_every_attack_is_answered(step: int, offset: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "recognize.attacks", str(step), str(offset)],
        cwd=ROOT / "tests",
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("", 0), done.stderr[-2000:]
