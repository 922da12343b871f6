"""The memory that a conversion takes, beside what the packages take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.precision.networks import ROWS, parsed, weight

WIDE, LAYERS = 1536, 16
BYTES = 4 * WIDE**2 * LAYERS
_CONVERT = """
import re, resource, sys
import rmsnorm_export as rx
for path in sys.argv[1:3]:
    rx.optimize(path, inputs=(sys.argv[3],), dtype="f16").save(path + ".half", force=True)
    own = int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1])
    print(max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) * 1024)
"""


@pytest.mark.parametrize(("apart", "most"), [(True, 1.6), (False, 2.4)])
def test_a_conversion_takes_little_more_than_reading(
    tmp_path: Path, *, apart: bool, most: float
) -> None:
    """In this process or a fork; a single file is in memory twice while protobuf reads it.

    Where weights are rounded beforehand, and lent to sessions from memory, 2.0 and 3.7 times.
    """
    paths = [tmp_path / "small.onnx", tmp_path / "large.onnx"]
    for path, layers in zip(paths, (1, LAYERS), strict=True):
        own = {f"w{i}": weight(WIDE, WIDE, seed=i) for i in range(layers)}
        own |= {"first": weight(ROWS, WIDE), "last": weight(WIDE, ROWS)}
        steps = [f"h{i + 1} = MatMul (h{i}, w{i})" for i in range(layers)]
        body = " ".join(["h0 = MatMul (x, first)", *steps, f"y = MatMul (h{layers}, last)"])
        signature = f"(float[n, {ROWS}] x) => (float[n, {ROWS}] y)"
        how = {"save_as_external_data": True, "location": f"{path.name}.data"} if apart else {}
        onnx.save(parsed(body, signature, own), path, **how)
    assert _more_bytes(paths, tmp_path) < most * BYTES


def test_a_transposed_weight_is_not_measured(tmp_path: Path) -> None:
    """As a decoder's table is for its last product: 2.25 times; measured, it takes 3.1 times."""
    paths = [tmp_path / "small.onnx", tmp_path / "large.onnx"]
    for path, rows in zip(paths, (ROWS, BYTES // ROWS // 4), strict=True):
        body = "turned = Transpose <perm = [1, 0]> (w) y = MatMul (x, turned)"
        signature = f"(float[n, {ROWS}] x) => (float[n, {rows}] y)"
        how = {"save_as_external_data": True, "location": f"{path.name}.data"}
        onnx.save(parsed(body, signature, {"w": weight(rows, ROWS)}), path, **how)
    assert _more_bytes(paths, tmp_path) < 2.6 * BYTES


def _more_bytes(paths: list[Path], folder: Path) -> int:
    """Return how many bytes more the conversion of the second file takes."""
    np.savez(folder / "x.npz", x=np.full((2, ROWS), 1e-3, np.float32))
    words = [sys.executable, "-c", _CONVERT, *paths, folder / "x.npz"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    small, large = map(int, done.stdout.split())
    return large - small
