"""The model card and the records that go with it."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import onnx
import pytest

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.records import document, from_json, to_json
from rmsnorm_export.rewrite.optimize import optimize
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.serving.package import package_model
from rmsnorm_export.serving.result import PackageRecord
from rmsnorm_export.system.provenance import provenance
from tests.cli.conftest import model as spelled_model
from tests.serving.models import needs_triton, norm_model

pytestmark = needs_triton


@pytest.fixture
def fused(tmp_path: Path) -> tuple[Path, Path]:
    """A model that optimize made, one norm refused, and its report with proofs."""
    result = optimize(spelled_model(2, refused=1), prove=True)
    result.save(tmp_path / "fused.onnx")
    (tmp_path / "fused.json").write_text(to_json(result.report))
    return tmp_path / "fused.onnx", tmp_path / "fused.json"


def test_the_card_and_the_record(tmp_path: Path, fused: tuple[Path, Path]) -> None:
    bench = tmp_path / "bench.json"
    rows = [{"batch": 1, "ms": 0.5, "deep": {"x": 1}}, {"batch": 8, "ms": 1.25, "deep": {}}]
    head = {"schema_version": 1, "kind": "benchmark", "device": "A <GPU> | one", "rows": rows}
    bench.write_text(json.dumps(head))
    packaged = package_model(
        fused[0], tmp_path / "models", report=fused[1], benchmarks=[bench], max_batch=0
    )
    text = (packaged.path / "README.md").read_text()
    (done,) = [line for line in text.splitlines() if "| one node |" in line]
    assert done.startswith("| 2 |")
    assert "exact" in done
    assert "passed," in done
    (refused,) = [line for line in text.splitlines() if "| refused |" in line]
    assert "epsilon" in refused
    assert "| 8 | 1.25 |" in text
    assert f"## Benchmark: {bench.name}" in text
    assert "random positive" in text, "one input is the epsilon of a norm"
    assert "A &lt;GPU> \\| one" in text
    record = from_json((packaged.path / "rmsnorm_export.json").read_text(), PackageRecord)
    assert record == packaged.record
    listed = {f.path: f.sha256 for f in (*record.files, *packaged.current.files)}
    on_disk = {p.relative_to(packaged.path).as_posix() for p in packaged.path.rglob("*.*")}
    assert set(listed) == on_disk - {"rmsnorm_export.json"}
    for path, digest in listed.items():
        assert hashlib.sha256((packaged.path / path).read_bytes()).hexdigest() == digest
        assert path == "README.md" or digest in text
    assert (packaged.path / "1/report.json").read_text() == fused[1].read_text()


def test_without_a_report_the_norms_are_looked_up(tmp_path: Path) -> None:
    packaged = package_model(spelled_model(2), tmp_path, name="net")
    assert [norm.how for norm in packaged.current.norms] == ["chain", "chain"]
    one = package_model(norm_model(), tmp_path, name="one")
    assert [(norm.how, norm.numerics) for norm in one.current.norms] == [("one node", "")]


def test_a_report_of_another_model(tmp_path: Path, fused: tuple[Path, Path]) -> None:
    onnx.save(norm_model(), tmp_path / "net.onnx")
    with pytest.raises(UsageError, match="another model"):
        package_model(tmp_path / "net.onnx", tmp_path / "models", report=fused[1])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"kind": "x"}', "\udcff"])
def test_reports_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    file = tmp_path / "report.json"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    for given in ({"report": file}, {"benchmarks": [file]}, {"report": tmp_path / "none"}):
        with pytest.raises(InputError):
            package_model(norm_model(), tmp_path / "models", name="net", **given)  # type: ignore[arg-type]
    assert not (tmp_path / "models").exists()


def test_a_name_that_would_break_the_card(tmp_path: Path) -> None:
    model = norm_model()
    evil = "x`|\n# Heading <script>"
    model.graph.input[0].name = model.graph.node[0].input[0] = evil
    packaged = package_model(model, tmp_path, name="net")
    lines = (packaged.path / "README.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("# ")] == ["# net"]
    (row,) = [line for line in lines if line.startswith("| input |")]
    assert "`x\\| # Heading <script>`" in row
    config = (packaged.path / "config.pbtxt").read_text()
    assert "\n# Heading" not in config


def test_a_report_of_another_model_with_the_same_names(
    tmp_path: Path, fused: tuple[Path, Path]
) -> None:
    """The report names what was written with it; after that the model was changed."""
    model, report = fused
    made = {"provenance": provenance((), [model])}
    report.write_text(to_json(from_json(report.read_text(), Report), extra=made))
    assert package_model(model, tmp_path / "models", report=report)
    changed = onnx.load(model)
    changed.doc_string = "changed"
    onnx.save(changed, model)
    with pytest.raises(UsageError, match="report is of another model"):
        package_model(model, tmp_path / "others", report=report)


def test_reports_in_a_package_name_the_files_beside_them(
    tmp_path: Path, fused: tuple[Path, Path]
) -> None:
    """The report of another folder is copied: its files are those that go with it."""
    model, report = fused
    source = tmp_path / "work/source.onnx"
    source.parent.mkdir()
    onnx.save(spelled_model(3), source)
    made = provenance([source], [model]).seen_from(report.parent, model.parent)
    report.write_text(to_json(from_json(report.read_text(), Report), extra={"provenance": made}))
    measured = tmp_path / "measured.json"
    measured.write_text(document("benchmark", {"provenance": provenance([source], [])}))
    packaged = package_model(model, tmp_path / "models", report=report, benchmarks=[measured])
    there = Path(shutil.move(packaged.path, tmp_path / "server")) / "1"
    source.unlink()

    text = (there / "report.json").read_text()
    assert str(tmp_path) not in text
    assert from_json(text, Report) == from_json(report.read_text(), Report)
