"""``expand`` as a program: short for ``optimize --target plain --site "*"``."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from .conftest import Run


def op_types(path: Path) -> list[str]:
    loaded = onnx.load(path)
    onnx.checker.check_model(loaded, full_check=True)
    return [node.op_type for node in loaded.graph.node]


@pytest.fixture
def fused(run: Run, three: Path) -> Path:
    """Three norms, each one node."""
    assert run("optimize", three, "-o", "fused.onnx").code == 0
    return three.with_name("fused.onnx")


def test_every_norm_is_written_out_to_the_same_bytes(run: Run, fused: Path) -> None:
    before = fused.read_bytes()
    done = run("expand", fused, "-o", "plain.onnx", "--prove")
    assert (done.code, done.stderr) == (0, "")
    assert "3 of 3 RMSNorms" in done.text
    plain, again = fused.with_name("plain.onnx"), fused.with_name("again.onnx")
    assert op_types(plain).count("ReduceMean") == 3
    assert not onnx.load(plain).functions
    assert run("optimize", fused, "-o", again, "--target", "plain", "--site", "*").code == 0
    assert again.read_bytes() == plain.read_bytes()
    assert fused.read_bytes() == before
    run("expand", fused, "-o", "out.onnx", "--site", "head").assert_error(2, "'head'", "layers.0")
    run("expand", fused, "-o", fused).assert_error(2, "fused.onnx", "--force")
