"""The benchmark of an export runs, and reports what its runs measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import export
from tests.tools.lib.command import module_command, module_environment

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("onnxscript", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("transformers", reason="pip install transformers")

pytestmark = [
    pytest.mark.export,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]


@pytest.mark.slow
def test_quick(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    command = module_command("bench.export", "--quick", "--output", str(output))
    command += ["--tools", "ours embed", "torch embed"]
    done = subprocess.run(
        command,
        env=module_environment(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(output.read_text(encoding="utf-8"))
    ours, plain = report["summary"]
    assert (ours["tool"], ours["norms"], ours["refused"]) == ("ours embed", 5, 0)
    assert ours["parameters"] == plain["parameters"] > 1e6
    assert ours["weights_mb"] == pytest.approx(ours["parameters"] * 2 / 2**20)
    for run in report["runs"]:
        assert run["weights_mb"] - 0.1 < run["read_back_mb"] < run["written_mb"]
        assert sum(stage["seconds"] for stage in run["stages"]) <= run["seconds"]
        peak = max(stage["peak_mb"] for stage in run["stages"])
        assert run["peak_over_weights"] == (peak - run["imported_mb"]) / run["weights_mb"]
    assert [stage["stage"] for stage in ours["stages"]][-1] == "writing"
    page = output.with_suffix(".md").read_text(encoding="utf-8")
    assert "| tiny | 3 | 0 | ours embed | 5, 0 | " in page


@pytest.mark.thorough  # the cast itself: tests/torch/test_cast.py
def test_a_cast_of_shards(tmp_path: Path) -> None:
    """What the check and the hashes of a cast cost beside it."""
    output = tmp_path / "cast.json"
    command = module_command("bench.export", "--quick", "--output", str(output))
    done = subprocess.run(
        [*command, "--tools", "ours cast"],
        env=module_environment(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(output.read_text(encoding="utf-8"))["summary"]
    assert (row["norms"], row["refused"]) == (5, 0)
    assert set(row["beside"]) == {"the check", "hashing"}
    for (share, *_), (memory, *_) in row["beside"].values():
        assert -1 < share < 1  # the check is the difference of two loadings
        assert memory < row["weights_mb"]
    assert row["beside"]["hashing"][0][0] > 0
    assert "the check adds" in done.stdout


def test_a_run_that_failed_is_told() -> None:
    failed = {"tool": "ours auto", "model": "7b", "status": "failed (1)", "detail": "no memory"}
    (row,) = export._summarise([failed])
    assert row["status"] == "failed (1)"
    report = {
        "date": "d",
        "machine": {"cpu": "c", "cores": 1, "memory_gib": 1, "python": "3"},
        "load_average": {"before": 0.0, "after": 0.0},
        "versions": {},
        "repeats": 1,
        "summary": [row],
    }
    page = export.markdown(report)
    assert "| failed (1) |" in page
    assert "7b, ours auto: no memory" in page


def test_the_middle_of_the_repeats() -> None:
    stage = {"stage": "s", "seconds": 1.0, "peak_mb": 5.0}
    runs = [
        {"tool": "t", "model": "m", "status": "ok", "seconds": s, "peak_over_weights": s,
         "imported_mb": 1.0, "peak_stage_mb": 2.0, "weights_mb": 1.0, "stages": [stage]}
        for s in (3.0, 1.0, 2.0)
    ]  # fmt: skip
    (row,) = export._summarise(runs)
    assert row["seconds"] == [2.0, 1.0, 3.0]
    assert row["stages"][0]["peak_mb"] == [5.0, 5.0, 5.0]
