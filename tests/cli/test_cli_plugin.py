"""``plugin`` as a program: documents, exit codes, errors in three lines. See also tests/plugins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rmsnorm_export.cli import plugin as commands
from rmsnorm_export.diagnosis import Diagnosis
from rmsnorm_export.records import from_json
from rmsnorm_export.tensorrt import plugin
from rmsnorm_export.tensorrt.plugin import (
    Built,
    CheckResult,
    CommandLines,
    Plugins,
    RuntimeCheck,
    checking,
)
from tests.plugins.plugin_standin import (
    AUTOLOAD,
    Standin,
    compile_library,
    fake_plugin,
    make_standin,
    needs_build,
)

from .conftest import Run

pytestmark = needs_build


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standin:
    """A stand-in whose project is the one that is built by default."""
    found = make_standin(tmp_path)
    monkeypatch.setattr("rmsnorm_export.tensorrt.plugin.building._PACKAGED", found.source)
    for name in ("TENSORRT_INCLUDE_DIR", "TENSORRT_ROOT", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return found


def _options(standin: Standin) -> list[object]:
    return ["--arch", "90", "--cuda", standin.nvcc, "--tensorrt", standin.headers]


def test_build_list_lines(run: Run, standin: Standin, tmp_path: Path) -> None:
    done = run("plugin", "build", *_options(standin), "-o", "out", "--format", "json")
    assert (done.code, done.stderr) == (0, "")
    built = from_json(done.text, Built)
    assert built.folder.parent == tmp_path / "rmsnorm_export" / "plugins"
    assert [path.parent for path in built.copies] == [tmp_path / "out"] * 3
    text = run("plugin", "build", *_options(standin)).text
    assert text.startswith("plugin was built before: TensorRT 11.1.0, CUDA 13.0.88, sm_90\n")
    assert str(built.path("dlopen")) in text
    assert run("plugin", "build", *_options(standin), "-q").text.count("\n") == 1
    assert standin.builds() == 1

    done = run("plugin", "list", "--format", "json")
    (entry,) = from_json(done.text, Plugins).entries
    assert entry.built is not None
    assert entry.built.libraries == built.libraries
    assert built.key in run("plugin", "list").text

    done = run("plugin", "lines", "m.onnx", "--format", "json")
    assert from_json(done.text, CommandLines) == plugin.command_lines("m.onnx")
    done = run("plugin", "lines", "m.onnx", "--for", "python")
    assert done.text == f"{plugin.command_lines(loader='python').lines[0].text}\n"
    text = run("plugin", "lines").text
    of_tensorrt = [n for n in plugin.PROGRAMS if plugin.LOADERS[n] != "register"]
    assert text.count("# ") > len(of_tensorrt)
    quiet = run("plugin", "lines", "-q").text
    assert quiet.splitlines() == [line.text for line in plugin.command_lines().lines]


def test_the_choices_are_those_of_the_api() -> None:
    assert tuple(plugin.PROGRAMS) == commands.PROGRAMS


def test_check(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "is_installed", lambda _: False)
    library = fake_plugin(tmp_path)
    done = run("plugin", "check", library, "--format", "json")
    done.assert_error(4, "The plugin does not work", "librmsnorm_plugin.so without TensorRT")
    result = from_json(done.text, CheckResult)
    assert not result.passed
    assert done.json["error"]["exit_code"] == 4
    text = run("plugin", "check", library).text
    assert text.startswith("the plugin does NOT work: 0 of ")
    assert "FAILED  refuse RMSNorm: epsilon is negative: it was accepted" in text
    assert "of a later version" not in text
    assert "more (-v)" in text
    verbose = run("plugin", "check", library, "-v").text
    assert "FAILED  refuse RMSNorm: an attribute of a later version: it was accepted" in verbose
    assert "ok      create RMSNorm: defaults: 1 outputs" in verbose


def test_check_that_passes(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "is_installed", lambda _: False)
    library = compile_library(tmp_path / "l.so", AUTOLOAD)
    untried = run("plugin", "check", library)
    untried.assert_error(4, "does not work", "no self-test", "pip install tensorrt_lean")
    passed = RuntimeCheck("none", "", "l.so", "dlopen", "passed", "")
    monkeypatch.setattr(checking, "run_probe", lambda *_, **__: passed)
    done = run("plugin", "check", library)
    assert (done.code, done.stderr) == (0, "")
    assert done.text.startswith("the plugin works: 1 of 1 trial passed\n")
    assert "pip install tensorrt_lean" in done.text


def test_a_crash_in_the_library_is_exit_code_4(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "is_installed", lambda _: False)
    done = run("plugin", "check", fake_plugin(tmp_path, "crash"))
    done.assert_error(4, "SIGSEGV", "create RMSNorm: defaults")


def test_list_of_a_file_that_is_of_no_use(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad\x1b[2J.so").write_text("hello")
    done = run("plugin", "list", "bad\x1b[2J.so")
    done.assert_error(3, "A library cannot be used")
    assert b"\x1b" not in done.stdout
    assert "\x1b" not in done.stderr
    good = fake_plugin(tmp_path)
    done = run("plugin", "list", good)
    assert done.code == 0
    assert "namespace rmsnorm_export 1: RMSNorm" in done.text
    assert "linked against" in run("plugin", "list", good, "-v").text


def test_what_is_missing_is_exit_code_6(
    run: Run, standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", "elsewhere")
    for cuda, place in ((("nowhere",), "nowhere (as given)"), ((), "elsewhere (from CUDA_HOME)")):
        done = run("plugin", "build", "--runtime", "onnxruntime", "--cuda", *cuda, "--arch", "90")
        assert place in done.stderr
    run("plugin", "build", "--cuda", "nowhere", "--tensorrt", standin.headers).assert_error(
        6, "without nvcc", "nowhere", "pip install 'cmake>=3.24' ninja"
    )
    done = run("plugin", "build", "--cuda", standin.nvcc, "--tensorrt", "no", "--format", "json")
    done.assert_error(6, "TensorRT headers", "libnvinfer-headers-dev")
    assert (done.json["kind"], done.json["exit_code"]) == ("error", 6)
    for command in ("check", "lines"):
        run("plugin", command).assert_error(6, "not built", "plugin build")


def test_a_compile_error_is_shown_before_the_three_lines(run: Run, standin: Standin) -> None:
    (standin.source / "plugin.cpp").write_text("int x = no_such_name;\n")
    done = run("plugin", "build", *_options(standin))
    assert done.code == 1
    shown, lines = done.stderr.splitlines()[:-3], done.stderr.splitlines()[-3:]
    assert all(line.startswith("| ") for line in shown)
    assert any("no_such_name" in line for line in shown)
    assert lines[0] == "error: The plugin did not compile"
    assert lines[2].startswith("fix: read the log, /")
    run("plugin", "build", *_options(standin), "-q").assert_error(1, "no_such_name")


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        ([], 2, "Missing command"),
        (["make"], 2, "make"),
        (["build", "--jobs", "0"], 2, "--jobs"),
        (["build", "--arch", "hopper"], 2, "hopper"),
        (["check", "a", "b"], 2, "b"),
        (["check", "--timeout", "0"], 2, "--timeout"),
        (["check", "missing.so"], 3, "no such file"),
        (["lines", "--for", "tensorflow"], 2, "tensorflow"),
        (["lines", "--library", "missing.so"], 3, "no such file"),
    ],
)
@pytest.mark.usefixtures("standin")
def test_wrong_usage(run: Run, arguments: list[str], code: int, word: str) -> None:
    run("plugin", *arguments).assert_error(code, word)


def test_a_wrong_output(run: Run, standin: Standin, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    run("plugin", "build", *_options(standin), "-o", "file").assert_error(3, "no folder")
    done = run("plugin", "build", *_options(standin), "-o", "-")
    done.assert_error(2, "no folder")
    assert standin.builds() == 0


def test_doctor_shows_the_tools_and_the_builds(
    run: Run, standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmsnorm_export import diagnosis as _doctor

    monkeypatch.setattr(_doctor, "_KNOWN", _doctor._KNOWN[:1])
    monkeypatch.setattr("rmsnorm_export.tensorrt.plugin.toolchain._SYSTEM_INCLUDES", ())
    text = run("doctor").text
    assert "built: none" in text
    assert "for plugin build: apt install libnvinfer-headers-dev" in text
    run("plugin", "build", *_options(standin))
    diagnosis = from_json(run("doctor", "--format", "json").text, Diagnosis)
    names = [tool.name for tool in diagnosis.build_tools]
    assert names[:3] == ["nvcc", "host compiler", "cmake"]
    (entry,) = diagnosis.plugins
    (entry.folder / "librmsnorm_plugin.so").write_bytes(b"")
    assert f"built: {entry.folder.name}  damaged: librmsnorm_plugin.so" in run("doctor").text


@pytest.mark.parametrize("name", ["", "build", "list", "check", "lines"])
def test_help_loads_nothing_but_click(name: str) -> None:
    heavy = ("numpy", "onnx", "rich", "logging", "ctypes", "rmsnorm_export.tensorrt.plugin")
    code = (
        "import sys\nfrom rmsnorm_export.cli.main import main\n"
        f"main({['plugin', *filter(None, [name]), '--help']!r})\n"
        f"print('loaded', *sorted(set({heavy!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: rmsnorm-export plugin")
    assert done.stdout.splitlines()[-1] == "loaded"
