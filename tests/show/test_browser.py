"""Pages in a real browser, as wide as a phone and as a desk, light and dark: every text is seen
whole, and axe-core finds nothing that keeps a reader out.

A table may be wider than the window in a box with a scroll bar of its own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx.parser
import pytest
from samples import ALIKE, CLASSES, HOSTILE, REFUSAL, change, result_of

import rmsnorm_export as rx
from rmsnorm_export.diagnosis import _MODEL
from rmsnorm_export.show import sections_of, to_html

ENABLE = "pip install playwright axe-playwright-python; apt-get install chromium"
playwright = pytest.importorskip("playwright.sync_api", reason=ENABLE)
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason=ENABLE)
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason=ENABLE)

LONG = "model.decoder.layers.0.self_attention.query_key_layernorm_of_heads/SkipRMSNorm_12345678"

UNSEEN = """() => {
  const faults = new Set(), range = document.createRange(), root = document.documentElement;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    if (!text.data.trim() || !text.parentElement.checkVisibility()) continue;
    range.selectNodeContents(text);
    const inner = range.getBoundingClientRect();
    for (let box = text.parentElement; box !== root; box = box.parentElement) {
      const style = getComputedStyle(box), outer = box.getBoundingClientRect();
      const cut = /hidden|clip/.test(style.overflow);
      if (outer.width < 2) break;  // for screen readers alone
      if (style.display === "inline") continue;
      const scrolls = /auto|scroll/.test(style.overflowX);
      if (scrolls || style.position === "fixed") break;
      if (inner.left < outer.left - 1 || inner.right > outer.right + 1
          || cut && (inner.top < outer.top - 2 || inner.bottom > outer.bottom + 2)) {
        faults.add(`beyond ${box.tagName} ${box.className}: ${text.data.trim().slice(0, 60)}`);
        break;
      }
    }
  }
  if (root.scrollWidth > innerWidth) faults.add(`${root.scrollWidth} px wide in ${innerWidth}`);
  return [...faults];
}"""
"""Return the texts that end outside a box around them, and how much too wide the page is."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as api:
        yield api.chromium.launch(executable_path=CHROMIUM)


def faults(browser: Any, path: Path) -> list[str]:
    """Return what is wrong with a page, with all that opens on it open."""
    lines = []
    for width, scheme in ((390, "light"), (1280, "dark")):
        view = {"viewport": {"width": width, "height": 1000}, "color_scheme": scheme}
        with browser.new_context(**view, bypass_csp=True) as context:
            page = context.new_page()
            page.goto(path.as_uri())
            page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            lines += [f"{path.name}, {width} px: {text}" for text in page.evaluate(UNSEEN)]
            for one in axe.Axe().run(page).response["violations"]:
                html = " ".join(node["html"] for node in one["nodes"])[:300]
                lines.append(f"{path.name}, {width} px, {scheme}: {one['help']}: {html}")
    return lines


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_result_is_seen_whole(browser: Any, tmp_path: Path, name: str) -> None:
    path = tmp_path / "page.html"
    for texts in ((LONG,), HOSTILE):
        path.write_text(to_html(result_of(name, texts), about=[LONG]), encoding="utf-8")
        assert faults(browser, path) == []


def test_a_report_of_a_model_is_seen_whole(browser: Any, tmp_path: Path) -> None:
    """With nodes, proofs, a refusal, and the comparison of both models."""
    model = onnx.parser.parse_model(_MODEL)
    result = rx.optimize(model, prove=True, drawings=True)
    report = change(result.report, refused=(REFUSAL, ALIKE))
    both = sections_of(rx.verify(model, result.model), "Both models", compared=("a.onnx", LONG))
    path = tmp_path / "page.html"
    path.write_text(to_html(report, about=[LONG], sections=both), encoding="utf-8")
    assert faults(browser, path) == []


def test_bars_are_as_long_as_what_they_say(browser: Any, tmp_path: Path) -> None:
    path, (low, ratio, high) = tmp_path / "page.html", (0.5, 0.625, 0.75)
    (timing, *_) = (result := result_of("Benchmark")).timings
    base = change(timing, ratio=1.0, low=1.0, high=1.0)
    half = change(timing, variant="half", ratio=ratio, low=low, high=high)
    result = change(result, timings=(base, half), providers=("name",), cases={"name": ()})
    path.write_text(to_html(result), encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    whole, part = (one.bounding_box()["width"] for one in page.locator(".bar rect").all())
    interval = page.locator(".bar path:not(.unit)").nth(1).bounding_box()["width"]
    assert part == pytest.approx(ratio * whole, rel=0.01)
    assert interval == pytest.approx((high - low) * whole, abs=2)


@pytest.mark.thorough
def test_the_site_is_seen_whole(browser: Any, tmp_path: Path) -> None:
    for package in ("sphinx", "myst_nb", "furo"):
        pytest.importorskip(package, reason="Sphinx is not installed: pip install '.[docs]'")
    docs = Path(__file__).resolve().parents[2] / "docs"
    subprocess.run([sys.executable, "-m", "sphinx", "-q", docs, tmp_path], check=True)
    pages = sorted(path for path in tmp_path.rglob("*.html") if "_static" not in path.parts)
    assert len(pages) > 20
    assert [line for path in pages for line in faults(browser, path)] == []


@pytest.mark.parametrize(
    ("markup", "fault"),
    [
        ('<div style="overflow: hidden; width: 50px; height: 9px">a long line</div>', "beyond DIV"),
        ('<p style="margin-left: 380px; white-space: nowrap">a long line</p>', "px wide"),
        ('<table style="table-layout: fixed; width: 60px"><td>longlonglonglong', "beyond TD"),
        ('<img src="data:,">', "alternative text"),
        ('<p style="color: #ccc; background: #fff">pale</p>', "contrast"),
    ],
)
def test_a_fault_is_seen(browser: Any, tmp_path: Path, markup: str, fault: str) -> None:
    path = tmp_path / "page.html"
    head = '<!DOCTYPE html><html lang="en"><title>t</title><main><h1>t</h1>'
    path.write_text(f"{head}{markup}</main>", encoding="utf-8")
    assert fault in "\n".join(faults(browser, path))
