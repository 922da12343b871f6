"""The benchmark against LayerNorm runs, and its ratios are those of the samples."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.tools.lib.command import module_command, module_environment


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        module_command("bench.layernorm", *arguments),
        env=module_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_quick(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    done = _run("--quick", "--output", str(output))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(output.read_text(encoding="utf-8"))
    assert report["wrong"] == []
    groups = {row["group"] for row in report["summary"]}
    assert groups == {"torch eager, forward", "torch eager, forward + backward"} | {
        "ONNX Runtime, forward"
    }
    for group in groups:
        rows = {row["norm"]: row for row in report["runs"] if row["group"] == group}
        assert len(rows) >= 4
        assert "LayerNorm" in rows
        base = rows["LayerNorm"]["samples"]
        for row in rows.values():
            ratios = sorted(a / b for a, b in zip(row["samples"], base, strict=True))
            assert row["ratio"]["median"] == pytest.approx(ratios[1])
            assert row["seconds"]["median"] == sorted(row["samples"])[1] > 0
    page = output.with_suffix(".md").read_text(encoding="utf-8")
    assert page.count("| ours") == 5


@pytest.mark.parametrize("arguments", [["--shapes", "512"], ["--shapes", "axb"], ["--rounds", "0"]])
def test_bad_options_are_refused(arguments: list[str]) -> None:
    done = _run(*arguments)
    assert done.returncode == 2
    assert "error: --" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_norm_is_reported_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import norms

    monkeypatch.setattr(norms, "_layer_norm", norms._written_out)
    contenders, wrong = norms.onnx_contenders(4, 8)
    assert [line.split(":")[0] for line in wrong] == ["ONNX Runtime, LayerNorm"]
    assert "LayerNorm" not in {contender.name for contender in contenders}
