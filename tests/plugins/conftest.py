"""The kernels on the CPU, built once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scripts.gpu.shim import Shim
from tests.plugins import kernel_build


@pytest.fixture(scope="session")
def shim() -> Iterator[Shim]:
    reason = kernel_build.missing_compiler()
    if reason:
        pytest.skip(reason)
    process = Shim(kernel_build.shim_driver())
    yield process
    process.close()
