"""Building, checking and loading: real CMake, compilers and processes.

The project of most tests is a small one that makes a library of the right name, in a second.
"""

from __future__ import annotations

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import rmsnorm_export as rx
from rmsnorm_export.errors import BackendMissingError, InputError, UsageError
from rmsnorm_export.system.machine import Gpu
from rmsnorm_export.tensorrt import plugin
from rmsnorm_export.tensorrt.plugin import building, checking, libraries
from rmsnorm_export.tensorrt.plugin.result import BuildError, Built

pytestmark = pytest.mark.skipif(
    not all(tool.path for tool in plugin.build_tools()[1:]), reason="no C++ compiler or CMake"
)
NAME = "librmsnorm_onnxruntime.so"
GOOD = 'extern "C" void RegisterCustomOps() {}\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its one source; builds go to a cache of the test."""
    folder = tmp_path / "sources"
    shutil.copytree(libraries.SOURCES / "cmake", folder / "cmake")
    source = folder / "onnxruntime" / "library.cpp"
    source.parent.mkdir()
    source.write_text(GOOD)
    source.with_name("CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.24)\nproject(small LANGUAGES CXX)\n"
        "include(../cmake/manifest.cmake)\nadd_library(rmsnorm_onnxruntime SHARED library.cpp)\n"
        "install_with_manifest(onnxruntime rmsnorm_onnxruntime)\n"
    )
    monkeypatch.setattr(libraries, "SOURCES", folder)
    monkeypatch.setattr(libraries, "_PACKAGED", tmp_path / "none")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return source


def _build(**options: object) -> Built:
    return plugin.build(runtime="onnxruntime", **options)  # type: ignore[arg-type]


def test_a_build_is_made_once_and_found(project: Path) -> None:
    with pytest.raises(BackendMissingError, match="not built"):
        rx.session_options()
    with ThreadPoolExecutor(3) as pool:
        built = next(pool.map(lambda _: _build(), range(3)))
    library = plugin.onnxruntime_library()
    assert library == built.path("register")
    assert (built.runtime, built.cuda, built.tensorrt) == ("onnxruntime", "", "")
    before = library.stat().st_mtime_ns
    _build()
    assert library.stat().st_mtime_ns == before
    project.write_text(GOOD + "int more() { return 1; }\n")
    assert _build().path("register").stat().st_mtime_ns != before
    assert plugin.find_builds() == (libraries.find_build("onnxruntime"),)


@pytest.mark.usefixtures("project")
def test_what_is_no_longer_what_was_built_is_not_loaded() -> None:
    path = _build().path("register")
    manifest = path.with_name("rmsnorm_onnxruntime.json")
    for file, content, word in (
        (path, path.read_bytes() + b"x", "SHA-256"),
        (path, None, "none in"),
        (manifest, b"{", "damaged"),
        (manifest, b"[]", "damaged"),
        (manifest, b'{"version": "0.0.1"}', "version 0.0.1"),
    ):
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(BackendMissingError, match=word):
            plugin.onnxruntime_library()
        with pytest.raises(rx.Error):
            rx.session_options(path)
        _build()
        assert plugin.onnxruntime_library() == path


def test_the_build_of_the_wheel_is_taken(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _build().path("register").parent
    packaged = folder.rename(project.with_name("_built"))
    monkeypatch.setattr(libraries, "_PACKAGED", packaged)
    project.write_text("int x = no_such_name;")
    compiled: list[str] = []
    options = {"progress": lambda work, *_: compiled.append(work), "output": packaged / "copies"}
    built = _build(**options)
    assert built.path("register") == plugin.onnxruntime_library() == packaged / NAME
    assert [path.parent for path in built.copies] == [packaged / "copies"] * 2
    assert not compiled
    with pytest.raises(BuildError):
        _build(**options, force=True)
    assert len(compiled) == 1
    (packaged / NAME).write_text("damaged")
    project.write_text(GOOD)
    assert _build().path("register").parent == folder


def test_what_takes_minutes_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu("NVIDIA H100", "9.0", "580", "80 GiB")
    monkeypatch.setattr(building, "cores", lambda: 2)
    said = {}
    for gpus, arch in (((), None), ((gpu, gpu), None), ((gpu,), "all"), ((gpu,), "90,100")):
        monkeypatch.setattr(building, "gpus", lambda gpus=gpus: gpus)
        wanted = building._architectures(arch)
        said[arch, len(gpus)] = building._announcement("onnxruntime-cuda", wanted)
    assert "for all 9 CUDA architectures (--arch 90 builds" in said[None, 0] == said["all", 1]
    assert "architectures 90: about" in said[None, 2]
    assert "architectures 90,100: about" in said["90,100", 1]
    minutes = {key: int(re.findall(r"about (\d+) minute", text)[0]) for key, text in said.items()}
    assert 1 <= minutes[None, 2] < minutes["90,100", 1] < minutes["all", 1] < 60


def test_copies(project: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    built = _build(output=out)
    content = built.path("register").read_bytes()
    assert [path.name for path in built.copies] == [NAME, "rmsnorm_onnxruntime.json"]
    assert plugin.open_library(out / NAME).runtime == "onnxruntime"
    assert _build(output=out).copies == built.copies
    (out / NAME).write_text("mine")
    with pytest.raises(UsageError, match="replace another file"):
        _build(output=out)
    assert (out / NAME).read_text() == "mine"
    _build(output=out, force=True)
    assert (out / NAME).read_bytes() == content
    for place in (project, out / NAME / "deep"):
        with pytest.raises(InputError, match="cannot be written"):
            _build(output=place)


def test_what_does_not_build_says_why_and_leaves_the_old_one(project: Path) -> None:
    library = _build().path("register")
    before = library.read_bytes()
    project.write_text("int main() { return no_such_name; }\n")
    with pytest.raises(BuildError, match="no_such_name") as refusal:
        _build()
    assert "no_such_name" in refusal.value.log.read_text()
    project.with_name("CMakeLists.txt").write_text('message(FATAL_ERROR "nothing works today")')
    with pytest.raises(BackendMissingError, match="nothing works today"):
        _build()
    assert library.read_bytes() == before


@pytest.mark.usefixtures("project")
def test_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({"runtime": "openvino"}, {"arch": "hopper"}, {"tensorrt_include": "/"}):
        with pytest.raises(UsageError):
            plugin.build(**({"runtime": "torch"} | options))
    monkeypatch.setattr(building, "_cmake_finds_cuda", lambda: False)
    monkeypatch.setattr(building, "package_folders", lambda _: (tmp_path / "nvidia",))
    nvcc = tmp_path / "nvidia" / "cu13" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.touch()
    for cuda, root in ((None, nvcc.parents[1]), ("/opt/cuda", "/opt/cuda")):
        settings = building._cmake_settings("torch", "90,100", None, cuda)
        assert f"-DCUDAToolkit_ROOT={root}" in settings
        assert "-DCMAKE_CUDA_ARCHITECTURES=90;100" in settings
    monkeypatch.setattr(building, "_which", lambda _: "")
    with pytest.raises(BackendMissingError, match="without CMake"):
        _build()
    monkeypatch.setenv("XDG_CACHE_HOME", str(nvcc))
    with pytest.raises(InputError, match="cannot be written"):
        _build()


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("static int x = (__builtin_trap(), 1);", "SIGILL"),
        ("#include <unistd.h>\nstatic int x = sleep(60);", "within 5 s"),
        ("#include <stdlib.h>\nstatic int x = (exit(3), 1);", "exit code 3"),
        ("", "load: "),
    ],
)
def test_whatever_a_library_does_is_told(project: Path, code: str, word: str) -> None:
    project.write_text(f"{code}\n" + ("" if not code else GOOD))
    _build()
    result = plugin.check(runtime="onnxruntime", timeout=5 if "sleep" in code else 60)
    (trial,) = result.runtimes
    assert (result.passed, trial.status) == (False, "failed")
    assert word in trial.detail


def test_libraries_that_are_not_loaded(
    native_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "librmsnorm_plugin.so"
    shutil.copy(native_library, library)
    monkeypatch.setattr(checking, "is_installed", lambda _: False)
    result = plugin.check(library)
    assert (result.passed, result.runtimes[0].status) == (False, "missing")
    # One that is cut short would end the process in the linker.
    content = native_library.read_bytes()
    for name, size in ((NAME, 5000), (NAME, len(content) - 1), (NAME, 0), ("other.so", None)):
        (tmp_path / name).write_bytes(content[:size])
        with pytest.raises(InputError, match="cannot be used"):
            rx.session_options(tmp_path / name)
    with pytest.raises(InputError, match="no such file"):
        plugin.check(tmp_path / "librmsnorm_torch.so")
    with pytest.raises(InputError, match="not for register"):
        plugin.open_library(library, "register")


@pytest.mark.usefixtures("project")
def test_lines() -> None:
    library = _build().path("register")
    lines = plugin.command_lines("m n.onnx").lines
    loaders = ["onnxruntime-native", "onnxruntime-cpp", "triton-native"]
    assert [line.loader for line in lines] == loaders
    assert all(str(library) in line.text for line in lines)
    with pytest.raises(BackendMissingError, match="plugin is not built"):
        plugin.command_lines(loader="trtexec")
    with pytest.raises(UsageError, match="unknown"):
        plugin.command_lines(loader="tensorflow")


def test_the_real_kernels_pass(native_library: Path) -> None:
    """The manifest has the version of the package: a library of another is not loaded."""
    text = (libraries.SOURCES / "cmake" / "manifest.cmake").read_text()
    assert f"set(RMSNORM_EXPORT_VERSION {rx.__version__})" in text
    result = plugin.check(native_library)
    assert (result.passed, len(result.runtimes[0].checks)) == (True, 16)
