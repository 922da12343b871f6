"""The CPU kernels for ONNX Runtime, one instruction set at a time, in processes of their own: every
attribute, type and code; and any node, any tensors, under sanitizers."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

from tests.plugins import kernel_build
from tests.plugins.native_fuzz import fuzz_in_a_process
from toolbox.command import module_command, module_environment
from toolbox.corpus import cache

SOURCES = kernel_build.PLUGINS / "onnxruntime"
ROWS = SOURCES / "rows.cpp"
ISAS = {
    "avx512": "avx512f avx512bw avx512dq avx512vl fma f16c",
    "avx2": "avx2 fma f16c",
}
"""What each needs of the processor, as /proc/cpuinfo has it and CMakeLists.txt compiles it with:
without it, the library would run the next best kernels, and the test would pass."""
_PRESENT = set(pathlib.Path("/proc/cpuinfo").read_text().split())
_FLAGS = ("-std=c++17", "-O1", "-g", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-Wno-psabi")

UNDEFINED = ("-fsanitize=undefined", "-fno-sanitize-recover=all", "-O0")
# Checks as calls: written out at every access, those of unrolled loops take g++ an hour.
ADDRESS = (*kernel_build.SANITIZERS, "--param=asan-instrumentation-with-call-threshold=0")

each_isa = pytest.mark.parametrize(
    "isa",
    [
        pytest.param(isa, marks=pytest.mark.skipif(not {*flags.split()} <= _PRESENT, reason=isa))
        for isa, flags in ISAS.items()
    ],
)
needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="no g++ on PATH: install g++ 10 or later"
)


@each_isa
@pytest.mark.parametrize(
    ("module", "printed"), [("native_process", "1326 norms\n"), ("test_native_codes", "62\n")]
)
def test_every_attribute_type_and_code(
    native_library: pathlib.Path, module: str, printed: str, isa: str
) -> None:
    command = module_command(f"tests.plugins.{module}", str(native_library))
    env = {**module_environment(), "RMSNORM_EXPORT_ISA": isa, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, printed), done.stderr


def _sanitized(sanitizer: tuple[str, ...]) -> pathlib.Path:
    flags = (*_FLAGS, *sanitizer)
    name = "librmsnorm_onnxruntime.so"
    version = kernel_build.run(["g++", "--version"]).splitlines()[0]

    def fill(folder: pathlib.Path) -> None:
        jobs = [(source, []) for source in SOURCES.glob("*.cpp") if source != ROWS]
        for isa, own in ISAS.items():
            options = [f"-m{flag}" for flag in own.split()]
            jobs.append((ROWS, [*options, f"-DRMSNORM_KERNELS=kernels_{isa}"]))
        objects = [folder / f"{i}.o" for i in range(len(jobs))]
        for (source, options), target in zip(jobs, objects, strict=True):
            kernel_build.run(["g++", *flags, *options, "-c", source, "-o", target])
        kernel_build.run(["g++", *flags, "-shared", *objects, "-o", folder / name])

    key = kernel_build.source_hash(SOURCES, kernel_build.KERNELS, settings=(version, *flags))
    return cache.entry("native", "sanitized", key, fill) / name


@needs_compiler
@each_isa
def test_the_kernels_do_nothing_undefined(isa: str) -> None:
    """Not optimized, which takes the compiler half a minute."""
    fuzz_in_a_process(_sanitized(UNDEFINED), 400, RMSNORM_EXPORT_ISA=isa)


@pytest.mark.thorough
@needs_compiler
@each_isa
def test_any_node_stays_in_its_tensors(isa: str) -> None:
    preload = kernel_build.sanitizer_environment()
    fuzz_in_a_process(_sanitized(ADDRESS), 2000, RMSNORM_EXPORT_ISA=isa, **preload)
