"""What plugins/CMakeLists.txt says and makes, with TensorRT's headers and without them."""

from __future__ import annotations

import pathlib
import subprocess

import adapter_build
import pytest

needs_tools = pytest.mark.skipif(
    adapter_build.missing_tools() is not None, reason=adapter_build.missing_tools() or ""
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A build folder that CMake comes back to: it looks at the compilers once, for 3 seconds."""
    build = tmp_path_factory.mktemp("build")
    adapter_build.configure(build)
    return build


def _words(process: subprocess.CompletedProcess[str]) -> str:
    """What CMake says, on one line, when it stops."""
    assert process.returncode != 0
    return " ".join(process.stderr.split())


def _configured(folder: pathlib.Path, *options: str) -> subprocess.CompletedProcess[str]:
    """With these options and none of those before; architectures stay those of the first time."""
    return adapter_build.configure(folder, "-UTENSORRT_*", "-URMSNORM_*", *options)


@needs_tools
def test_without_headers_only_the_kernels(folder: pathlib.Path) -> None:
    if any((pathlib.Path(name) / "NvInferRuntime.h").is_file() for name in adapter_build.SYSTEM):
        pytest.skip("this system has TensorRT's headers")
    process = _configured(folder)
    assert process.returncode == 0, process.stderr
    words = " ".join(process.stderr.split())
    for text in (
        "TensorRT's headers were not found: no NvInferRuntime.h in /usr/local/tensorrt",
        "github.com/NVIDIA/TensorRT",
        "-DTENSORRT_INCLUDE_DIR=",
        "-DTENSORRT_ROOT=",
        "Only the CUDA kernels will be compiled",
    ):
        assert text in words
    rules = (folder / "build.ninja").read_text(encoding="utf-8")
    assert "rmsnorm_kernels.dir/kernels/rmsnorm.cu.o" in rules
    assert "librmsnorm_plugin" not in rules
    every = "75-real;80-real;86-real;87-real;89-real;90-real;100-real;110-real;120"
    assert f"for {every}" in process.stdout


@needs_tools
def test_the_kernels_are_tested_and_timed_without_headers(folder: pathlib.Path) -> None:
    """What needs a GPU to run is built in tests/test_gpu_scripts.py; here it has its rule."""
    process = _configured(folder, "-DRMSNORM_TESTS=ON", "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON")
    assert process.returncode == 0, process.stderr
    rules = (folder / "build.ninja").read_text(encoding="utf-8")
    for rule in ("rmsnorm_torch: phony", "rmsnorm_gpu_driver: phony", "rmsnorm_shim_driver: phony"):
        assert rule in rules
    program = "rmsnorm_launch_table_tests"
    process = adapter_build.cmake("--build", folder, "--target", program)
    assert process.returncode == 0, process.stdout + process.stderr
    done = subprocess.run([folder / "tests" / "kernels" / program], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


@needs_tools
@pytest.mark.parametrize("option", ["TENSORRT_INCLUDE_DIR", "TENSORRT_ROOT"])
def test_a_named_folder_must_have_them(
    folder: pathlib.Path, tmp_path: pathlib.Path, option: str
) -> None:
    """No other place is searched, and it is an error."""
    words = _words(_configured(folder, f"-D{option}={tmp_path}"))
    assert f"no NvInferRuntime.h in {tmp_path}" in words


@needs_tools
@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("10.7", "#define NV_TENSORRT_MAJOR 10\n#define NV_TENSORRT_MINOR 7 //!< minor\n"),
        (
            "9.12",
            "#define TRT_MAJOR_ENTERPRISE 9\n#define TRT_MINOR_ENTERPRISE 12\n"
            "#define NV_TENSORRT_MAJOR TRT_MAJOR_ENTERPRISE\n",
        ),
    ],
)
def test_old_headers(folder: pathlib.Path, tmp_path: pathlib.Path, version: str, text: str) -> None:
    (tmp_path / "NvInferRuntime.h").touch()
    (tmp_path / "NvInferVersion.h").write_text(text)
    words = _words(_configured(folder, f"-DTENSORRT_INCLUDE_DIR={tmp_path}"))
    assert f"are of TensorRT {version}" in words
    assert "needs 10.8 or later" in words


@pytest.mark.skipif(adapter_build.tool("cmake") is None, reason="needs CMake: pip install cmake")
def test_cuda_home_without_nvcc(tmp_path: pathlib.Path) -> None:
    folders = ("-S", adapter_build.PLUGINS, "-B", tmp_path / "build")
    words = _words(adapter_build.cmake(*folders, f"-DCUDAToolkit_ROOT={tmp_path}"))
    assert f"There is no nvcc in CUDAToolkit_ROOT or CUDA_HOME, {tmp_path}" in words
    assert "nvidia/cu13" in words


@pytest.mark.parametrize("headers", adapter_build.header_parameters())
def test_install(headers: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = adapter_build.build(headers)
    process = adapter_build.cmake(
        "--install", folder, "--prefix", tmp_path, "--component", "tensorrt"
    )
    assert process.returncode == 0, process.stderr
    assert sorted(path.name for path in (tmp_path / "lib").iterdir()) == [
        "librmsnorm_plugin.so",
        "librmsnorm_plugin_autoload.so",
        "rmsnorm_tensorrt.json",
    ]
