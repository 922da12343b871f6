"""Several models for ``inspect``; its ``--require``; suggestions."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from .conftest import Run, model


@pytest.fixture
def one(tmp_path: Path) -> Path:
    path = tmp_path / "one.onnx"
    onnx.save(model(1), path)
    return path


def test_inspect_requires(run: Run, three: Path, mixed: Path) -> None:
    assert run("inspect", three, "--require", "all").code == 0
    assert run("inspect", three, "--require", "3").code == 0
    for target in ([], ["--target", "ort"]):
        unmet = run("inspect", three, "--require", "4", *target)
        unmet.assert_error(5, "3 norms can be one node")
    run("inspect", mixed, "--require", "all").assert_error(5, "epsilon-not-constant")
    several = run("inspect", three, mixed, "--require", "all", "-q")
    several.assert_error(5, "mixed.onnx: 2 norms can be one node, 1 refused")
    assert several.text == "5 of 6 RMSNorms can be one node, in 2 graphs\n"
    assert "written" not in several.stderr


def test_a_model_that_cannot_be_read_does_not_hide_the_others(run: Run, one: Path) -> None:
    done = run("inspect", "none.onnx", one, "-q")
    done.assert_error(3, "none.onnx")
    assert done.text == "1 of 1 RMSNorm can be one node, in 1 graph\n"
    run("inspect", "none.onnx", "neither.onnx").assert_error(3, "none.onnx")


@pytest.mark.parametrize(
    ("arguments", "suggested"),
    [
        (["optimise", "one.onnx"], "'optimize'"),
        (["plugin", "buld"], "'build'"),
        (["inspect", "one.onnx", "--taget", "ort"], "'--target'"),
        (["inspect", "oen.onnx"], "'one.onnx'"),
        (["verify", "one.onnx", "one.onx"], "'one.onnx'"),
        (["optimize", "one.onnx", "-o", "x.onnx", "--for", "onnxruntim"], "'onnxruntime'"),
        (["bench", "one.onnx", "--target", "potable,ort"], "'portable'"),
    ],
)
def test_what_is_mistyped_is_suggested(
    run: Run, one: Path, arguments: list[str], suggested: str
) -> None:
    one.with_suffix(".engine").write_bytes(b"vtrt")
    done = run(*arguments)
    assert done.code in (2, 3)
    assert "id you mean " in done.stderr
    assert suggested in done.stderr
