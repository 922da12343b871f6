"""Building and loading: real CMake, compilers and processes.

The project of most tests is a small one that makes a library of the right name, in a second.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import rmsnorm_export as rx
from rmsnorm_export.errors import BackendMissingError, InputError, UsageError
from rmsnorm_export.system.machine import Gpu
from rmsnorm_export.tensorrt import plugin
from rmsnorm_export.tensorrt.plugin import building, libraries
from rmsnorm_export.tensorrt.plugin.libraries import BuildError, Built
from tests.proof.sites import LLAMA, source

pytestmark = pytest.mark.skipif(
    not {"nvcc"}.issuperset(building.missing_tools()), reason="no C++ compiler or CMake"
)
NAME = "librmsnorm_onnxruntime.so"
GOOD = 'extern "C" void RegisterCustomOps() {}\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its one source; builds go to a cache of the test."""
    folder = tmp_path / "sources"
    library = folder / "onnxruntime" / "library.cpp"
    library.parent.mkdir(parents=True)
    library.write_text(GOOD)
    library.with_name("CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.24)\nproject(small LANGUAGES CXX)\n"
        "add_library(rmsnorm_onnxruntime SHARED library.cpp)\n"
        "install(TARGETS rmsnorm_onnxruntime LIBRARY DESTINATION lib COMPONENT onnxruntime)\n"
    )
    monkeypatch.setattr(libraries, "SOURCES", folder)
    monkeypatch.setattr(libraries, "_PACKAGED", tmp_path / "none")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return library


def _build(**options: object) -> Built:
    return plugin.build(runtime="onnxruntime", **options)  # type: ignore[arg-type]


def test_a_build_is_made_once_and_found(project: Path) -> None:
    with pytest.raises(BackendMissingError, match="not built") as missing:
        rx.session_options()
    assert missing.value.fix == "rmsnorm-export plugin build --runtime onnxruntime"
    with ThreadPoolExecutor(3) as pool:
        built = next(pool.map(lambda _: _build(), range(3)))
    library = plugin.onnxruntime_library()
    assert library == built.path("register")
    assert built.runtime == "onnxruntime"
    compiled = libraries.build_folder() / "onnxruntime" / NAME
    before = compiled.stat().st_mtime_ns
    _build()
    assert compiled.stat().st_mtime_ns == before
    project.write_text(GOOD + "int more() { return 1; }\n")
    assert _build().path("register").read_bytes() == compiled.read_bytes()
    assert compiled.stat().st_mtime_ns != before


@pytest.mark.usefixtures("project")
def test_what_is_not_whole_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    path = _build().path("register")
    content = path.read_bytes()
    for wrong, word in ((content[:-1], "damaged"), (b"text", "damaged"), (None, "none in")):
        path.unlink()
        if wrong is not None:
            path.write_bytes(wrong)
        with pytest.raises(BackendMissingError, match=word):
            plugin.onnxruntime_library()
        with pytest.raises(rx.Error):
            rx.session_options(path)
        _build()
        assert plugin.onnxruntime_library() == path
    monkeypatch.setattr(libraries, "version_of", lambda _: "99")  # another release
    with pytest.raises(BackendMissingError, match="none in"):
        plugin.onnxruntime_library()


PLANTED = '#include <cstdio>\nstatic FILE *file = fopen("%s", "w");\n' + GOOD


@pytest.mark.parametrize("place", ["cache", "cache/rmsnorm_export", "."])
def test_no_command_loads_what_others_could_have_planted(
    project: Path, tmp_path: Path, place: str
) -> None:
    loaded, model = tmp_path / "loaded", source(LLAMA)
    project.write_text(PLANTED % loaded)
    library = _build().path("register")
    (tmp_path / place).chmod(0o777)
    commands: list[Callable[[], object]] = [
        lambda: rx.session_options(),
        lambda: rx.session_options(library),
        lambda: rx.verify(model, model, backend_b="onnxruntime-native"),
        lambda: rx.bench(model, native=True),
        lambda: rx.optimize(model, prove=True, kernels=str(library)),
        _build,
    ]
    for command in commands:
        with pytest.raises(BackendMissingError, match="nobody else can write") as refusal:
            command()
        assert str(tmp_path / place) in refusal.value.fix
    assert not loaded.exists()
    (tmp_path / place).chmod(0o755)
    rx.session_options()
    assert loaded.exists()


def test_the_build_of_the_wheel_is_taken(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _build().path("register").parent
    packaged = folder.rename(project.with_name("_built"))
    monkeypatch.setattr(libraries, "_PACKAGED", packaged)
    project.write_text("int x = no_such_name;")
    compiled: list[str] = []
    options = {"progress": lambda work, *_: compiled.append(work)}
    built = _build(**options)
    assert built.path("register") == plugin.onnxruntime_library() == packaged / NAME
    assert not compiled
    with pytest.raises(BuildError):
        _build(**options, force=True)
    assert len(compiled) == 1
    (packaged / NAME).write_text("damaged")
    project.write_text(GOOD)
    assert _build().path("register").parent == folder


def test_what_takes_minutes_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu("NVIDIA H100", "9.0", "580", "80 GiB")
    said = {}
    for gpus, arch in (((), None), ((gpu, gpu), None), ((gpu,), "all"), ((gpu,), "90,100")):
        monkeypatch.setattr(building, "gpus", lambda gpus=gpus: gpus)
        wanted = building._architectures(arch)
        said[arch, len(gpus)] = building._announcement("onnxruntime-cuda", wanted)
    assert "for all CUDA architectures (--arch 90 builds" in said[None, 0] == said["all", 1]
    assert "architectures 90: about" in said[None, 2]
    assert "architectures 90,100: about" in said["90,100", 1]


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
            plugin.build(**({"runtime": "onnxruntime", "cuda": True} | options))
    monkeypatch.setattr(building, "_cmake_finds_cuda", lambda: False)
    monkeypatch.setattr(building, "package_folders", lambda _: (tmp_path / "nvidia",))
    nvcc = tmp_path / "nvidia" / "cu13" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.touch()
    for cuda, root in ((None, nvcc.parents[1]), ("/opt/cuda", "/opt/cuda")):
        settings = building._cmake_settings("onnxruntime-cuda", "90,100", None, cuda)
        assert f"-DCUDAToolkit_ROOT={root}" in settings
        assert "-DCMAKE_CUDA_ARCHITECTURES=90;100" in settings
    monkeypatch.setattr(building, "_which", lambda _: "")
    with pytest.raises(BackendMissingError, match="without CMake"):
        _build()
    monkeypatch.setenv("XDG_CACHE_HOME", str(nvcc))
    with pytest.raises(InputError, match="cannot be written"):
        _build()


def test_libraries_that_are_not_loaded(native_library: Path, tmp_path: Path) -> None:
    library = tmp_path / "librmsnorm_plugin.so"
    shutil.copy(native_library, library)
    # One that is cut short would end the process in the linker.
    content = native_library.read_bytes()
    for name, size in ((NAME, 5000), (NAME, len(content) - 1), (NAME, 0), ("other.so", None)):
        (tmp_path / name).write_bytes(content[:size])
        with pytest.raises(InputError, match="cannot be used"):
            rx.session_options(tmp_path / name)
    with pytest.raises(InputError, match="no such file"):
        libraries.open_library(tmp_path / "missing" / NAME, "register")
    with pytest.raises(InputError, match="not for register"):
        libraries.open_library(library, "register")


def test_the_sources_have_the_version_of_the_package(native_library: Path) -> None:
    text = (libraries.SOURCES / "cmake" / "version.cmake").read_text()
    assert f"set(RMSNORM_EXPORT_VERSION {rx.__version__})" in text
    assert libraries.open_library(native_library, "register") == native_library


def test_headers_that_are_missing_are_said_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(building, "missing_tools", dict)
    said: list[str] = []
    (tmp_path / "include").mkdir()
    with pytest.raises(BackendMissingError, match="CMake could not set") as refusal:
        plugin.build(
            tensorrt_include=tmp_path / "include", progress=lambda work, *_: said.append(work)
        )
    assert "TensorRT's headers were not found: no NvInferRuntime.h in" in refusal.value.found
    assert refusal.value.fix.startswith("TensorRT's headers: give --tensorrt DIR")  # cmake is there
    assert not said
