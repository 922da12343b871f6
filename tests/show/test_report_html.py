"""The HTML report without a browser: its parts, that it loads nothing, and that nothing gets in."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
import time
from pathlib import Path

import pytest
from html_pages import HOSTILE, PROOF, SITE, Page, hostile_report, report, sites, verification

from rmsnorm_export.op.numerics import NUMERICS_MEANING
from rmsnorm_export.op.spec import ATTRIBUTE_WORDS
from rmsnorm_export.records import from_json, to_json
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.show import to_html
from rmsnorm_export.show.page.document import About, Section
from rmsnorm_export.show.page.markup import Markup, shortened, tag
from rmsnorm_export.show.page.reasons import REASONS
from rmsnorm_export.show.verification import verification_section

REASONS_PAGE = Path(__file__).resolve().parents[2] / "docs/reference/reasons.md"
ABOUT = About(
    date="2026-01-31 12:00 UTC",
    versions=(("onnx", "1.2.3"),),
    facts=(("Output", "wrote fused.onnx (3 MiB)"),),
    problem=("It failed", "this was found", "do that"),
)
PAGES = {
    "report": lambda: to_html(report(), about=ABOUT),
    "planned": lambda: to_html(report(planned=True)),
    "empty": lambda: to_html(report(0, kept=(), refused=(), drawings=())),
    "undrawn": lambda: to_html(report(drawings=())),
    "verification": lambda: to_html(verification(), about=ABOUT, compared=("a.onnx", "b.onnx")),
    "both": lambda: to_html(report(), sections=[verification_section(verification(), "a", "b")]),
    "hostile": lambda: to_html(hostile_report()),
    "hostile verification": lambda: to_html(verification(HOSTILE), compared=HOSTILE[:2]),
}


@pytest.fixture(params=sorted(PAGES))
def html(request: pytest.FixtureRequest) -> str:
    made: str = PAGES[request.param]()
    return made


def test_a_page_is_well_formed_and_complete_in_itself(html: str) -> None:
    page = Page(html)
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[A-Za-z][\w-]*", name) for name in ids)
    for href in page.values("href"):
        assert href.startswith("#")
        assert href[1:] in ids
    for name in ("aria-labelledby", "for", "data-graphs", "data-as"):
        assert set(page.values(name)) <= set(ids)
    assert [a["lang"] for a in page.all("html")] == ["en"]
    assert len(page.all("main")) == len(page.all("h1")) == 1
    names = {name for name, _ in page.elements}
    assert not names & {
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "form",
        "base",
        "video",
        "audio",
    }
    attributes = {name for _, given in page.elements for name in given}
    assert not attributes & {"src", "srcset", "style", "action", "xlink:href", "background"}
    assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(r"url\(|@import|http", "".join(page.styles + page.scripts))


def test_only_the_own_script_and_style_may_run(html: str) -> None:
    page = Page(html)
    policy = next(a["content"] for a in page.all("meta") if "http-equiv" in a) or ""
    assert policy.startswith("default-src 'none'; ")
    assert (len(page.scripts), len(page.styles)) == (2, 1)
    for text in page.scripts + page.styles:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert policy.count("sha256-") == 3


def test_every_drawing_says_what_it_shows(html: str) -> None:
    page = Page(html)
    following = zip(page.elements, page.elements[1:], page.elements[2:], strict=False)
    pictures = [trio for trio in following if trio[0][0] == "svg"]
    for (_, svg), (title, _), (desc, _) in pictures:
        assert (svg["role"], title, desc) == ("img", "title", "desc")
        assert "viewbox" in svg


def test_what_the_report_says() -> None:
    page = Page(to_html(report(), about=ABOUT))
    for words in (
        "21 of 22 RMSNorms are one node: 20 fused, 1 already one node, 1 refused",
        "20 of 20",  # proofs hold
        "17 \u2192 18",
        "1,234 \u2192 1,000 + 2 functions",
        "onnx 1.2.3",
        "2026-01-31 12:00 UTC",
        "wrote fused.onnx (3 MiB)",
        "this was found",
        "raised from opset 17 to 18",
        "scale_before_cast=1",
        ATTRIBUTE_WORDS["scale_before_cast"],
        NUMERICS_MEANING["reordered"],
        "make it an initializer",
        REASONS["layer-norm"],
        "Pow \u2192 ReduceMean \u2192 Mul",
        "model.layers.7.norm",
        "a note",
    ):
        assert words in page.text, words


def test_norms_and_look_alikes_are_apart() -> None:
    html = to_html(report())
    refused = html[html.index('<section id="refused"') : html.index('<section id="look-alikes"')]
    assert "epsilon-not-constant" in refused
    assert "layer-norm" not in refused
    assert "cannot become one node" in to_html(report(planned=True))


def test_numbers_are_right_aligned_and_headings_are_headings() -> None:
    html = to_html(report(1))
    row = html[html.index('<tr id="s1"') :]
    row = row[: row.index("</tr>")]
    assert row.count('<td class="num">') == 7  # kind, n, epsilon, two distances, two errors
    assert '<th scope="row">' in row
    heads = re.findall(r'<th scope="col"[^>]*>', html)
    assert sum("data-sort" in head for head in heads) == 12


def test_equal_sites_are_drawn_once() -> None:
    same = tuple(dataclasses.replace(SITE, name=f"layers.{i}.norm") for i in range(100))
    html = to_html(report(fused=same, kept=()))
    assert html.count('<svg class="graph"') == 2  # before and after
    assert "layers.{0-99}.norm" in html.replace("<wbr>", "")
    assert html.count('data-graphs="R1"') == 100


def test_a_failed_proof_is_said_in_words() -> None:
    bad = dataclasses.replace(PROOF, passed=False, reason="distance: 9 ulp, 3 allowed")
    html = to_html(report(fused=(dataclasses.replace(SITE, proof=bad),)))
    assert "FAILED" in html
    assert "distance: 9 ulp, 3 allowed" in html


def test_a_verification_shows_bounds_and_failed_outputs_first() -> None:
    page = Page(to_html(verification(), compared=("a.onnx", "b.onnx")))
    assert "The models differ by more than is allowed: 1 of 2 outputs within bounds" in page.text
    for words in (
        "a.onnx, graph optimization off",
        "0.04",
        "20.00%",
        "1\u00d716\u00d764",
        "FAILED",
    ):
        assert words in page.text
    figures = page.text[page.text.index("logarithmic") :]
    assert figures.index("state") < figures.index("logits")


def test_a_page_is_a_pure_function_of_the_report() -> None:
    first = to_html(report())
    assert first == to_html(report())
    assert first == to_html(from_json(to_json(report()), Report))


def test_later_sections_are_added_to_page_and_navigation() -> None:
    body = tag("p", "bars <b>")
    html = to_html(report(), sections=[Section("bench", "Benchmarks", body, 3)])
    assert "bars &lt;b&gt;" in html
    assert re.search(r'<a href="#bench">Benchmarks<small>3</small></a>', html)
    with pytest.raises(ValueError, match="two sections have one id"):
        to_html(report(), sections=[Section("sites", "Sites again", body)])


def test_hostile_text_stays_text() -> None:
    html = to_html(hostile_report())
    plain = to_html(report(len(HOSTILE)))
    names = {name for name, _ in Page(html).elements}
    assert names <= {name for name, _ in Page(plain).elements} | {"ol"}
    for character in "\u202e\u202c\u2066\u200b\ufeff\x00\x1b\r\ud800":
        assert character not in html
    assert "\\u202e" in html
    assert "&lt;script&gt;window.ran=1&lt;" in html
    assert "x" * 2001 not in html  # prose; names are cut earlier
    html.encode("utf-8")


def test_markup_escapes_what_is_not_markup() -> None:
    assert tag("p", "<&>\"'", class_='a"b') == '<p class="a&quot;b">&lt;&amp;&gt;&quot;&#x27;</p>'
    assert tag("p", Markup("<br>"), None, 3, hidden=True, id=None) == "<p hidden><br>3</p>"
    assert tag("input", name="n") == '<input name="n">'
    assert shortened("abcdefghij", 5) == "ab\u2026ij"


def test_sizes_stay_bounded() -> None:
    assert len(to_html(report(fused=sites(250), kept=())).encode()) < 1_000_000
    start = time.process_time()
    html = to_html(report(fused=sites(7000), kept=()))
    assert time.process_time() - start < 30  # about 2 on an idle core
    assert len(html.encode()) < 8_000_000
    assert html.count("<details>") == 1000
    assert "the first 1,000 open" in html
    assert html.count('class="rest"') == 6500


def test_rewrites_stay_bounded() -> None:
    many = tuple(dataclasses.replace(SITE, name=f"n{i}", epsilon=float(i)) for i in range(300))
    html = to_html(report(fused=many, kept=()))
    assert html.count("<article") <= 63
    assert "240 rewrites more" in html
    Page(html)


def test_the_words_are_those_of_the_documentation() -> None:
    text = REASONS_PAGE.read_text(encoding="utf-8").replace("`", "")
    for reason, meaning in REASONS.items():
        rows = [line for line in text.splitlines() if line.startswith(f"| {reason} |")]
        assert len(rows) == 1, reason
        assert rows[0].rstrip(" |").endswith(f"| {meaning}"), reason
    named = re.findall(
        r"^\| ([a-z-]+) \| (?:norm|look-alike|residual|quantizer|rotary) \|", text, re.MULTILINE
    )
    assert set(named) == set(REASONS)


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_contrast_is_that_of_wcag_aa() -> None:
    style = Page(to_html(report(0))).styles[0]
    blocks = re.findall(r":root[^{]*\{([^}]*--ground[^}]*)\}", style)
    assert len(blocks) == 4  # light, dark by the system, dark by choice, print
    assert blocks[1].split() == blocks[2].split()
    for block in blocks:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        pairs = [
            (text, ground, 4.5)
            for text in ("ink", "dim", "link")
            for ground in ("ground", "raised")
        ]
        pairs += [(name, f"{name}-ground", 4.5) for name in ("good", "warn", "bad")]
        pairs += [(name, "ground", 4.5) for name in ("good", "warn", "bad")]
        pairs += [("ink", "in-ground", 4.5), ("ink", "good-ground", 4.5)]
        pairs += [(name, "ground", 3.0) for name in ("bar", "wire", "edge", "link")]
        for text, ground, least in pairs:
            light, dark = sorted((_luminance(colours[n]) for n in (text, ground)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= least, (text, ground)
