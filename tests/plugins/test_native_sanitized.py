"""The kernels of ONNX Runtime under sanitizers: any node, any tensors, in a process of Python."""

from __future__ import annotations

import pathlib
import shutil

import pytest

from tests.plugins import kernel_build
from tests.plugins.native_fuzz import fuzz_in_a_process
from tests.plugins.native_isa import ISAS
from tests.tools.corpus import cache

SOURCES = kernel_build.PLUGINS / "onnxruntime"
ROWS = SOURCES / "rows.cpp"

_NAME = "librmsnorm_onnxruntime.so"
_FLAGS = ("-std=c++17", "-O1", "-g", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-Wno-psabi")
_ISAS = {
    "avx512": "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c",
    "avx2": "-mavx2 -mfma -mf16c",
}
"""Of the instruction sets and what CMakeLists.txt compiles them with."""

UNDEFINED = ("-fsanitize=undefined", "-fno-sanitize-recover=all", "-O0")
# Checks as calls: written out at every access, those of unrolled loops take g++ an hour.
ADDRESS = (*kernel_build.SANITIZERS, "--param=asan-instrumentation-with-call-threshold=0")

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="no g++ on PATH: install g++ 10 or later"
)


def _library(sanitizer: tuple[str, ...]) -> pathlib.Path:
    flags = (*_FLAGS, *sanitizer)
    version = kernel_build.run(["g++", "--version"]).splitlines()[0]

    def fill(folder: pathlib.Path) -> None:
        jobs = [(source, "") for source in SOURCES.glob("*.cpp") if source != ROWS]
        jobs += [(ROWS, f"{own} -DRMSNORM_ISA={isa}") for isa, own in _ISAS.items()]
        objects = [folder / f"{i}.o" for i in range(len(jobs))]
        for (source, own), target in zip(jobs, objects, strict=True):
            kernel_build.run(["g++", *flags, *own.split(), "-c", source, "-o", target])
        kernel_build.run(["g++", *flags, "-shared", *objects, "-o", folder / _NAME])

    key = kernel_build.source_hash(SOURCES, settings=(version, *flags))
    return cache.entry("native", "sanitized", key, fill) / _NAME


@needs_compiler
@pytest.mark.parametrize("isa", ISAS)
def test_the_kernels_do_nothing_undefined(isa: str) -> None:
    """Not optimized, which takes the compiler half a minute."""
    fuzz_in_a_process(_library(UNDEFINED), 400, RMSNORM_EXPORT_ISA=isa)


@pytest.mark.thorough
@needs_compiler
@pytest.mark.parametrize("isa", ISAS)
def test_any_node_stays_in_its_tensors(isa: str) -> None:
    preload = kernel_build.sanitizer_environment()
    fuzz_in_a_process(_library(ADDRESS), 2000, RMSNORM_EXPORT_ISA=isa, **preload)
