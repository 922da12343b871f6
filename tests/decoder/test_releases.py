"""Other releases of transformers, each in a folder of its own: what a user of them sees."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx.parser
import pytest

import rmsnorm_export as rx

MODEL = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 17]> main (float[N, 8] x) => (float[N, 8] y)'
    "{ y = Identity(x) }"
)
ROOT = Path(__file__).parents[2]
CHECKS = "release or names or understood or cannot or manifest or tried or client"


def test_what_another_release_breaks_is_said_to_be_its_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a release that was tried it is an error of this package."""
    fusions = pytest.importorskip("transformers.exporters.onnxruntime_fusions")
    monkeypatch.setattr(fusions, "_STEPS", (1,))
    with pytest.raises(TypeError):
        rx.optimize(MODEL, fusions="cpu")
    monkeypatch.setattr("rmsnorm_export.decoder.release.TRANSFORMERS", "transformers<5")
    with pytest.raises(rx.InputError, match="was not tried, transformers<5 was") as caught:
        rx.optimize(MODEL, fusions="cpu")
    assert "TypeError" in caught.value.found


def run(*command: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with the release that is in a folder."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    words = [sys.executable, *map(str, command)]
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)


def installed(requirement: str, folder: Path) -> Path:
    how = ["install", "--quiet", "--no-deps", "--target", folder, requirement]
    done = run("-m", "pip", "--disable-pip-version-check", *how, folder=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("requirement", ["transformers==5.23.0"])
def test_the_interface_holds(requirement: str, tmp_path: Path) -> None:
    folder = installed(requirement, tmp_path / "release")
    tests = ["tests/test_private_names.py", "tests/decoder/test_generation.py"]
    done = run("-m", "pytest", "-q", "-n", "0", *tests, "-k", CHECKS, folder=folder)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.thorough
@pytest.mark.parametrize("requirement", ["transformers", "transformers==5.22.0"])
def test_a_release_works_or_is_refused(requirement: str, tmp_path: Path) -> None:
    """The newest one, and the last whose exporter keeps no record."""
    folder = installed(requirement, tmp_path / "release")
    config, made = ROOT / "docs/examples/decoder/config.json", tmp_path / "made"
    command = ["export", config, "--task", "generation", "-o", made, "--verify"]
    done = run("-m", "rmsnorm_export", *command, folder=folder)
    if done.returncode or "5.22" in requirement:
        assert done.returncode in (3, 6)
        assert "error: " in done.stderr
        assert "Internal error" not in done.stderr
        assert "transformers" in done.stderr
        assert not made.exists()
    else:
        assert "greedy tokens are the same" in done.stdout
