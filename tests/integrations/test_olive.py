"""The pass in a workflow that Olive runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.cli.conftest import model

pytestmark = pytest.mark.thorough  # importing Olive takes half a minute


def _need_olive() -> None:
    """In each test, so that a plain run does not import it."""
    pytest.importorskip("olive", reason="olive-ai is not installed: pip install '.[olive]'")


@pytest.fixture
def run_workflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    _need_olive()
    from olive.workflows import run

    from rmsnorm_export.integrations.olive import package_config

    monkeypatch.chdir(tmp_path)
    local = {
        "type": "LocalSystem",
        "accelerators": [{"device": "cpu", "execution_providers": ["CPUExecutionProvider"]}],
    }

    def workflow(path: Path, **options: object) -> list[Path]:
        run(
            {
                "input_model": {"type": "ONNXModel", "model_path": str(path)},
                "passes": {"norms": {"type": "RMSNormExport", **options}},
                "systems": {"local": local},
                "host": "local",
                "target": "local",
                "output_dir": str(tmp_path / "out"),
                "cache_dir": str(tmp_path / "cache"),
            },
            package_config=package_config(),
        )
        return sorted((tmp_path / "out").rglob("*.onnx"))

    return workflow


def _norms(path: Path) -> int:
    nodes = onnx.load(path).graph.node
    return sum(node.op_type == "SimplifiedLayerNormalization" for node in nodes)


def test_a_workflow_makes_norms_one_node(run_workflow: Any, tmp_path: Path) -> None:
    onnx.save(model(3), tmp_path / "three.onnx")
    (made,) = run_workflow(tmp_path / "three.onnx", target="ort", prove=True, require="all")
    assert _norms(made) == 3


def test_weights_in_a_file_of_their_own_come_along(run_workflow: Any, tmp_path: Path) -> None:
    place = tmp_path / "big.onnx"
    onnx.save(model(2), place, save_as_external_data=True, location="big.data", size_threshold=0)
    (made,) = run_workflow(place, target="ort")
    (tmp_path / "big.data").unlink()
    assert _norms(made) == 2  # loads with its weights


def test_a_requirement_that_is_not_met_ends_the_run(
    run_workflow: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Olive logs the error of a pass, and produces nothing."""
    onnx.save(model(2, refused=1), tmp_path / "mixed.onnx")
    assert run_workflow(tmp_path / "mixed.onnx", require="all") == []
    assert "--require all is not met" in caplog.text


def test_the_printed_configuration_has_the_passes_of_olive_too() -> None:
    _need_olive()
    done = subprocess.run(
        [sys.executable, "-m", "rmsnorm_export.integrations.olive"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert {"RMSNormExport", "OnnxConversion"} <= set(json.loads(done.stdout)["passes"])
