"""``plugin`` as a program: output and exit codes; real CMake builds a small project."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmsnorm_export.records import from_json
from rmsnorm_export.tensorrt import plugin
from rmsnorm_export.tensorrt.plugin.result import Built, CommandLines
from tests.plugins.test_plugin import project, pytestmark  # noqa: F401

from .conftest import Run

BUILD = ("plugin", "build", "--runtime", "onnxruntime")


@pytest.mark.usefixtures("project")
def test_build_lines_and_check(run: Run, tmp_path: Path) -> None:
    done = run(*BUILD, "-o", tmp_path / "out", "--format", "json")
    assert (done.code, done.stderr) == (0, "")
    built = from_json(done.text, Built)
    text = run(*BUILD).text
    assert text.startswith("built for onnxruntime in ")
    assert str(built.path("register")) in text
    assert run(*BUILD, "-q").text.count("\n") == 1
    done = run("plugin", "lines", "m.onnx", "--format", "json")
    assert from_json(done.text, CommandLines) == plugin.command_lines("m.onnx")
    line = run("plugin", "lines", "--for", "onnxruntime-native").text
    assert line == f"options.register_custom_ops_library({str(built.path('register'))!r})\n"
    done = run("plugin", "check", "--runtime", "onnxruntime")
    done.assert_error(4, "The plugin does not work", "librmsnorm_onnxruntime.so in onnxruntime")
    assert "FAILED" in done.text


def test_a_compile_error_names_the_log(run: Run, project: Path) -> None:  # noqa: F811
    project.write_text("int x = no_such_name;\n")
    run(*BUILD).assert_error(1, "did not compile", "no_such_name", "read the log, /")


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        ([], 2, "Missing command"),
        (["make"], 2, "make"),
        (["build", "--arch", "hopper"], 2, "hopper"),
        ([*BUILD[1:], "--tensorrt", "/"], 2, "headers"),
        (["check"], 6, "plugin build"),
        (["check", "missing.so"], 3, "missing.so"),
        (["check", "librmsnorm_torch.so"], 3, "no such file"),
        (["lines", "--for", "tensorflow"], 2, "tensorflow"),
        (["lines"], 6, "plugin build"),
    ],
)
def test_wrong_usage(run: Run, arguments: list[str], code: int, word: str) -> None:
    run("plugin", *arguments).assert_error(code, word)
