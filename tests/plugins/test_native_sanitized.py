"""The kernels of ONNX Runtime under sanitizers: any node, any tensors, threads."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess

import pytest

from tests.plugins import kernel_build
from tests.plugins.native_isa import ISAS
from tests.tools.corpus import cache

SOURCES = kernel_build.PLUGINS / "onnxruntime"
ROWS = SOURCES / "rows.cpp"
FUZZ = kernel_build.PLUGINS / "tests" / "onnxruntime" / "fuzz.cpp"

_FLAGS = ("-std=c++17", "-O1", "-g", "-ffp-contract=off", "-fno-math-errno", "-Wno-psabi")
_ISAS = {
    "avx512": "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c",
    "avx2": "-mavx2 -mfma -mf16c",
    "baseline": "",
}
"""Of the instruction sets and what CMakeLists.txt compiles them with."""

SANITIZERS = {
    # Checks as calls: written out at every access, those of unrolled loops take g++ an hour.
    "address and undefined": (
        *kernel_build.SANITIZERS,
        "--param=asan-instrumentation-with-call-threshold=0",
    ),
    "thread": ("-fsanitize=thread",),
}
UNDEFINED = ("-fsanitize=undefined", "-fno-sanitize-recover=all", "-O0")


needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="no g++ on PATH: install g++ 10 or later"
)


def _program(sanitizer: tuple[str, ...]) -> pathlib.Path:
    flags = (*_FLAGS, *sanitizer)
    version = kernel_build.run(["g++", "--version"]).splitlines()[0]

    def fill(folder: pathlib.Path) -> None:
        jobs = [(source, "") for source in (FUZZ, *SOURCES.glob("*.cpp")) if source != ROWS]
        jobs += [(ROWS, f"{own} -DRMSNORM_ISA={isa}") for isa, own in _ISAS.items()]
        objects = [folder / f"{i}.o" for i in range(len(jobs))]
        for (source, own), target in zip(jobs, objects, strict=True):
            kernel_build.run(["g++", *flags, *own.split(), "-c", source, "-o", target])
        kernel_build.run(["g++", *flags, *objects, "-o", folder / "fuzz"])

    key = kernel_build.source_hash(SOURCES, FUZZ.parent, settings=(version, *flags))
    return cache.entry("native", "fuzz", key, fill) / "fuzz"


def _fuzz(program: pathlib.Path, isa: str, nodes: int) -> None:
    done = subprocess.run(
        [program, "7", str(nodes)],
        env={**os.environ, "RMSNORM_EXPORT_ISA": isa},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.fullmatch(r"(\d+) computed, (\d+) refused\n", done.stdout)
    assert found is not None, done.stdout
    assert int(found[1]) > nodes // 4
    assert int(found[2]) > nodes // 4


@needs_compiler
@pytest.mark.parametrize("isa", ISAS)
def test_the_kernels_do_nothing_undefined(isa: str) -> None:
    """Not optimized, which takes the compiler half a minute."""
    _fuzz(_program(UNDEFINED), isa, 500)


@pytest.mark.thorough
@needs_compiler
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_any_node_is_computed_or_refused(sanitizer: str, isa: str) -> None:
    _fuzz(_program(SANITIZERS[sanitizer]), isa, 2000)
