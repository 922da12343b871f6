"""Every kind of page in a real browser: nothing is cut or beyond the window, at the widths of a
phone, a tablet and a desk, and axe-core finds no error, in light and dark.

A table may be wider than the window within a box of its own scroll bar; its box may not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import browser as chromium
import pytest
from browser import Browser, assert_accessible, unseen
from html_pages import report, verification
from test_show_entry import RESULTS

from rmsnorm_export.deploy.result import Deployment, StepOutcome
from rmsnorm_export.deploy.stamp import Stamp
from rmsnorm_export.errors import Failure
from rmsnorm_export.rewrite.result import GenerationExport
from rmsnorm_export.show import to_html
from rmsnorm_export.show.page.document import About
from rmsnorm_export.show.verification import verification_section
from rmsnorm_export.tensorrt.plugin import CommandLines

LONG = "model.decoder.layers.0.self_attention.query_key_layernorm_of_heads/SkipRMSNorm_12345678"
ABOUT = About(
    date="2026-01-31",
    versions=(("rmsnorm-export", "0.1.0"), ("onnxruntime", "1.31.1")),
    command=f"rmsnorm-export optimize /home/user/{'folder/' * 12}model.onnx -o fused.onnx",
    inputs=tuple(
        f"/home/user/models/{LONG}-{i}.onnx, 123 bytes, sha256 {'ab' * 32}" for i in (1, 2)
    ),
    problem=("A norm is left.", f"{LONG}: epsilon is the graph input eps", "make it a constant"),
)


def deployment(*, failed: bool = False) -> Deployment:
    """Steps that came to less than the best, of which the last may have failed."""
    facts: list[tuple[Any, str]] = [
        ("optimize", "16 of 17 RMSNorms are one node"),
        ("build", "tensorrt-rtx 1.7: 8.9 MiB"),
        ("verify", f"raw = {LONG}"),
        ("package", "decoder version 1"),
    ]
    folder = Path("/home/user/build") / LONG
    steps = [
        StepOutcome(name, "done", f"option target of {LONG} changed", 1.5, folder,
                    Stamp(name, {}, {}, said, (), None), None)
        for name, said in facts
    ]  # fmt: skip
    if failed:
        failure = Failure("The models differ.", f"{LONG} differs by 12", "look at the norm", 4)
        steps[2] = dataclasses.replace(steps[2], state="failed", stamp=None, failure=failure)
    return Deployment(
        "decoder", folder / "decoder.toml", folder, False, tuple(steps), "rmsnorm-export 0.1.0",
        "2026-01-31", 9.5, 4 * failed,
    )  # fmt: skip


PAGES: dict[str, Callable[[], str]] = {
    "benchmark": lambda: to_html(RESULTS["benchmark"], about=ABOUT),
    "engine": lambda: to_html(RESULTS["engine"], about=ABOUT),
    "package": lambda: to_html(RESULTS["package"], about=ABOUT),
    "folder": lambda: to_html(
        GenerationExport(Path("decoder"), {"prefill": report(1), "decode": report(1)}, (), "", 2.5)
    ),
    "report and verification": lambda: to_html(
        report(2), about=ABOUT, sections=[verification_section(verification(), "a.onnx", LONG)]
    ),
    "nothing found": lambda: to_html(report(0, kept=(), refused=(), drawings=())),
    "long names": lambda: to_html(verification((LONG, LONG + "_2")), compared=(LONG, LONG)),
    "deployment": lambda: to_html(deployment()),
    "failed deployment": lambda: to_html(deployment(failed=True), about=ABOUT),
    "text": lambda: to_html(CommandLines(LONG, ())),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    yield from chromium.start(tmp_path_factory.mktemp("profile"))


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_fits_its_window(shared: Browser, tmp_path: Path, name: str) -> None:
    path = tmp_path / "page.html"
    path.write_text(PAGES[name](), encoding="utf-8")
    for width in (390, 768, 1280):
        shared.size(width)
        shared.open(path)
        assert unseen(shared) == [], width
    assert_accessible(shared, path)


def test_what_is_cut_or_beyond_the_window_is_found(shared: Browser, tmp_path: Path) -> None:
    """The measure itself: each of these is a fault, and told."""
    faults = {
        "cut by div": '<div style="overflow:hidden;width:50px;height:9px">a long line</div>',
        "beyond the window": '<p style="margin-left:380px;white-space:nowrap">a long line</p>',
        "beyond its td": '<table style="table-layout:fixed;width:60px">'
        "<tr><td>longlonglonglong</table>",
        "9 px": '<p style="font-size:9px">small</p>',
    }
    shared.size(390)
    for what, markup in faults.items():
        path = tmp_path / "fault.html"
        path.write_text(f"<!DOCTYPE html><title>t</title><main id=m>{markup}</main>")
        shared.open(path)
        assert any(line.startswith(what) for line in unseen(shared)), what


def test_a_wide_table_shows_that_it_scrolls(shared: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(PAGES["long names"](), encoding="utf-8")
    shared.size(390)
    shared.open(path)
    box = "document.querySelector('#verification .scroll')"
    assert shared.js(f"{box}.scrollWidth > {box}.clientWidth")
    assert shared.js(f"{box}.offsetHeight - {box}.clientHeight") > 8  # the bar takes its place
    assert "linear-gradient" in shared.js(f"getComputedStyle({box}).maskImage")


def test_a_deployment_says_what_to_look_at(shared: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(PAGES["deployment"](), encoding="utf-8")
    shared.size(1280)
    shared.open(path)
    assert shared.texts(".verdict strong")[1] == "7 things to look at, in the table"
    rows = shared.texts("#summary tbody tr")
    for row, words in zip(
        rows,
        (
            ("1 RMSNorm stayed as before",),
            ("7 of 17 RMSNorms take several kernels", "of 1 RMSNorm it is not known",
             "the engine is not in the package"),
            ("engine not compared: no GPU",),
            ("cpu: no variant is faster than raw",),
            ("2 checks of the package: not run",),
        ),
        strict=True,
    ):  # fmt: skip
        assert all(word in row for word in words), row


@pytest.mark.parametrize("name", ["failed deployment", "report and verification"])
def test_an_error_is_stated_once(shared: Browser, tmp_path: Path, name: str) -> None:
    path = tmp_path / "page.html"
    path.write_text(PAGES[name](), encoding="utf-8")
    shared.open(path)
    found = f"{LONG} differs by 12" if "failed" in name else f"{LONG}: epsilon is"
    assert shared.js("document.querySelector('main').textContent").count(found) == 1
