"""The CPU kernels for ONNX Runtime, one instruction set at a time, in processes of their own: every
attribute, type and code; and any node, any tensors, under sanitizers."""

from __future__ import annotations

import importlib.util
import itertools
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from rmsnorm_export.op.dtypes import element_type
from rmsnorm_export.op.native import ROW_KINDS
from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.runtime.metrics import ulp_distance
from tests.plugins import kernel_build
from tests.plugins.native_fuzz import fuzz_in_a_process
from tests.plugins.native_process import EPSILON, GATES, TYPES, VARIANTS, Case, bound, defined
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
    fuzz_in_a_process(_sanitized(UNDEFINED), 200, RMSNORM_EXPORT_ISA=isa)


@pytest.mark.thorough
@needs_compiler
@each_isa
def test_any_node_stays_in_its_tensors(isa: str) -> None:
    preload = kernel_build.sanitizer_environment()
    fuzz_in_a_process(_sanitized(ADDRESS), 2000, RMSNORM_EXPORT_ISA=isa, **preload)


# The kernels of ONNX Runtime on aarch64, run by an emulator.

PROGRAM = kernel_build.PLUGINS / "tests" / "onnxruntime" / "numbers.cpp"
FLAGS = (
    "-target aarch64-linux-musl -static -std=c++17 -O2 -ffp-contract=off -fno-math-errno"
    " -DRMSNORM_KERNELS=kernels_neon"
)
EMULATOR = "qemu-aarch64-static"

PASSED = {"scale_before_cast", "round_rstd", "group_size"}
"""The attributes of ``VARIANTS`` that the program reads."""


def _of_aarch64() -> pathlib.Path:
    """For aarch64, with all sources of the library."""

    def fill(folder: pathlib.Path) -> None:
        compiler = [sys.executable, "-m", "ziglang", "c++", *FLAGS.split(), "-Wno-psabi"]
        sources = [PROGRAM, *sorted(SOURCES.glob("*.cpp"))]
        kernel_build.run([*compiler, *sources, "-o", folder / "numbers"])

    key = kernel_build.source_hash(SOURCES, kernel_build.KERNELS, PROGRAM.parent, settings=(FLAGS,))
    return cache.entry("native", "aarch64", key, fill) / "numbers"


def _cases() -> Iterator[Case]:
    random = np.random.default_rng(0)
    for kind, values, dtype in itertools.product(ROW_KINDS, VARIANTS, (1, 10, 16)):
        if not {*values} <= PASSED or (dtype == 1 and "round_rstd" in values):
            continue  # a node of f32 has nothing to round, and leaves it out
        for gate in GATES if kind == "GatedRMSNorm" else ({},):
            x, second = (random.normal(0, 2, (5, 111)).astype(TYPES[dtype]) for _ in range(2))
            second[0, 17:20] = (-88, -95, 99)  # beyond what the sigmoid usually sees
            scale = random.normal(0, 1, 111).astype(np.float32)
            spec = NormSpec(kind=kind, epsilon=EPSILON, **values, **gate)
            yield defined(spec, x, scale, second=second)


def _read_by_the_program(case: Case) -> bytes:
    spec, x = case.spec, case.feeds["x"]
    numbers = (ROW_KINDS.index(spec.kind), [*TYPES].index(element_type(x.dtype)), 0, *x.shape)
    flags = (spec.group_size, spec.scale_before_cast, spec.round_rstd, spec.gate_first)
    header = np.array([*numbers, *flags, spec.activation == "sigmoid"], np.int64)
    return b"".join(array.tobytes() for array in (header, *case.feeds.values()))


def _compare(command: Sequence[str | pathlib.Path]) -> None:
    cases = [*_cases()]
    given = b"".join(map(_read_by_the_program, cases))
    done = subprocess.run(command, input=given, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    at = 0
    for case in cases:
        for array in case.expected:
            y = np.frombuffer(done.stdout, array.dtype, array.size, at).reshape(array.shape)
            assert ulp_distance(y, array).max() <= bound(case)
            at += array.nbytes
    assert len(done.stdout) == at


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="pip install ziglang")
@pytest.mark.skipif(shutil.which(EMULATOR) is None, reason="apt install qemu-user-static")
def test_numbers_on_aarch64() -> None:
    _compare([EMULATOR, _of_aarch64()])
