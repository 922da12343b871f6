"""Finding nvcc, a compiler, CMake and headers: where, in which order, and what is said without."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rmsnorm_export.errors import BackendMissingError, InputError, UsageError
from rmsnorm_export.tensorrt.plugin import arch, building, toolchain
from rmsnorm_export.tensorrt.plugin.building import find_source, source_hash
from rmsnorm_export.tensorrt.plugin.toolchain import build_tools, find_headers, find_toolchain
from tests.plugins.plugin_standin import make_standin, write_headers

ROOT = Path(__file__).parents[2]


def _script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def _nvcc(path: Path, version: str) -> Path:
    return _script(path, f"echo 'Cuda compilation tools, release {version[:4]}, V{version}'")


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without tools: empty PATH, no variables, no packages, no system folders."""
    empty = tmp_path / "bin"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    for name in ("CUDA_HOME", "CXX", "CUDAHOSTCXX", "TENSORRT_INCLUDE_DIR", "TENSORRT_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(toolchain, "package_folders", lambda _: ())
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(empty))
    monkeypatch.setattr(
        "rmsnorm_export.tensorrt.plugin.toolchain._SYSTEM_INCLUDES", (str(tmp_path / "system"),)
    )
    is_file = Path.is_file
    monkeypatch.setattr(
        Path, "is_file", lambda p: not str(p).startswith("/usr/local/cuda") and is_file(p)
    )
    return empty


@pytest.mark.usefixtures("bare")
def test_without_tools_everything_is_named_with_what_brings_it() -> None:
    assert {tool.status for tool in build_tools()} == {"missing"}
    with pytest.raises(BackendMissingError) as caught:
        find_toolchain()
    error = caught.value
    assert error.exit_code == 6
    for name in ("nvcc", "host compiler", "cmake", "ninja", "TensorRT headers"):
        assert name in error.what
        assert f"{name}: " in error.found
    for fix in ("pip install 'cmake>=3.24' ninja", "apt install g++", "pip install cmake"):
        assert fix in error.fix
    assert "libnvinfer-headers-dev" in error.fix
    assert "github.com/NVIDIA/TensorRT" in error.fix


def test_nvcc_as_given_then_cuda_home_then_path(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = _nvcc(tmp_path / "given" / "bin" / "nvcc", "12.9.1")
    _nvcc(tmp_path / "home" / "bin" / "nvcc", "13.0.1")
    _nvcc(bare / "nvcc", "13.1.1")
    assert toolchain.find_nvcc().version == "13.1.1"
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert toolchain.find_nvcc().version == "13.0.1"
    assert toolchain.find_nvcc(tmp_path / "given").version == "12.9.1"
    assert toolchain.find_nvcc(given).path == str(given)
    monkeypatch.chdir(tmp_path)
    assert toolchain.find_nvcc("given").path == str(given)  # CMake takes whole paths only


def test_what_was_asked_for_is_not_passed_over(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _nvcc(bare / "nvcc", "13.1.1")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    assert (
        toolchain.find_nvcc().status,
        str(tmp_path / "nowhere") in toolchain.find_nvcc().detail,
    ) == (
        "missing",
        True,
    )
    monkeypatch.delenv("CUDA_HOME")
    assert toolchain.find_nvcc(tmp_path / "nowhere").status == "missing"
    write_headers(tmp_path / "system")
    assert find_headers().status == "ok"
    monkeypatch.setenv("TENSORRT_ROOT", str(tmp_path / "nowhere"))
    assert find_headers().status == "missing"
    assert "from TENSORRT_ROOT" in find_headers().detail
    _script(bare / "g++", "echo g++ 12")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert toolchain.find_host_compiler().status == "missing"


@pytest.mark.usefixtures("bare")
def test_nvcc_of_the_pypi_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _nvcc(tmp_path / "nvidia" / "cu13" / "bin" / "nvcc", "13.5.37")
    monkeypatch.setattr(toolchain, "package_folders", lambda name: [tmp_path / name])
    assert toolchain.find_nvcc().path == str(path)


@pytest.mark.parametrize("text", ["exit 1", "echo hello", "kill -9 $$"])
def test_a_tool_that_does_not_answer_is_broken(bare: Path, text: str) -> None:
    for name in ("nvcc", "cmake", "ninja"):
        _script(bare / name, text)
    found = [toolchain.find_nvcc(), toolchain.find_cmake(), toolchain.find_ninja()]
    assert [tool.status for tool in found] == ["broken"] * 3
    with pytest.raises(BackendMissingError, match="--version ended with"):
        find_toolchain()


def test_cmake_that_is_too_old_gives_way_to_the_package(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _script(bare / "cmake", "echo cmake version 3.22.1")
    assert toolchain.find_cmake().status == "broken"
    assert "3.24" in toolchain.find_cmake().detail
    _script(tmp_path / "cmake" / "data" / "bin" / "cmake", "echo cmake version 4.0.0")
    monkeypatch.setattr(toolchain, "package_folders", lambda name: [tmp_path / name])
    assert toolchain.find_cmake().version == "4.0.0"


def test_make_where_there_is_no_ninja(bare: Path) -> None:
    _script(bare / "make", "echo GNU Make 4.3")
    assert (toolchain.find_ninja().name, toolchain.find_ninja().version) == ("make", "4.3")


@pytest.mark.parametrize("part", ["", "include", "include/x86_64-linux-gnu"])
def test_headers_in_the_folder_or_below(tmp_path: Path, part: str) -> None:
    write_headers(tmp_path / "trt" / part, (10, 9, 2))
    found = find_headers(tmp_path / "trt")
    assert (found.status, found.version) == ("ok", "10.9.2")
    assert Path(found.path) == tmp_path / "trt" / part


def test_headers_with_plain_numbers(tmp_path: Path) -> None:
    write_headers(tmp_path)
    text = (
        "#define NV_TENSORRT_MAJOR 10\n#define NV_TENSORRT_MINOR 8\n#define NV_TENSORRT_PATCH 0\n"
    )
    (tmp_path / "NvInferVersion.h").write_text(text)
    assert find_headers(tmp_path).version == "10.8.0"


def test_headers_that_are_of_no_use(tmp_path: Path) -> None:
    write_headers(tmp_path, (10, 7, 9))
    assert "10.8 or newer" in find_headers(tmp_path).detail
    (tmp_path / "NvInferVersion.h").write_text("nothing")
    assert "version" in find_headers(tmp_path).detail
    (tmp_path / "NvInferVersion.h").unlink()
    assert "NvInferVersion.h is not there" in find_headers(tmp_path).detail
    assert find_headers(tmp_path).status == "broken"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("90", ("90",)),
        ("sm_90,sm_100", ("90", "100")),
        ("9.0, 12.0, 90", ("90", "120")),
        ([90, "10.0"], ("90", "100")),
        ("90a,100f", ("90a", "100f")),
        ("all", arch.DEFAULT),
        ("native", None),
        (None, None),
    ],
)
def test_architectures_as_people_write_them(given: arch.Arch, expected: object) -> None:
    assert arch.parse(given) == expected


@pytest.mark.parametrize("given", ["", "hopper", "90;100", "9", "90,", "sm90", "-1", "90\n91"])
def test_what_is_no_architecture(given: str) -> None:
    with pytest.raises(UsageError):
        arch.parse(given)


def test_the_defaults_are_those_of_cmake() -> None:
    text = (ROOT / "plugins" / "cmake" / "FindNvcc.cmake").read_text()
    names = " ".join([*(f"{name}-real" for name in arch.DEFAULT[:-1]), arch.DEFAULT[-1]])
    assert f"set(CMAKE_CUDA_ARCHITECTURES {names})" in text


def test_the_gpus_at_hand_decide(bare: Path, tmp_path: Path) -> None:
    nvcc = make_standin(tmp_path / "s").nvcc
    (bare / "printf").symlink_to("/usr/bin/printf")
    names, notes = arch.choose_architectures(None, str(nvcc))
    assert names == ("80", "90", "100")  # the defaults that this nvcc knows
    assert "no GPU" in notes[0]
    assert "75, 86, 87, 89, 110, 120" in notes[1]
    rows = [f"echo 'NVIDIA X, {name}, 580.65.06, 81559 MiB'" for name in ("9.0", "9.0", "[N/A]")]
    _script(bare / "nvidia-smi", "; ".join([*rows, "echo 'NVIDIA A100, 8.0, 580.65.06, [N/A]'"]))
    assert arch.choose_architectures(None, str(nvcc)) == (("90", "80"), ())
    assert arch.choose_architectures("100", str(nvcc))[0] == ("100",)
    with pytest.raises(UsageError, match="asked for") as caught:
        arch.choose_architectures("75,90", str(nvcc))
    assert "75;" in caught.value.found
    _script(bare / "nvidia-smi", "echo 'NVIDIA X, 15.0, 580.65.06, 81559 MiB'")
    with pytest.raises(UsageError, match="GPU at hand"):
        arch.choose_architectures(None, str(nvcc))


def test_the_sources_are_found_and_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_source() == ROOT / "plugins"
    project = make_standin(tmp_path).source
    before = source_hash(project)
    for name in ("tests/x.cpp", ".hidden/x.cpp", "README.md", "build/x.cpp"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("x")
        assert source_hash(project) == before, name
    (project / "more.cuh").write_text("")
    more = source_hash(project)
    (project / "more.cuh").rename(project / "other.cuh")
    assert len({before, more, source_hash(project)}) == 3
    with pytest.raises(InputError, match="sources"):
        find_source(tmp_path)
    monkeypatch.setattr(building, "_PACKAGED", project)
    assert find_source() == project


@pytest.mark.usefixtures("bare")
def test_environment_is_not_changed_by_looking() -> None:
    before = dict(os.environ)
    build_tools()
    assert dict(os.environ) == before
