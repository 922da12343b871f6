"""The page of a whole pipeline, and of models that differ, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import browser as chromium
import onnx
import pytest
from browser import Browser, assert_accessible, unseen

import rmsnorm_export as rx
from rmsnorm_export.show import to_html
from tests.deploy import pipelines

ROWS = "#site-table > tbody > tr:not(.more)"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    yield from chromium.start(tmp_path_factory.mktemp("profile"))


def _silent(page: Browser, path: Path) -> None:
    assert page.console() == []
    assert page.requests() == [path.as_uri()]


def test_a_pipeline(shared: Browser, tmp_path: Path) -> None:
    tables = (pipelines.OPTIMIZE, pipelines.PROVE, pipelines.VERIFY, pipelines.PACKAGE)
    done = rx.run_pipeline(pipelines.write(tmp_path, pipelines.MODEL, *tables))
    assert done.passed, done.failed
    path = tmp_path / "page.html"
    path.write_text(to_html(done), encoding="utf-8")
    shared.size(1300)
    shared.open(path)
    steps = shared.texts("#summary tbody th")
    assert steps == ["optimize", "verify", "package"]
    assert len(shared.texts(f"{ROWS} > :first-child")) == 3
    shared.find("#sites input[type=search]").send_keys("no such site")
    assert shared.texts(f"{ROWS} > :first-child") == []
    _silent(shared, path)
    for width in (390, 768, 1280):
        shared.size(width)
        shared.open(path)
        assert unseen(shared) == [], width
    assert_accessible(shared, path)


def test_models_that_differ(shared: Browser, tmp_path: Path) -> None:
    pipelines.write(tmp_path)
    broken = onnx.load(tmp_path / "three.onnx")
    gains = [node for node in broken.graph.node if "weight" in node.input]
    gains[1].op_type = "Add"
    found = rx.verify(tmp_path / "three.onnx", broken)
    assert found.first_difference is not None
    path = tmp_path / "page.html"
    path.write_text(to_html(found, compared=("raw", "broken")), encoding="utf-8")
    shared.open(path)
    text = shared.find("#verification").text
    assert found.first_difference.site is not None
    assert "this site differs" in text
    assert found.first_difference.site.name in text
    _silent(shared, path)
