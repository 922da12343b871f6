"""The documentation's site in a real browser: nothing is cut, and axe-core finds no error."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import browser as chromium
import pytest
from browser import Browser, assert_accessible, unseen

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("sphinx", "myst_nb", "furo")),
        reason="builds the site: pip install '.[docs]'",
    ),
]

_CLOSED = """
for (const part of document.querySelectorAll(".sidebar-drawer, .toc-drawer, .visually-hidden")) {
  const box = part.getBoundingClientRect();
  if (box.left < 0 || box.right > innerWidth || box.width < 2) part.remove();
}
"""
"""Takes away what opens at a click, and what only a screen reader gets."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "-q", ROOT / "docs", out],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        check=True,
    )
    return out


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    yield from chromium.start(tmp_path_factory.mktemp("profile"))


def test_every_page_fits_and_is_accessible(site: Path, page: Browser) -> None:
    paths = sorted(site.rglob("*.html"))
    assert len(paths) > 20
    for path in paths:
        for width in (390, 768, 1280):
            page.size(width)
            page.open(path)
            page.driver.execute_script(_CLOSED)
            assert unseen(page) == [], (path.name, width)
        assert_accessible(page, path)
