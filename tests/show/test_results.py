"""Every kind of result: one line, text, JSON, a page, a notebook, a file; with any texts in it."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from samples import ALIKE, CLASSES, HOSTILE, PROOF, REFUSAL, REPORT, SITE, Page, change, result_of

import rmsnorm_export as rx
from rmsnorm_export.diagnosis import _MODEL
from rmsnorm_export.records import from_json, to_json
from rmsnorm_export.show import _SHOWN_IN, headline_of, show_blocks, to_html, to_text
from rmsnorm_export.show.page import LONGEST, MOST_ROWS, fragment
from rmsnorm_export.show.rewrites import MOST
from rmsnorm_export.show.text import under
from rmsnorm_export.system.shown import Shown

TAGS = set().union(*(Page(to_html(result_of(name), after=["x"])).tags for name in _SHOWN_IN))
"""Those of pages without a hostile text."""


def test_every_result_has_a_home() -> None:
    for name in rx.__all__:
        if not rx._HOME.get(name, "").startswith("torch"):  # PyTorch takes long to load
            getattr(rx, name)
    others = {"Result", "FolderResult", "ExportResult"}  # they hold a model and show its report
    named = {cls.__name__ for cls in Shown.__subclasses__()}
    assert set(CLASSES) == set(_SHOWN_IN) == (named - others) | {"EngineRecord"}


@pytest.mark.parametrize("name", sorted(_SHOWN_IN))
def test_no_text_leaves_its_place(name: str) -> None:
    for texts in [("name",), HOSTILE, HOSTILE[::-1], *((text,) for text in HOSTILE)]:
        result = result_of(name, texts)
        for verbose in (-1, 0, 1):
            text = to_text(result, verbose=verbose)
            assert all(c.isprintable() or c == "\n" for c in text), repr(text)
        assert headline_of(result).isprintable()
        for html in (to_html(result, after=texts), fragment(show_blocks(result))):
            page = Page(html)
            assert page.tags <= TAGS
            assert not [key for _, own in page.elements for key in own if key[:2] == "on"]
            assert not page.values("style") + page.values("src")
            assert all(c.isprintable() or c == "\n" for c in page.text)
            assert all(text.isprintable() for text in page.values("title"))
            assert {link.removeprefix("#") for link in page.values("href")} == {*page.values("id")}
            assert "x" * (LONGEST + 1) not in html
        assert json.loads(to_json(result))["schema_version"] == 1


def test_a_page_loads_and_runs_nothing() -> None:
    html = to_html(REPORT)
    assert html == to_html(REPORT)
    assert not TAGS & {"script", "link", "img", "iframe", "object", "embed", "form", "input"}
    (policy,) = (a["content"] for tag, a in Page(html).elements if "http-equiv" in a)
    assert str(policy).startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in str(policy)


def test_a_page_says_what_the_report_says() -> None:
    failed = change(PROOF, passed=False, reason="too far")
    report = change(REPORT, fused=(change(SITE, proof=failed),), refused=(REFUSAL, ALIKE))
    more = show_blocks(result_of("Verification"), verbose=1, compared=("a.onnx", "b.onnx"))
    after = [*under("Both models", more), "wrote fused.onnx"]
    page = Page(to_html(report, after=after)).text
    words = [report.headline(), report.source, SITE.name, "FAILED: too far", "wrote fused.onnx"]
    words += [REFUSAL.reason, REFUSAL.hint, ALIKE.reason, ALIKE.node, "Both models", "a.onnx"]
    words += ["Every rounding to a smaller type"]  # what the class promises
    for word in words:
        assert word in page


def test_who_asks_is_told_of_long_work_and_nobody_else(capfd: pytest.CaptureFixture[str]) -> None:
    model, steps = onnx.parser.parse_model(_MODEL), []
    rx.optimize(model, prove=True)
    rx.optimize(model, prove=True, progress=lambda *step: steps.append(step))
    assert steps == [("proving", 0, 1), ("proving", 1, 1), ("loading the result", 0, 1)]
    assert capfd.readouterr() == ("", "")


def test_sizes_stay_bounded() -> None:
    numbered = ((f"n{i}", 1e-6 * (1 + i % (2 * MOST))) for i in range(3 * MOST_ROWS))
    many = tuple(change(SITE, name=name, epsilon=epsilon) for name, epsilon in numbered)
    refused = tuple(change(REFUSAL, node=f"n{i}") for i in range(2 * MOST_ROWS))
    html = to_html(change(REPORT, fused=many, refused=refused))
    assert f"and {2 * MOST_ROWS} more rows" in html
    assert f"{MOST} rewrites more" in html
    assert len(html) < 4_000_000


def test_a_result_shows_its_report_and_saves_its_model(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(_MODEL)
    result = rx.optimize(model)
    assert repr(rx.inspect(model)) == "<Report: 1 of 1 RMSNorm can be one node>"
    assert repr(result) == "<Result: 1 of 1 RMSNorm is one node>"
    assert result.to_text() == result.report.to_text() == to_text(result.report)
    assert from_json(result.to_json(), rx.Report) == result.report
    assert result.report.headline() in Page(result._repr_html_()).text
    assert len(result._repr_html_()) < 4000  # the graph alone has more
    onnx.checker.check_model(str(result.save(tmp_path / "m.onnx").path))
