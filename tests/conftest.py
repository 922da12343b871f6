"""Settings of the whole test run.

With ``--thorough`` the tests that are marked so run, too, which take minutes or install packages:
for a run by hand before a release.

Hypothesis profiles, chosen by ``HYPOTHESIS_PROFILE``; a property test leaves ``max_examples`` and
``deadline`` to them:

* ``ci`` (default): a hundred examples, the same ones every time;
* ``thorough`` (default with ``--thorough``): 2,000 fresh examples.

No deadline: an example may build an ONNX Runtime session while the other core is busy.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

from rmsnorm_export.runtime import session

_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]
_COMMON = {"deadline": None, "suppress_health_check": _CHECKS}

settings.register_profile("ci", max_examples=100, derandomize=True, **_COMMON)
settings.register_profile("thorough", max_examples=2_000, **_COMMON)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="run the tests marked thorough, too")


def pytest_configure(config: pytest.Config) -> None:
    usual = "thorough" if config.getoption("--thorough") else "ci"
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", usual))


def pytest_sessionstart(session: pytest.Session) -> None:
    """The second worker imports the tests from the last to the first, ahead of collecting them.

    In a fresh checkout pytest rewrites each file, and keeps what it wrote for whoever comes next:
    the workers meet in the middle.
    """
    if os.environ.get("PYTEST_XDIST_WORKER") != "gw1" or session.config.args != ["tests"]:
        return
    for path in sorted((session.config.rootpath / "tests").rglob("test_*.py"), reverse=True):
        with contextlib.suppress(Exception, pytest.skip.Exception):
            _ = pytest.Module.from_parent(session, path=path).obj


_OF_NUMBERS = {
    *("health", "lower", "proof", "recognize", "rewrite", "torch"),
    *("test_algebra", "test_architectures", "test_golden", "test_norm_classes", "test_spellings"),
}
"""Folders and modules whose tests are about what is computed, and not by which process; not those
whose models are odd enough to end ONNX Runtime."""


@pytest.fixture(scope="module", autouse=True)
def numbers_need_no_fork(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run ONNX Runtime in this process, as where the system does not fork.

    A fork of a process that has imported PyTorch takes as long as a proof.
    """
    here = mock.patch.object(session, "_keeps_processes", return_value=True)
    of_numbers = _OF_NUMBERS & {request.path.stem, request.path.parent.name}
    with here if of_numbers else contextlib.nullcontext():
        yield


@pytest.fixture(scope="session", autouse=True)
def translations_are_parsed_once() -> None:
    """PyTorch's exporter parses the source of five hundred translations again in every export."""
    if values := sys.modules.get("onnxscript.values"):
        traced = values.TracedOnnxFunction
        traced.function_ir = property(functools.cache(traced.function_ir.fget))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # The long ones first: a worker that begins one when all else is done leaves the other idle.
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if config.getoption("--thorough"):
        return
    for item in items:
        if item.get_closest_marker("thorough"):
            item.add_marker(pytest.mark.skip(reason="takes long: scripts/test --thorough"))
