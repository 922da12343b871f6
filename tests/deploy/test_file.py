"""Pipeline files that cannot be used: told before anything is made, with table and key."""

from __future__ import annotations

from pathlib import Path

import pytest

import rmsnorm_export as rx
from rmsnorm_export.deploy.tables import STEPS, TABLES, begin
from tests.deploy.pipelines import BUILD, MODEL, OPTIMIZE, ran, write

WRONG: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "unknown table": ((MODEL, "[optimise]"), ("optimise", "mean", "optimize")),
    "outside": (("[pipeline.x]", MODEL), ("[pipeline] x", "name, folder")),
    "unknown key": ((MODEL, '[optimize]\ntaget = "ort"'), ("[optimize] taget", "mean", "target")),
    "choice": ((MODEL, '[optimize]\ntarget = "cuda"'), ("[optimize]", "target", "cuda", "onnx")),
    "type": ((MODEL, "[prove]\nseed = true", OPTIMIZE), ("[prove]", "seed")),
    "range": ((MODEL, OPTIMIZE, "[prove]\nseed = -1"), ("[prove]", "seed")),
    "missing key": (("[model]", OPTIMIZE), ("[model] path", "the key is missing")),
    "two sources": ((MODEL, "[export]\nsource = 'a:b'"), ("[model] or [export]",)),
    "nothing to do": ((MODEL,), ("add a table", "optimize")),
    "prove alone": ((MODEL, "[prove]"), ("[prove]", "no [optimize]")),
    "nothing to compare": ((MODEL, "[verify]"), ("[verify]", "nothing to compare")),
    "engine of nothing": ((MODEL, "[package]\nmodel = 'engine'"), ("[package] model", "[build]")),
    "engine of RTX": ((MODEL, BUILD, "[package]\nmodel = 'engine'"), ("Triton does not run it",)),
    "engine to compare": (
        (MODEL, OPTIMIZE, "[verify]\nengine = 'require'"), ("[verify] engine", "no [build]"),
    ),
    "shapes": ((MODEL, "[bench]\nshapes = 'x=1x'"), ("[bench]", "x=1x")),
    "no inputs": ((MODEL, OPTIMIZE, '[verify]\ninputs = "none.npz"'), ("does not exist",)),
    "no kernels": ((MODEL, OPTIMIZE, '[prove]\nkernels = "none.so"'), ("does not exist",)),
    "no source": (('[export]\nsource = "none/config.json"',), ("does not exist",)),
    "no model": (('[model]\npath = "none.onnx"', OPTIMIZE), ("does not exist", "none.onnx")),
}  # fmt: skip


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
        (b'[pipeline]\nname = "x"\nname = "y"\n', "line 3"),
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
    with pytest.raises(rx.InputError) as caught:
        rx.run_pipeline(path)
    assert words in str(caught.value)


def test_folders_that_belong_to_something_else(tmp_path: Path) -> None:
    path, out = write(tmp_path, MODEL, OPTIMIZE), tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("mine")
    with pytest.raises(rx.UsageError, match="files that no pipeline made") as caught:
        rx.run_pipeline(path)
    assert "thesis.tex" in caught.value.found
    assert [p.name for p in out.iterdir()] == ["thesis.tex"]
    (out / "thesis.tex").unlink()
    rx.run_pipeline(path)  # an empty folder is ours
    with pytest.raises(rx.UsageError, match="belongs to another pipeline"):
        rx.run_pipeline(write(tmp_path, MODEL, OPTIMIZE, name="other"))
    inside = write(tmp_path, '[model]\npath = "out/optimize/net.onnx"', OPTIMIZE)
    with pytest.raises(rx.UsageError, match="an input is in the pipeline's folder"):
        rx.run_pipeline(inside)
    path.write_text(path.read_text().replace('"out"', '"."'))
    with pytest.raises(
        rx.UsageError, match=r"files that no pipeline made|in the pipeline's folder"
    ):
        rx.run_pipeline(path)
    path.write_text(path.read_text().replace('"."', '"three.onnx/deeper"'))
    with pytest.raises(rx.InputError, match="cannot be made"):
        rx.run_pipeline(path)


def test_a_file_to_begin_with(tmp_path: Path) -> None:
    path = tmp_path / "my net.toml"
    begin(path)
    text = path.read_text()
    assert 'name = "my-net"' in text
    assert all(f"\n[{table}]" in text or f"\n# [{table}]" in text for table in TABLES)
    assert set(STEPS) < set(TABLES)
    assert "\n# target: " in text
    with pytest.raises(rx.UsageError, match="exists"):
        begin(path)
    path.write_text(text.replace("model.onnx", "three.onnx"))
    write(tmp_path, MODEL)
    assert ran(rx.run_pipeline(path)) == ["optimize"]
