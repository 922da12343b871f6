"""``check``: what is wrong with a library is found, whatever it does to the process.

The libraries are compiled from fake_plugin.cpp, one for each fault, with the self-test of the real
one, and used by it, and in the genuine registries where a TensorRT runtime is installed.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rmsnorm_export.errors import BackendMissingError, InputError, UsageError
from rmsnorm_export.show.plugin import check_failure
from rmsnorm_export.system.packages import is_installed
from rmsnorm_export.tensorrt import plugin
from rmsnorm_export.tensorrt.plugin import checking
from rmsnorm_export.tensorrt.plugin.probe import DIRECT, RUNTIMES, run_probe
from tests.plugins.plugin_standin import (
    AUTOLOAD,
    TENSORRT,
    compile_library,
    fake_plugin,
    make_standin,
    needs_build,
    needs_headers,
)

pytestmark = needs_build

INSTALLED = [runtime for runtime in RUNTIMES if is_installed(runtime)]
needs_runtime = pytest.mark.skipif(
    not INSTALLED, reason="no TensorRT runtime: pip install tensorrt_lean to enable"
)


def _direct(library: Path, timeout: float = 60) -> plugin.RuntimeCheck:
    return run_probe(DIRECT, "load_library", library, timeout=timeout)


def _failed(trial: plugin.RuntimeCheck) -> set[str]:
    return {check.name for check in trial.checks if not check.passed}


def _passed() -> plugin.RuntimeCheck:
    """What the self-test of the real library comes to; no stand-in here is without a fault."""
    return plugin.RuntimeCheck(DIRECT, "", "l.so", "dlopen", "passed", "")


MISSING = {"creator SkipRMSNorm", "creator GatedRMSNorm", "creator RotaryRMSNorm"}
"""The fake has one creator only."""


def test_what_accepts_everything_fails_at_the_faults_only(tmp_path: Path) -> None:
    trial = _direct(fake_plugin(tmp_path))
    assert trial.status == "failed"
    failed = _failed(trial)
    assert {name for name in failed if not name.startswith("refuse RMSNorm: ")} == MISSING
    refusals = {check.name for check in trial.checks if check.name.startswith("refuse")}
    assert refusals < failed
    assert "refuse RMSNorm: epsilon is negative" in refusals
    created = [check for check in trial.checks if check.name.startswith("create ")]
    assert len(created) >= 9
    assert all(check.passed and check.detail == "1 outputs" for check in created)
    assert trial.creators[0].name == "RMSNorm"
    assert trial.creators[0].fields[:2] == ("epsilon", "axis")


@pytest.mark.parametrize(
    ("bug", "name", "word"),
    [
        ("refuse all", "create RMSNorm: defaults", "refused"),
        ("lose field", "create RMSNorm: defaults", "axis was given"),
        ("no clone", "create RMSNorm: defaults", "no clone"),
        ("one more output", "create RMSNorm: defaults", "2 outputs, the operator 1"),
        ("no timing id", "create RMSNorm: defaults", "timing cache"),
        ("attached differs", "create RMSNorm: defaults", "attached copy serialises other"),
        ("other namespace", "creator RMSNorm", "no creator is"),
        ("other fields", "creator RMSNorm", "its fields are"),
        ("no creator", "creator RMSNorm", "no creator is"),
        ("other kind", "getCreators", "PLUGIN CREATOR_V2"),
    ],
)
def test_each_fault_is_found(tmp_path: Path, bug: str, name: str, word: str) -> None:
    trial = _direct(fake_plugin(tmp_path, bug))
    assert trial.status == "failed"
    (check,) = [check for check in trial.checks if check.name == name]
    assert not check.passed
    assert word in check.detail


@pytest.mark.parametrize(
    ("bug", "words"),
    [
        ("crash", ("SIGSEGV", "create RMSNorm: defaults")),
        ("abort", ("SIGABRT", "getCreators")),
        ("exit", ("exit code 3", "getCreators")),
    ],
)
def test_a_crash_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(checking, "is_installed", lambda _: False)
    result = plugin.check(fake_plugin(tmp_path, bug))
    assert not result.passed
    trial = result.runtimes[0]
    assert (trial.runtime, trial.status) == (DIRECT, "crashed")
    for word in words:
        assert word in trial.detail


def test_a_hang_is_a_finding(tmp_path: Path) -> None:
    trial = _direct(fake_plugin(tmp_path, "hang"), timeout=2)
    assert trial.status == "timeout"
    assert "getCreators" in trial.detail


def test_a_library_without_a_self_test_has_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was tried but its loading; a runtime can try it."""
    library = fake_plugin(tmp_path, self_test=False)
    trial = _direct(library)
    assert (trial.status, [check.name for check in trial.checks]) == ("missing", ["dlopen"])
    assert "no self-test" in trial.detail
    info = plugin.inspect_library(library)
    assert (info.style, info.problem, info.creators) == ("load_library", "", ())
    monkeypatch.setattr(checking, "is_installed", lambda _: False)
    result = plugin.check(library)
    assert not result.passed
    assert "The plugin does not work." in check_failure(result)
    passed = dataclasses.replace(trial, runtime="tensorrt", status="passed")
    monkeypatch.setattr(checking, "is_installed", lambda runtime: runtime == "tensorrt")
    monkeypatch.setattr(
        checking, "run_probe", lambda runtime, *_, **__: trial if runtime == DIRECT else passed
    )
    assert plugin.check(library).passed


@needs_runtime
@pytest.mark.parametrize("runtime", INSTALLED)
def test_genuine_registries(tmp_path: Path, runtime: str) -> None:
    trial = run_probe(runtime, "load_library", fake_plugin(tmp_path), timeout=120)
    assert trial.status == "failed"
    assert trial.version
    others = {name for name in _failed(trial) if not name.startswith("refuse RMSNorm: ")}
    assert others == MISSING
    crash = tmp_path / "crash"
    crash.mkdir()
    trial = run_probe(runtime, "load_library", fake_plugin(crash, "crash"), timeout=120)
    assert (trial.status, "SIGSEGV" in trial.detail) == ("crashed", True)


@needs_runtime
def test_a_registry_that_refuses_the_library(tmp_path: Path) -> None:
    library = compile_library(tmp_path / "l.so", AUTOLOAD)
    trial = run_probe(INSTALLED[0], "load_library", library, timeout=120)
    assert trial.status == "failed"
    assert "load_library" in trial.detail


def test_a_library_for_another_tensorrt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "rmsnorm_export: no plugin: the library was built for version 10, found 11"
    source = f'#include <cstdio>\n{AUTOLOAD}static int x = std::fputs("{text}\\n", stderr);\n'
    library = compile_library(tmp_path / "l.so", source)
    other = run_probe(DIRECT, "dlopen", library, timeout=60)
    assert other.status == "incompatible"
    assert other.detail == "the library was built for TensorRT 10, the runtime is 11"
    # One runtime that cannot serve it is no fault of the library; when none can, it does not work.
    good = _passed()
    monkeypatch.setattr(checking, "is_installed", lambda _: True)
    statuses: dict[str, plugin.RuntimeCheck] = {DIRECT: good, "tensorrt": good}

    def answer(runtime: str, *_: object, **__: object) -> plugin.RuntimeCheck:
        return dataclasses.replace(statuses.get(runtime, other), runtime=runtime)

    monkeypatch.setattr(checking, "run_probe", answer)
    assert plugin.check(library).passed
    del statuses["tensorrt"]
    result = plugin.check(library)
    assert not result.passed
    assert "no installed runtime is of the version" in result.notes[0]


def test_runtimes_that_are_missing_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "is_installed", lambda _: False)
    library = compile_library(tmp_path / "l.so", AUTOLOAD)
    result = plugin.check(library)
    assert not result.passed, "nothing was tried but its loading"
    assert [trial.status for trial in result.runtimes] == ["missing"] * 4
    assert result.runtimes[1].detail == "pip install tensorrt"
    assert "no TensorRT runtime is installed" in result.notes[0]
    monkeypatch.setattr(checking, "run_probe", lambda *_, **__: _passed())
    assert plugin.check(library).passed


def test_a_runtime_that_cannot_be_imported_is_no_fault_of_the_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorrt.py").write_text("raise ImportError('libnvinfer.so.11 is not there')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(checking, "RUNTIMES", ("tensorrt",))
    monkeypatch.setattr(
        checking,
        "run_probe",
        lambda runtime, *a, **k: _passed() if runtime == DIRECT else run_probe(runtime, *a, **k),
    )
    result = plugin.check(compile_library(tmp_path / "l.so", AUTOLOAD))
    assert result.passed
    assert [trial.status for trial in result.runtimes] == ["passed", "broken"]
    assert "ImportError: libnvinfer.so.11 is not there" in result.runtimes[1].detail
    assert "no TensorRT runtime is installed" in result.notes[0]


def test_what_cannot_be_checked(tmp_path: Path) -> None:
    with pytest.raises(BackendMissingError, match="not built"):
        plugin.check(cache=tmp_path / "empty")
    with pytest.raises(InputError, match="cannot be used"):
        plugin.check(tmp_path / "missing.so")
    with pytest.raises(UsageError):
        plugin.check(timeout=0)


@pytest.mark.parametrize(
    ("name", "brings"),
    [
        ("libcudart.so.99", "pip install nvidia-cuda-runtime, and"),
        ("libother.so.1", "install what has it, and"),
    ],
)
def test_a_library_that_needs_a_missing_one(tmp_path: Path, name: str, brings: str) -> None:
    missing = compile_library(tmp_path / name, 'extern "C" int f() { return 1; }')
    source = f'extern "C" int f();\n{AUTOLOAD}\nint g() {{ return f(); }}\n'
    library = compile_library(tmp_path / "l.so", source, f"-L{tmp_path}", f"-l:{missing.name}")
    assert plugin.inspect_library(library).needed[0] == name
    missing.unlink()
    result = plugin.check(library)
    assert not result.passed
    assert [trial.status for trial in result.runtimes] == ["failed"]
    assert f"{name}, which is not found" in result.runtimes[0].detail
    assert result.libraries[0].fix.startswith(brings)


def test_both_libraries_of_the_cache_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "is_installed", lambda name: name in INSTALLED[:1])
    standin = make_standin(tmp_path)
    plugin.build(**standin.arguments)  # type: ignore[arg-type]
    result = plugin.check(cache=standin.cache)
    assert [info.style for info in result.libraries] == ["load_library", "dlopen"]
    assert len(result.runtimes) == 2 * (1 + len(RUNTIMES))
    assert not result.passed


@needs_headers
@pytest.mark.slow
def test_the_real_plugin() -> None:
    built = plugin.build(arch="90", tensorrt_include=TENSORRT)
    for library in built.libraries:
        result = plugin.check(library.path)
        bad = [trial for trial in result.runtimes if trial.status not in ("passed", "missing")]
        # A runtime of another major version refuses the library in words.
        assert [trial for trial in bad if trial.status != "incompatible"] == []
        direct = result.runtimes[0]
        assert len(direct.checks) > 100
        assert {"RMSNorm", "SkipRMSNorm", "GatedRMSNorm"} <= {c.name for c in direct.creators}


_COUNT = (
    "import tensorrt_lean as trt; registry = trt.get_plugin_registry();"
    "print(sum(c.plugin_namespace == 'rmsnorm_export' for c in registry.all_creators))"
)


@needs_headers
@pytest.mark.slow
def test_preloaded_after_tensorrt_the_plugin_registers() -> None:
    """The order that ``plugin lines`` gives for Triton and Polygraphy."""
    spec = importlib.util.find_spec("tensorrt_lean_libs")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("no tensorrt_lean: pip install tensorrt_lean to enable")
    (runtime,) = Path(spec.submodule_search_locations[0]).glob("libnvinfer_lean.so.*")
    built = plugin.build(arch="90", tensorrt_include=TENSORRT)
    if built.tensorrt.split(".")[0] != runtime.suffix[1:]:
        pytest.skip("headers and tensorrt_lean differ in their major version")
    done = subprocess.run(
        [sys.executable, "-c", _COUNT],
        env=os.environ | {"LD_PRELOAD": f"{runtime}:{built.path('dlopen')}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) > 3
