"""Pipeline files that cannot be used: told before anything is made, with table and key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import rmsnorm_export as rx
from rmsnorm_export.cli.main import main
from rmsnorm_export.deploy.settings import STEPS, TABLES, read_settings
from rmsnorm_export.options import entries, names_in, written
from tests.deploy.models import write
from tests.tools.tables import table

WRONG: dict[str, Any] = table(__file__)


@pytest.mark.parametrize("case", WRONG)
def test_wrong(tmp_path: Path, case: str) -> None:
    tables, words = WRONG[case]
    path = write(tmp_path, *tables)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(rx.Error) as caught:
        rx.run_pipeline(path)
    assert caught.value.exit_code in (2, 3)
    assert all((caught.value.what, caught.value.found, caught.value.fix))
    for word in ("pipeline.toml", *words):
        assert word in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[pipeline\n", "line 1"),
        (b"\xff\xfe", "decode"),
        (b"#" * (1 << 20) + b"\n#", "1,048,576 bytes"),
        (b"a = " + b"[" * 5000, "recursion"),
        (None, "No such file"),
    ],
)
def test_no_toml(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "p.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(rx.InputError, match=words):
        rx.run_pipeline(path)


def test_folders_that_belong_to_something_else(tmp_path: Path) -> None:
    path, out = write(tmp_path, "model", "optimize"), tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("mine")
    with pytest.raises(rx.UsageError, match="No pipeline made the folder") as caught:
        rx.run_pipeline(path)
    assert "thesis.tex" in caught.value.found
    assert [p.name for p in out.iterdir()] == ["thesis.tex"]
    (out / "thesis.tex").unlink()
    rx.run_pipeline(path)  # an empty folder is ours
    inside = '[model]\npath = "out/optimize/net.onnx"'
    with pytest.raises(rx.UsageError, match="an input is in the pipeline's folder"):
        rx.run_pipeline(write(tmp_path, inside, "optimize"))
    path = write(tmp_path, "model", "optimize")
    path.write_text(path.read_text().replace('"out"', '"three.onnx/deeper"'))
    with pytest.raises(rx.InputError, match="cannot be made"):
        rx.run_pipeline(path)


def _uncommented(text: str, *wanted: str) -> str:
    """The file with some of its commented lines; "": with all, [export] in the place of [model]."""
    lines, table = [], ""
    for line in text.splitlines():
        if mark := re.match(r"(?:# )?\[(\w+)\]", line):
            table = mark[1]
        key = re.match(r"(?:# )?(\w+) = ", line)
        name = table if mark else f"{table} {key[1]}" if key else ""
        line = line.removeprefix("# ") if name and (not wanted or name in wanted) else line
        replaced = table == "model" and (not wanted or "export" in wanted)
        lines.append(f"# {line}" if replaced else line)
    return "\n".join(lines)


def test_init_writes_a_file_whose_keys_can_be_uncommented(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pipeline.toml"
    assert main(["deploy", "--init", str(path)]) == 0
    assert f"wrote {path}" in capsys.readouterr().out
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 60
    assert main(["deploy", str(path), "--init"]) == 2  # it is somebody's now
    for name in ("model.onnx", "my-model"):
        (tmp_path / name).touch()
    assert read_settings(path).steps == ("optimize", "verify")
    table, keys = "", []
    for line in text.splitlines():
        if mark := re.match(r"(?:# )?\[(\w+)\]", line):
            table = mark[1]
        elif key := re.match(r"(# )?(\w+) = .* {2}# \w.*?(?: \[([\w|-]+)\])?$", line):
            keys.append(f"{table} {key[2]}" if key[1] else "")
            (entry,) = (one for one in entries(TABLES[table]) if one.key == key[2])
            assert not key[3] or tuple(key[3].split("|")) == names_in(entry.written), line
        else:
            assert not line or len(keys) == 0, line
    assert len(keys) >= 40
    for wanted in filter(None, keys):
        table, key = wanted.split()
        needed = ("export source",) if table == "export" else ()
        path.write_text(_uncommented(text, table, wanted, *needed), encoding="utf-8")
        assert key in written(getattr(read_settings(path), table))
    path.write_text(_uncommented(text), encoding="utf-8")
    assert read_settings(path).steps == STEPS


@pytest.mark.parametrize("table", TABLES)
def test_every_key_is_described(table: str) -> None:
    for entry in entries(TABLES[table]):
        assert entry.facts.help[:1].isupper() or ":" in entry.facts.help, entry.name
