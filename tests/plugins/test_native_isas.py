"""The CPU kernels for ONNX Runtime in processes of their own, of each instruction set and version:
every attribute, type and code; and any node, any tensors, under sanitizers."""

from __future__ import annotations

import importlib.util
import itertools
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import onnxruntime
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


def _each(isas: dict[str, str], *thorough: str) -> pytest.MarkDecorator:
    parameters = []
    for isa, flags in isas.items():
        marks = [pytest.mark.skipif(not {*flags.split()} <= _PRESENT, reason=isa)]
        marks += [pytest.mark.thorough] * (isa in thorough)
        parameters.append(pytest.param(isa, marks=marks))
    return pytest.mark.parametrize("isa", parameters)


needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="no g++ on PATH: install g++ 10 or later"
)


SWEEPS = ("native_process", "test_native_codes")


def _swept(library: pathlib.Path, **environment: str) -> list[str]:
    """What each sweep prints."""
    env = {**module_environment(), "OMP_NUM_THREADS": "1", **environment}
    commands = (module_command(f"tests.plugins.{name}", str(library)) for name in SWEEPS)
    return [
        subprocess.run(one, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
        for one in commands
    ]


@_each({**ISAS, "neon": "asimd"})
def test_every_attribute_type_and_code(native_library: pathlib.Path, isa: str) -> None:
    printed = [f"{count} by {onnxruntime.__version__}\n" for count in (1387, 84)]
    assert _swept(native_library, RMSNORM_EXPORT_ISA=isa) == printed


def in_version(version: str) -> dict[str, str]:
    """The environment of a process with an ONNX Runtime of that version; skip without one."""
    place = cache.root().parent / "runtimes" / f"onnxruntime-{version}"
    if not place.is_dir():
        pytest.skip(f"pip install --target {place} onnxruntime=={version} 'numpy<2'")
    return {"PYTHONPATH": f"{place}{os.pathsep}{module_environment()['PYTHONPATH']}"}


VERSIONS = {"1.17.3": (781, 70), **dict.fromkeys(("1.20.1", "1.23.2", "1.32.0"), (1387, 84))}
"""How many norms and codes Python can hand over: no bfloat16 before 1.20."""


@pytest.mark.parametrize("version", VERSIONS)
def test_other_versions_of_onnxruntime(native_library: pathlib.Path, version: str) -> None:
    printed = [f"{count} by {version}\n" for count in VERSIONS[version]]
    assert _swept(native_library, **in_version(version)) == printed


def _sanitized(sanitizer: tuple[str, ...], isa: str) -> pathlib.Path:
    """The library with the kernels of one instruction set, in the place of all others."""
    others = (f"-Dkernels_{other}=kernels_{isa}" for other in ISAS if other != isa)
    flags, name = (*_FLAGS, *sanitizer, *others), "librmsnorm_onnxruntime.so"
    jobs = [[source] for source in sorted(SOURCES.glob("*.cpp")) if source != ROWS]
    own = [f"-m{flag}" for flag in ISAS[isa].split()]
    jobs.append([*own, f"-DRMSNORM_KERNELS=kernels_{isa}", ROWS])
    objects = [f"{i}.o" for i in range(len(jobs))]
    compiled = (
        ["g++", *flags, "-c", *job, "-o", to] for job, to in zip(jobs, objects, strict=True)
    )
    linked = ["g++", *flags, "-shared", *objects, "-o", name]
    return kernel_build.made(name, *compiled, linked, of=(SOURCES, kernel_build.KERNELS))


@needs_compiler
@_each(ISAS, "avx512")
def test_the_kernels_do_nothing_undefined(isa: str) -> None:
    """Not optimized, which takes the compiler half a minute."""
    fuzz_in_a_process(_sanitized(UNDEFINED, isa), 200, RMSNORM_EXPORT_ISA=isa)


@pytest.mark.thorough
@needs_compiler
@_each(ISAS)
def test_any_node_stays_in_its_tensors(isa: str) -> None:
    preload = kernel_build.sanitizer_environment()
    fuzz_in_a_process(_sanitized(ADDRESS, isa), 2000, RMSNORM_EXPORT_ISA=isa, **preload)


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
    sources = [PROGRAM, *sorted(SOURCES.glob("*.cpp")), "-Wno-psabi", "-o", "numbers"]
    compiler = [sys.executable, "-m", "ziglang", "c++", *FLAGS.split(), *sources]
    of = (SOURCES, kernel_build.KERNELS, PROGRAM.parent)
    return kernel_build.made("numbers", compiler, of=of)


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
