"""The kernels on the CPU, built once for all tests of this folder."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from unittest import mock

import pytest

from tests.plugins import adapter_build, kernel_build
from toolbox.corpus import cache
from toolbox.driver import Driver


@pytest.fixture(scope="session")
def driver() -> Iterator[Driver]:
    if reason := kernel_build.missing_compiler():
        pytest.skip(reason)
    process = Driver(kernel_build.driver())
    yield process
    process.close()


@pytest.fixture(scope="session")
def adapter() -> pathlib.Path:
    """The build folder of the TensorRT plugin."""
    return adapter_build.build()


@pytest.fixture(scope="session")
def native_library() -> pathlib.Path:
    """The library of kernels for ONNX Runtime, compiled when its sources are new."""
    import rmsnorm_export as rx
    from rmsnorm_export.errors import BackendMissingError

    try:
        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(cache.root())}):
            built = rx.plugin.build(runtime="onnxruntime")
    except BackendMissingError as error:
        pytest.skip(f"{error.what} {error.fix}")
    return built.path("register")
