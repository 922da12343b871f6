"""What a result does in Python: one line, text, JSON, a page, a file; in notebooks and for rich."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from html_pages import HOSTILE, Page, hostile_report, report, verification
from rich.console import Console
from test_show_entry import RESULTS

import rmsnorm_export as rx
from rmsnorm_export import diagnosis, errors
from rmsnorm_export.diagnosis import _MODEL
from rmsnorm_export.records import from_json
from rmsnorm_export.show import _HOMES, to_text
from rmsnorm_export.system.shown import Shown


@pytest.fixture(scope="module")
def optimized() -> rx.Result:
    return rx.optimize(onnx.parser.parse_model(_MODEL), drawings=True)


@pytest.mark.parametrize("name", sorted(RESULTS))
def test_every_kind_of_result_shows_itself(name: str, tmp_path: Path) -> None:
    result = RESULTS[name]
    assert isinstance(result, Shown)
    line = repr(result)
    assert line.startswith(f"<{type(result).__name__}: ")
    assert "\n" not in line
    assert len(line) < 300
    assert result.to_text() == to_text(result)
    assert json.loads(result.to_json())["schema_version"] == 1
    assert Page(result.to_html()).all("section")
    for suffix, start in ((".json", "{"), (".html", "<!DOCTYPE html>"), (".txt", "")):
        place = result.save(tmp_path / f"result{suffix}")
        assert place.read_text(encoding="utf-8").startswith(start or result.to_text())


def test_every_class_with_a_text_shows_itself() -> None:
    def below(cls: type) -> set[str]:
        return {cls.__name__}.union(*map(below, cls.__subclasses__()))

    for name in rx.__all__:
        if not rx._HOME.get(name, "").startswith("torch"):  # PyTorch takes long to load
            getattr(rx, name)
    # What holds a model shows its report in its place.
    assert below(Shown) - {"Shown", "ExportResult"} == {*_HOMES, "Result", "FolderResult"} - {
        "EngineRecord"
    }


def test_a_result_shows_its_report_and_saves_its_model(
    optimized: rx.Result, tmp_path: Path
) -> None:
    assert repr(optimized) == "<Result: 1 of 1 RMSNorm is one node>"
    assert optimized.to_text() == optimized.report.to_text()
    assert from_json(optimized.to_json(), rx.Report) == optimized.report
    assert "fragment" not in optimized._repr_html_()
    assert len(optimized._repr_html_()) < 4000  # the graph alone has more
    onnx.checker.check_model(str(optimized.save(tmp_path / "m.onnx").path))


def test_a_report_takes_no_name_of_a_model_nor_another_file(tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match=r"report, not a model"):
        report().save(tmp_path / "m.onnx")
    place = report().save(tmp_path / "r.json")
    with pytest.raises(errors.UsageError, match=r"overwrite"):
        verification().save(place)
    assert verification().save(place, force=True) == place
    with pytest.raises(errors.InputError, match=r"cannot be written"):
        report().save(tmp_path / "none" / "r.json")


def test_a_notebook_gets_the_verdict_and_tables() -> None:
    page = Page(report()._repr_html_())
    assert page.all("table")
    assert report().headline() in page.text
    assert "epsilon-not-constant" in page.text
    assert not {"script", "link", "img"} & {tag for tag, _ in page.elements}
    assert "logits" in Page(verification()._repr_html_()).text


def test_a_notebook_runs_nothing_from_a_model() -> None:
    plain = (report(), verification())
    known = {tag for one in plain for tag, _ in Page(one._repr_html_()).elements}
    for result in (hostile_report(), verification(HOSTILE)):
        page = Page(result._repr_html_())
        assert {tag for tag, _ in page.elements} <= known
        assert "\n" not in repr(result)


def test_rich_prints_the_text(optimized: rx.Result) -> None:
    file = io.StringIO()
    Console(file=file, width=1000).print(optimized)
    assert file.getvalue().split() == optimized.to_text().split()


def test_what_a_report_holds_is_one_line_each() -> None:
    made = report()
    assert repr(made.fused[0]) == (
        "<Site model.layers.0.norm/RMSNorm: RMSNorm float16 n=64 exact,"
        " <Proof: holds: 0 ulp, 3 allowed>>"
    )
    assert repr(made.refused[0]) == (
        "<Refusal /head/Add: epsilon-not-constant, the graph input eps>"
    )


def test_inspect_says_what_can_be_and_optimize_what_is() -> None:
    model = onnx.parser.parse_model(_MODEL)
    assert repr(rx.inspect(model)) == "<Report: 1 of 1 RMSNorm can be one node>"
    assert repr(rx.optimize(model)) == "<Result: 1 of 1 RMSNorm is one node>"


def test_dir_holds_public_names_only() -> None:
    assert dir(rx) == sorted([*rx.__all__, "__version__"])


def test_doctor_is_that_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    few = tuple(known for known in diagnosis._COMPONENTS if known.name in ("numpy", "onnxruntime"))
    monkeypatch.setattr(diagnosis, "_COMPONENTS", few)
    found = rx.doctor()
    assert found.works
    assert repr(found).startswith(f"<Diagnosis: rmsnorm-export {rx.__version__}: the core works")
    assert {test.name for test in found.self_tests} >= {"target portable", "target ort"}
    assert "onnxruntime" in Page(found._repr_html_()).text


SCRIPT = """
import sys
import onnx.parser
import rmsnorm_export as rx
from rmsnorm_export.diagnosis import _MODEL
model = onnx.parser.parse_model(_MODEL)
rx.optimize(model, prove=True, progress=False)
print("now", file=sys.stderr)
rx.optimize(model, prove=True)
"""


def test_a_terminal_sees_a_bar_unless_it_is_turned_off() -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
    env.pop("NO_COLOR", None)
    done = subprocess.run([sys.executable, "-c", SCRIPT], stderr=theirs, env=env, check=False)
    os.close(theirs)
    assert done.returncode == 0
    written = b""
    with contextlib.suppress(OSError):  # how Linux ends a terminal
        while part := os.read(ours, 1 << 16):
            written += part
    os.close(ours)
    before, _, after = written.decode().partition("now")
    assert before == ""
    assert "Proving" in after


def test_nothing_is_shown_where_nobody_looks(capfd: pytest.CaptureFixture[str]) -> None:
    rx.optimize(onnx.parser.parse_model(_MODEL), prove=True)
    assert capfd.readouterr() == ("", "")


def test_who_asks_is_told_instead_and_functions_share_one_bar() -> None:
    told: list[tuple[str, int, int]] = []
    rx.optimize(
        onnx.parser.parse_model(_MODEL), prove=True, progress=lambda *step: told.append(step)
    )
    assert told == [("proving", 0, 1), ("proving", 1, 1)]


def test_a_result_can_be_copied_and_compared() -> None:
    made = report()
    assert dataclasses.replace(made) == made
    assert not hasattr(made, "__dict__")
