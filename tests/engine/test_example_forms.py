"""``docs/examples/tensorrt_forms.py``: its engines are built by TensorRT-RTX, and not run."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from engine.conftest import SHAPES, needs_rtx

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "tensorrt_forms.py"


@needs_rtx
def test_every_form_is_built_and_what_does_not_run_is_told(one_norm: Path, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("tensorrt_forms", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    rows = list(example.rows(str(one_norm), SHAPES, "tensorrt-rtx", tmp_path))
    assert [row[0] for row in rows] == list(example.FORMS)
    assert [row[3] for row in rows[:3]] == ["fused"] * 3
    assert all("no GPU" in row[-1] for row in rows[:3])  # or it is a machine that runs them
    assert "no plugin layers" in rows[3][-1]
