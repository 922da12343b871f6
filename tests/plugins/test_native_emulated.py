"""The kernels of ONNX Runtime on aarch64, run by an emulator."""

from __future__ import annotations

import importlib.util
import itertools
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.native import ROW_KINDS
from rmsnorm_export.op.reference import reference_exact
from rmsnorm_export.op.spec import NormSpec
from rmsnorm_export.runtime.metrics import ulp_distance
from tests.plugins import kernel_build
from tests.plugins.native_process import TYPES, bound
from tests.tools.corpus import cache

SOURCES = kernel_build.PLUGINS / "onnxruntime"
PROGRAM = kernel_build.PLUGINS / "tests" / "onnxruntime" / "numbers.cpp"
FLAGS = (
    "-target aarch64-linux-musl -static -std=c++17 -O2 -ffp-contract=off -fno-math-errno"
    " -DRMSNORM_ISA=neon"
)
EMULATOR = "qemu-aarch64-static"

VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"scale_before_cast": True},
    {"round_rstd": True},
    {"group_size": 37},
)
GATES: tuple[dict[str, Any], ...] = ({}, {"gate_first": True}, {"activation": "sigmoid"})


def _of_aarch64() -> pathlib.Path:
    """For aarch64, with all sources of the library."""

    def fill(folder: pathlib.Path) -> None:
        compiler = [sys.executable, "-m", "ziglang", "c++", *FLAGS.split(), "-Wno-psabi"]
        sources = [PROGRAM, *sorted(SOURCES.glob("*.cpp"))]
        kernel_build.run([*compiler, *sources, "-o", folder / "numbers"])

    key = kernel_build.source_hash(SOURCES, PROGRAM.parent, settings=(FLAGS,))
    return cache.entry("native", "aarch64", key, fill) / "numbers"


def _header(spec: NormSpec, dtype: int, x: Array) -> bytes:
    gated = spec.activation == "sigmoid"
    numbers = (ROW_KINDS.index(spec.kind), [*TYPES].index(dtype), 0, *x.shape)
    flags = (spec.group_size, spec.scale_before_cast, spec.round_rstd, spec.gate_first, gated)
    return np.array([*numbers, *flags], np.int64).tobytes()


def _cases() -> tuple[bytes, list[tuple[Array, float]]]:
    """What the program reads, and the outputs that it should write."""
    random, given = np.random.default_rng(0), bytearray()
    expected: list[tuple[Array, float]] = []
    for kind, values, dtype in itertools.product(ROW_KINDS, VARIANTS, (1, 10, 16)):
        if dtype == 1 and "round_rstd" in values:
            continue  # a node of f32 has nothing to round, and leaves it out
        for gate in GATES if kind == "GatedRMSNorm" else ({},):
            spec = NormSpec(kind=kind, epsilon=2.0**-17, **values, **gate)
            x, second = (random.normal(0, 2, (5, 111)).astype(TYPES[dtype]) for _ in range(2))
            if kind == "GatedRMSNorm":
                # Beyond what the sigmoid usually sees.
                second[0, 17:20] = (-88, -95, 99)
            scale = random.normal(0, 1, 111).astype(np.float32)
            named = {"SkipRMSNorm": {"residual": second}, "GatedRMSNorm": {"gate": second}}
            result = reference_exact(spec, x, scale, **named.get(kind, {}))
            results = result if isinstance(result, tuple) else (result,)
            expected += [(array, bound(dtype, spec)) for array in results]
            tensors = [x, scale] if kind == "RMSNorm" else [x, second, scale]
            given += _header(spec, dtype, x) + b"".join(array.tobytes() for array in tensors)
    return bytes(given), expected


def _compare(command: Sequence[str | pathlib.Path]) -> None:
    given, expected = _cases()
    done = subprocess.run(command, input=given, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"neon\n")
    assert len(done.stdout) == sum(array.nbytes for array, _ in expected)
    at = 0
    for array, most in expected:
        found = np.frombuffer(done.stdout, array.dtype, array.size, at).reshape(array.shape)
        assert ulp_distance(found, array).max() <= most
        at += array.nbytes


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="pip install ziglang")
@pytest.mark.skipif(shutil.which(EMULATOR) is None, reason="apt install qemu-user-static")
def test_numbers_on_aarch64() -> None:
    _compare([EMULATOR, _of_aarch64()])
