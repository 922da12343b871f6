"""A page: complete in itself, safe whatever a model is called, bounded whatever its size."""

from __future__ import annotations

import dataclasses
import re

import pytest
from html_pages import HOSTILE, Page, hostile_report, report, verification

from rmsnorm_export.show import section_of, to_html
from rmsnorm_export.show.page import LONGEST, MOST_ROWS, About
from rmsnorm_export.show.rewrites import MOST

PAGES = {
    "report": lambda: to_html(report()),
    "hostile": lambda: to_html(hostile_report()),
    "verification": lambda: to_html(verification()),
    "hostile verification": lambda: to_html(verification(HOSTILE)),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_well_formed_and_loads_nothing(name: str) -> None:
    html = PAGES[name]()
    page = Page(html)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.elements}
    assert not [value for value in page.values("href") if not value.startswith("#part-")]
    assert page.values("src") == []
    keys = {key for _, attributes in page.elements for key in attributes}
    assert not [key for key in keys if key.startswith("on") or key == "style"]
    (policy,) = (a["content"] for a in page.all("meta") if "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    ids = page.values("id")
    assert len(set(ids)) == len(ids)
    assert {value.removeprefix("#") for value in page.values("href")} <= set(ids)


def test_what_a_model_is_called_stays_text() -> None:
    tags = {tag for tag, _ in Page(PAGES["report"]()).elements}
    page = Page(PAGES["hostile"]())
    assert {tag for tag, _ in page.elements} <= tags
    assert not re.search("[\\x00-\\x08\\x0b-\\x1f\\x7f\\u202a-\\u202e\\u2066-\\u2069]", page.text)


def test_what_the_report_says_is_on_its_page() -> None:
    made = report()
    page = Page(to_html(made, about=About([("Output", "fused.onnx")], ("what", "found", "fix"))))
    for words in (made.headline(), made.source, "fused.onnx", "what", "found", "fix"):
        assert words in page.text
    for site in (*made.fused, *made.kept):
        assert site.name in page.text
    for refusal in made.refused:
        assert refusal.reason in page.text
        assert refusal.node in page.text


def test_each_kind_is_drawn_once_and_told_in_words() -> None:
    made = report()
    page = Page(to_html(made))
    sides = {id(d): 1 + (d.after is not None) for d in made.drawings}
    assert len(page.all("svg")) == sum(sides.values())
    assert len(page.all("desc")) == len(page.all("svg"))


def test_a_failed_proof_is_said_in_words() -> None:
    made = report()
    site = next(site for site in made.fused if site.proof is not None)
    assert site.proof is not None
    bad = dataclasses.replace(site.proof, passed=False, reason="too far")
    failed = dataclasses.replace(made, fused=(dataclasses.replace(site, proof=bad),))
    assert "FAILED: too far" in Page(to_html(failed)).text


def test_sizes_stay_bounded() -> None:
    made = report()
    many = dataclasses.replace(
        made,
        fused=tuple(
            dataclasses.replace(made.fused[0], name=f"n{i}", epsilon=1e-6 * (1 + i % (2 * MOST)))
            for i in range(3 * MOST_ROWS)
        ),
    )
    html = to_html(many)
    assert f"and {3 * MOST_ROWS + len(made.kept) - MOST_ROWS} more rows" in html
    assert html.count("<article>") <= MOST + 110
    assert len(html) < 8_000_000
    long = dataclasses.replace(made, source="x" * 100_000)
    assert "x" * (LONGEST + 1) not in to_html(long)


def test_a_page_is_a_pure_function_of_the_report_and_takes_more_sections() -> None:
    assert to_html(report()) == to_html(report())
    more = section_of(verification(), "Both models", compared=("a.onnx", "b.onnx"))
    page = Page(to_html(report(), sections=[more]))
    assert "Both models" in page.text
    assert "a.onnx" in page.text
