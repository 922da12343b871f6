"""``dtype`` in a pipeline."""

from __future__ import annotations

from pathlib import Path

import onnx

import rmsnorm_export as rx
from tests.precision.networks import network


def test_a_pipeline_converts_and_compares_within_the_type(tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "m.onnx")
    steps = '[model]\npath = "m.onnx"\n[optimize]\ndtype = "f16"\n[verify]\n'
    (tmp_path / "p.toml").write_text(f'[pipeline]\nname = "m"\nfolder = "out"\n{steps}')
    done = rx.run_pipeline(tmp_path / "p.toml")
    assert done.error is None
    found = onnx.load(next((tmp_path / "out").rglob("*.onnx")))
    assert {tensor.data_type for tensor in found.graph.initializer if len(tensor.dims) == 2} == {10}
