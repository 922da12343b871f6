"""``expand`` as a program: what it writes, of which sites, and what it says of bad input."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from .conftest import Run


@pytest.fixture
def fused(run: Run, three: Path) -> Path:
    """Three norms, each one node: ``/layers.0/norm/...`` and so on."""
    done = run("optimize", three, "-o", "fused.onnx")
    assert done.code == 0, done.stderr
    return three.with_name("fused.onnx")


def op_types(path: Path) -> list[str]:
    loaded = onnx.load(path)
    onnx.checker.check_model(loaded, full_check=True)
    return [node.op_type for node in loaded.graph.node]


def test_every_norm_is_written_out_to_the_same_bytes(run: Run, fused: Path) -> None:
    before = fused.read_bytes()
    done = run("expand", fused, "-o", "plain.onnx", "--prove")
    assert (done.code, done.stderr) == (0, "")
    assert done.text.startswith("3 of 3 RMSNorms are plain operators\n")
    assert "3 of 3" in done.text
    plain = fused.with_name("plain.onnx")
    assert "RMSNorm" not in op_types(plain)
    assert op_types(plain).count("ReduceMean") == 3
    assert not onnx.load(plain).functions
    assert run("expand", fused, "-o", "again.onnx").code == 0
    assert fused.with_name("again.onnx").read_bytes() == plain.read_bytes()
    assert fused.read_bytes() == before
    # And it is what optimize began with, to optimize again.
    assert run("optimize", plain, "-o", "twice.onnx", "--require", "3").code == 0


def test_bad_input(run: Run, fused: Path) -> None:
    run("expand", fused, "-o", "out.onnx", "--site", "head").assert_error(
        2, "No node that is an RMSNorm has this name", "'head'", "layers.0"
    )
    assert not fused.with_name("out.onnx").exists()
    run("expand", "none.onnx", "-o", "out.onnx").assert_error(3, "none.onnx")
    fused.with_name("bad.onnx").write_bytes(fused.read_bytes()[:99])
    run("expand", "bad.onnx", "-o", "out.onnx").assert_error(3, "bad.onnx")
    run("expand", fused, "-o", fused).assert_error(2, "fused.onnx", "--force")
    run("expand", fused, "-o", "out.onnx", "--numerics", "loose").assert_error(2, "'loose'")
    assert run("expand", fused, "-o", fused, "--force").code == 0
    assert "RMSNorm" not in op_types(fused)
