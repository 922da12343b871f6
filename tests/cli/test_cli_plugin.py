"""``plugin`` as a program: documents, exit codes, errors in three lines. See also tests/plugins."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.plugins.plugin_standin import (
    Standin,
    fake_plugin,
    make_standin,
    needs_build,
)

from rmsnorm_export.tensorrt.plugin import (
    checking,
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


def test_a_crash_in_the_library_is_exit_code_4(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "is_installed", lambda _: False)
    done = run("plugin", "check", fake_plugin(tmp_path, "crash"))
    done.assert_error(4, "SIGSEGV", "create RMSNorm: defaults")


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


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        ([], 2, "Missing command"),
        (["make"], 2, "make"),
        (["build", "--arch", "hopper"], 2, "hopper"),
        (["check", "a", "b"], 2, "b"),
        (["check", "missing.so"], 3, "no such file"),
        (["lines", "--for", "tensorflow"], 2, "tensorflow"),
    ],
)
@pytest.mark.usefixtures("standin")
def test_wrong_usage(run: Run, arguments: list[str], code: int, word: str) -> None:
    run("plugin", *arguments).assert_error(code, word)
