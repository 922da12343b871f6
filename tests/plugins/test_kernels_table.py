"""The launch table: every length of a row, by a C++ program without CUDA; and that it is pure."""

from __future__ import annotations

import pathlib
import re
import shutil

import numpy as np
import pytest

from tests.plugins import kernel_build
from tests.plugins.kernel_cases import job_for
from tests.tools.shim import BF16, Shim

TEST = kernel_build.PLUGINS / "tests" / "kernels" / "launch_table_test.cpp"


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on PATH: install g++ 11 or later")
def test_every_row_has_a_kernel(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "launch_table_test"
    flags = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-I", kernel_build.KERNELS)
    kernel_build.run(["g++", *flags, TEST, "-o", program])
    assert kernel_build.run([program]) == ""


def test_table_knows_nothing_of_cuda_or_rows() -> None:
    """Its only includes are of the C++ library, and no parameter counts rows."""
    text = (kernel_build.KERNELS / "launch_table.h").read_text()
    assert set(re.findall(r"#include (\S+)", text)) == {"<cstdint>"}
    signature = re.search(r"constexpr Choice choose\(([^)]*)\)", text)
    assert signature is not None
    assert re.findall(r"\w+(?=,|$)", signature[1]) == [
        "segment_bytes",
        "inputs",
        "sm",
        "most",
        "low_latency",
    ]


@pytest.mark.parametrize("n", [64, 1000, 8192])
def test_block_does_not_depend_on_rows(shim: Shim, n: int) -> None:
    few, many = (shim.run(job_for(n, BF16, rows=rows, attributes={})) for rows in (1, 6))
    assert few.threads == many.threads


def test_low_latency_takes_more_threads(shim: Shim) -> None:
    wide, narrow = (
        shim.run(job_for(4096, BF16, rows=1, attributes={}, low_latency=low_latency))
        for low_latency in (True, False)
    )
    assert wide.threads > narrow.threads
    assert np.max(np.abs(wide.y.astype(np.float32) - narrow.y.astype(np.float32))) < 0.1
