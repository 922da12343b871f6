"""What plugins/CMakeLists.txt says and makes, with TensorRT's headers and without them."""

from __future__ import annotations

import pathlib

import pytest

from rmsnorm_export.tensorrt.plugin import building
from tests.plugins import adapter_build


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A build folder that CMake comes back to: it looks at the compilers once, for 3 seconds."""
    if reason := adapter_build.missing_tools():
        pytest.skip(reason)
    build = tmp_path_factory.mktemp("build")
    adapter_build.configure(build)
    return build


def test_without_headers_only_the_kernels(folder: pathlib.Path) -> None:
    """With the tests that need no TensorRT: each has its rule, warnings are errors."""
    if any((pathlib.Path(name) / "NvInferRuntime.h").is_file() for name in adapter_build.SYSTEM):
        pytest.skip("this system has TensorRT's headers")
    options = ("-DRMSNORM_TESTS=ON", "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON")
    process = adapter_build.succeeded(adapter_build.configure(folder, *options))
    words = " ".join(process.stderr.split())
    assert "no NvInferRuntime.h in /usr/local/tensorrt" in words
    assert "Only the CUDA kernels will be compiled" in words
    rules = (folder / "build.ninja").read_text(encoding="utf-8")
    assert "librmsnorm_plugin" not in rules
    for name in ("torch", "gpu_driver", "launch_table_tests"):
        assert f"rmsnorm_{name}: phony" in rules
    every = "75-real;80-real;86-real;87-real;89-real;90-real;100-real;110-real;120"
    assert f"for {every}" in process.stdout


_NINE = (
    "#define TRT_MAJOR_ENTERPRISE 9\n#define TRT_MINOR_ENTERPRISE 12\n"
    "#define NV_TENSORRT_MAJOR TRT_MAJOR_ENTERPRISE\n"
)
_TEN = "#define NV_TENSORRT_MAJOR 10\n#define NV_TENSORRT_MINOR 7 //!< minor\n"
_OLD = "{} are of TensorRT %s; the plugin needs 10.8 or later"


@pytest.mark.parametrize(
    ("option", "version", "sentence"),
    [
        ("TENSORRT_INCLUDE_DIR", None, "no NvInferRuntime.h in {}"),
        ("TENSORRT_ROOT", None, "no NvInferRuntime.h in {}"),
        ("TENSORRT_INCLUDE_DIR", _TEN, _OLD % "10.7"),
        ("TENSORRT_INCLUDE_DIR", _NINE, _OLD % "9.12"),
    ],
)
def test_a_named_folder_must_have_headers_that_are_new(
    folder: pathlib.Path, tmp_path: pathlib.Path, option: str, version: str | None, sentence: str
) -> None:
    """No other place is searched, and it is an error."""
    if version:
        (tmp_path / "NvInferRuntime.h").touch()
        (tmp_path / "NvInferVersion.h").write_text(version)
    process = adapter_build.configure(folder, f"-D{option}={tmp_path}")
    assert process.returncode != 0
    assert sentence.format(tmp_path) in " ".join(process.stderr.split())


@pytest.mark.skipif(not building._which("cmake"), reason="needs CMake: pip install cmake")
def test_cuda_home_without_nvcc(tmp_path: pathlib.Path) -> None:
    folders = ("-S", adapter_build.PLUGINS, "-B", tmp_path / "build")
    process = adapter_build.cmake(*folders, f"-DCUDAToolkit_ROOT={tmp_path}")
    words = " ".join(process.stderr.split())
    assert process.returncode != 0
    assert f"There is no nvcc in CUDAToolkit_ROOT or CUDA_HOME, {tmp_path}" in words


def test_install(adapter: pathlib.Path, tmp_path: pathlib.Path) -> None:
    place = ("--prefix", tmp_path, "--component", "tensorrt")
    adapter_build.succeeded(adapter_build.cmake("--install", adapter, *place))
    names = ["librmsnorm_plugin.so", "librmsnorm_plugin_autoload.so"]
    assert sorted(path.name for path in (tmp_path / "lib").iterdir()) == names
