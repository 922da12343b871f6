"""The HTML report in a real browser: it opens, filters, sorts, and runs nothing from a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import browser as chromium
import pytest
from browser import Browser
from html_pages import HOSTILE, hostile_report, report, sites, verification

from rmsnorm_export.rewrite.result import GenerationExport
from rmsnorm_export.show import to_html
from rmsnorm_export.show.verification import verification_section

ROWS = "#site-table > tbody > tr:not(.more)"
LARGE = 800  # sites: more than the 500 rows that are shown at first
GRAPHS = ("prefill", "decode")
KEYS = {"enter": "\ue007", "space": " ", "tab": "\ue004"}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a report, a hostile one, a large one and one of two graphs."""
    folder = tmp_path_factory.mktemp("pages")
    both = [verification_section(verification(), "a.onnx", "b.onnx")]
    made = {
        "report": to_html(report(40), sections=both),
        "hostile": to_html(hostile_report()),
        "compared": to_html(verification(HOSTILE), compared=HOSTILE[:2]),
        "large": to_html(report(fused=sites(LARGE))),
        "empty": to_html(report(0, kept=(), refused=())),
        "graphs": to_html(
            GenerationExport(
                path=Path("decoder"),
                reports={"prefill": report(3), "decode": report(fused=sites(600))},
                files=(),
                log="",
                seconds=1.0,
            )
        ),
    }
    for name, html in made.items():
        (folder / f"{name}.html").write_bytes(html.encode("utf-8"))
    return folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    yield from chromium.start(tmp_path_factory.mktemp("profile"))


@pytest.fixture
def opened(shared: Browser, pages: Path) -> Iterator[Browser]:
    """The report, as a reader opens it; the console stays silent and nothing is loaded."""
    shared.size(1300)
    shared.open(pages / "report.html")
    yield shared
    assert shared.console() == []
    assert shared.requests() == [(pages / "report.html").as_uri()]


def column(page: Browser, index: int) -> list[str]:
    """What the rows that are shown say in a column."""
    return page.texts(f"{ROWS} > :nth-child({index + 1})")


def test_every_page_opens_in_silence(shared: Browser, pages: Path) -> None:
    for path in sorted(pages.glob("*.html")):
        shared.open(path)
        assert shared.js("document.compatMode") == "CSS1Compat"
        assert shared.find("h1").is_displayed()
        assert shared.console() == [], path.name
        assert shared.requests() == [path.as_uri()]


@pytest.mark.parametrize("name", ["hostile", "compared"])
def test_nothing_from_a_model_runs(shared: Browser, pages: Path, name: str) -> None:
    shared.open(pages / f"{name}.html")
    for opener in shared.js("Array.from(document.querySelectorAll('.open'))"):
        shared.js("arguments[0].click()", opener)
    elements = "document.querySelectorAll('img, iframe, object, embed, link, form').length"
    handlers = (
        "Array.from(document.querySelectorAll('*')).filter(e =>"
        " Array.from(e.attributes).some(a => a.name.startsWith('on'))).length"
    )
    assert shared.js("window.ran === undefined")
    assert shared.js(elements) == shared.js(handlers) == 0
    assert shared.js("document.scripts.length") == 2
    assert "<script>window.ran=1</script>" in shared.js("document.body.textContent")
    assert shared.js("document.documentElement.scrollWidth <= innerWidth")
    assert shared.console() == []


def test_the_policy_would_stop_a_script_that_got_in(shared: Browser, pages: Path) -> None:
    html = (pages / "report.html").read_text(encoding="utf-8")
    broken = pages / "broken.htm"
    got_in = "<script>window.ran=1</script><img src=x onerror='window.ran=2'>"
    broken.write_text(html.replace("</h1>", f"{got_in}</h1>", 1), encoding="utf-8")
    shared.open(broken)
    assert shared.js("window.ran === undefined")
    assert shared.console() != []


def test_filter_by_text_and_by_choice(opened: Browser) -> None:
    assert len(column(opened, 0)) == 41
    box = opened.find("#filter-text")
    box.send_keys("LAYERS.12.")
    assert column(opened, 0) == ["model.layers.12.norm/RMSNorm"]
    assert opened.find("#filter-count").text == "1 of 41 sites"
    box.clear()
    box.send_keys("norm/ReduceMean_31")  # a node of the source, in the row below
    assert column(opened, 0) == ["model.layers.31.norm/RMSNorm"]
    opened.find("#filter-reset").click()
    for name, value in (("numerics", "upcast"), ("op", "GatedRMSNorm"), ("dtype", "float16")):
        opened.find(f"#filter-{name} option[value='{value}']").click()
    assert set(column(opened, 2)) == {"GatedRMSNorm"}
    assert set(column(opened, 3)) == {"upcast"}
    assert set(column(opened, 4)) == {"float16"}
    expected = sum(
        (s.op, s.numerics, s.dtype) == ("GatedRMSNorm", "upcast", "float16") for s in sites(40)
    )
    assert opened.find("#filter-count").text == f"{expected} of 41 sites"
    opened.find("#filter-reset").click()
    assert len(column(opened, 0)) == 41


def test_sort_by_every_column_both_ways(opened: Browser) -> None:
    heads = opened.driver.find_elements("css selector", "#site-table > thead .sort")
    assert len(heads) == 12
    for index, head in enumerate(heads):
        for direction in ("ascending", "descending"):
            head.click()
            sorted_ = opened.js(
                "Array.from(document.querySelectorAll('#site-table > thead > tr > th'))"
                ".map(h => h.getAttribute('aria-sort'))"
            )
            expected = [direction if i == index else None for i in range(12)]
            assert sorted_ == expected
            assert len(column(opened, 0)) == 41
    heads[5].click()
    numbers = column(opened, 5)
    known = [int(text) for text in numbers if text != "?"]
    assert known == sorted(known)
    assert numbers[len(known) :] == ["?"] * (41 - len(known))  # unknown last
    heads[5].click()
    assert column(opened, 5)[-1] == "?"
    heads[3].click()
    assert list(dict.fromkeys(column(opened, 3)))[:3] == ["exact", "reordered", "upcast"]
    heads[0].click()
    names = column(opened, 0)
    assert names.index("model.layers.2.norm/RMSNorm") < names.index("model.layers.10.norm/RMSNorm")


def test_a_filter_stays_when_the_order_changes(opened: Browser) -> None:
    opened.find("#filter-op option[value='RMSNorm']").click()
    before = sorted(column(opened, 0))
    opened.find("#site-table > thead .sort").click()
    assert sorted(column(opened, 0)) == before


@pytest.mark.parametrize("key", ["enter", "space"])
def test_rows_open_by_keyboard(opened: Browser, key: str) -> None:
    opened.js("document.querySelector('#site-table > thead th:last-child .sort').focus()")
    opened.keys(KEYS["tab"])
    row, focus = "document.activeElement.closest('tr')", "document.activeElement"
    assert opened.js(f"{row}.id") == "s1"
    assert opened.js(f"{focus}.getAttribute('aria-expanded')") == "false"
    assert opened.js(f"getComputedStyle({focus}).outlineStyle") == "solid"
    opened.keys(KEYS[key])
    assert opened.js(f"{focus}.getAttribute('aria-expanded')") == "true"
    more = opened.js(f"{focus}.getAttribute('aria-controls')")
    details = opened.find(f"#{more}")
    assert details.is_displayed()
    for words in ("model.layers.0.norm", "/model/layers.0/norm/Pow_0", "Pow \u2192 ReduceMean"):
        assert words in details.text
    assert len(details.find_elements("css selector", "svg.graph")) == 2
    assert len(details.find_elements("css selector", "svg.hist")) == 1
    opened.keys(KEYS[key])
    assert not details.is_displayed()


def test_rows_open_by_a_click_anywhere_and_links_still_lead(opened: Browser) -> None:
    opened.find("#s3 > td:nth-child(5)").click()
    assert opened.find("#s3-more").is_displayed()
    opened.find("#s3 a").click()
    assert opened.js("location.hash").startswith("#R")
    assert opened.find("#s3-more").is_displayed()


def test_a_link_to_a_site_opens_it(shared: Browser, pages: Path) -> None:
    shared.open(pages / "report.html", "#s7")
    assert shared.find("#s7-more").is_displayed()
    shared.open(pages / "large.html", "#s700")
    assert shared.find("#s700-more").is_displayed()


def test_a_large_model_shows_some_rows_and_then_all(shared: Browser, pages: Path) -> None:
    shared.open(pages / "large.html")
    assert len(column(shared, 0)) == 500
    assert shared.find("#filter-count").text == f"{LARGE + 1} sites, the first 500 shown"
    shared.find("#filter-text").send_keys(f"layers.{LARGE - 1}.")
    assert column(shared, 0) == [f"model.layers.{LARGE - 1}.norm/RMSNorm"]
    shared.find("#filter-reset").click()
    shared.js("document.getElementById('show-all').click()")
    assert len(column(shared, 0)) == LARGE + 1
    assert not shared.find("#show-all").is_displayed()


def test_each_table_of_a_folder_filters_and_sorts_by_itself(shared: Browser, pages: Path) -> None:
    shared.open(pages / "graphs.html", "#decode-s590")
    assert shared.find("#decode-s590-more").is_displayed()
    assert shared.find("#prefill-filter-count").text == "4 sites"
    shared.find("#decode-filter-text").send_keys("layers.12.")
    first, second = (f"#{name}-site-table > tbody > tr:not(.more) > th" for name in GRAPHS)
    assert shared.texts(second) == ["model.layers.12.norm/RMSNorm"]
    assert len(shared.texts(first)) == 4
    shared.js("document.querySelector('#prefill-site-table > thead .sort').focus()")
    shared.keys(KEYS["enter"], KEYS["enter"])
    assert shared.texts(first) == sorted(shared.texts(first), reverse=True)
    assert shared.texts(second) == ["model.layers.12.norm/RMSNorm"]


def background(page: Browser) -> str:
    found: str = page.js("getComputedStyle(document.body).backgroundColor")
    return found


def test_dark_by_the_system_and_by_choice(opened: Browser) -> None:
    light = background(opened)
    opened.media(prefers_color_scheme="dark")
    try:
        dark = background(opened)
        assert dark != light
        button = opened.find("#theme")
        seen = []
        for name in ("light", "dark", "auto"):
            button.click()
            assert button.text == f"Theme: {name}"
            seen.append(background(opened))
        assert seen == [light, dark, dark]
    finally:
        opened.media(prefers_color_scheme="light")


@pytest.mark.parametrize("width", [400, 900, 1300])
def test_no_page_is_wider_than_the_window(opened: Browser, width: int) -> None:
    opened.size(width)
    for index in (1, 5):
        opened.js(f"document.querySelectorAll('.open')[{index}].click()")
    assert opened.js("document.documentElement.scrollWidth") <= width
    wide = opened.js(
        "Array.from(document.querySelectorAll('.more.shown .rewrite')).every("
        "e => e.getBoundingClientRect().width <= innerWidth)"
    )
    assert wide


def test_it_reads_without_scripts(shared: Browser, pages: Path) -> None:
    shared.scripts(False)
    try:
        shared.open(pages / "report.html")
        assert shared.js("document.documentElement.className") == ""
        assert not shared.find("#filters").is_displayed()
        assert not shared.find("#theme").is_displayed()
        assert len(column(shared, 0)) == 41
        details = shared.find("#s1 + .more details")
        assert not shared.js("arguments[0].open", details)
        details.find_element("css selector", "summary").click()
        assert "/model/layers.0/norm/Pow_0" in details.text
        shared.open(pages / "large.html")
        assert len(column(shared, 0)) == LARGE + 1
    finally:
        shared.scripts(True)


def test_what_a_screen_reader_is_told(opened: Browser) -> None:
    opened.driver.execute_cdp_cmd("Accessibility.enable", {})
    tree = opened.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    opened.driver.execute_cdp_cmd("Accessibility.disable", {})
    shown = [node for node in tree if not node.get("ignored")]

    def names(role: str) -> list[str]:
        return [n.get("name", {}).get("value", "") for n in shown if n["role"]["value"] == role]

    assert len(names("main")) == len(names("banner")) == len(names("contentinfo")) == 1
    assert "Sections" in names("navigation")
    assert len(names("search")) == 1
    assert {"Summary", "Rewrites", "Sites", "Refused norms", "Look-alikes"} <= set(names("region"))
    assert all(names("image"))
    assert "R1 before" in names("image")
    assert {"All sites", "Outputs of B against those of A"} <= set(names("table"))
    assert all(names("button") + names("combobox") + names("searchbox") + names("link"))


def test_print_is_light_and_complete(opened: Browser) -> None:
    opened.media(prefers_color_scheme="dark")
    opened.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert background(opened) == "rgb(255, 255, 255)"
        assert not opened.find("#filters").is_displayed()
        assert not opened.find("nav").is_displayed()
        assert opened.js("document.querySelector('#sites > .scroll').scrollHeight") == opened.js(
            "document.querySelector('#sites > .scroll').clientHeight"
        )
    finally:
        opened.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
