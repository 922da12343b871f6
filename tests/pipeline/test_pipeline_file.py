"""Pipeline files that cannot be used: told before anything is made, with table, key and line."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import pytest

import rmsnorm_export as rx
from rmsnorm_export.options import spread
from rmsnorm_export.pipeline.read import read_document
from rmsnorm_export.pipeline.settings import settle
from rmsnorm_export.pipeline.tables import STEPS, TABLES
from rmsnorm_export.records import Unfit, decode, expected
from tests.pipeline.pipelines import BUILD, MODEL, OPTIMIZE, write

HEAD = 3
"""Lines of ``write`` above the first table that a test gives."""

WRONG: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "unknown table": ((MODEL, "[optimise]"), ("line 6, [optimise]", "mean [optimize]?")),
    "far table": ((MODEL, "[xyzzy]"), ("[xyzzy]", "pipeline, model, export")),
    "unknown key": (
        (MODEL, '[optimize]\ntaget = "ort"'),
        ("pipeline.toml, line 7, [optimize] taget", "taget = the string 'ort'", "mean target?"),
    ),
    "choice": (
        (MODEL, '[optimize]\ntarget = "cuda"'),
        ("line 7, [optimize] target", "'cuda'", '"portable", "onnx", "ort"'),
    ),
    "type": ((MODEL, "[prove]\nseed = true", OPTIMIZE), ("boolean true", "an integer from 0")),
    "range": ((MODEL, OPTIMIZE, "[prove]\nseed = -1"), ("integer -1", "an integer from 0")),
    "array": ((MODEL, "[bench]\ntargets = 'ort'"), ("string 'ort'", "an array")),
    "member": ((MODEL, "[bench]\ntargets = ['trt']"), ("[bench] targets", "one of")),
    "union": ((MODEL, "[optimize]\nrequire = 'some'"), ('"all", or an integer from 1',)),
    "no table": (("[model]\npath = 'three.onnx'\n[pipeline.x]",), ("[pipeline] x", "name, folder")),
    "missing key": (("[model]", OPTIMIZE), ("line 4, [model] path", "the key is missing")),
    "two sources": ((MODEL, "[export]\nsource = 'a:b'"), ("begins with one thing",)),
    "no source": ((OPTIMIZE,), ("begins with one thing", "neither [model] nor [export]")),
    "nothing to do": ((MODEL,), ("nothing to do", "optimize, prove")),
    "prove alone": ((MODEL, "[prove]"), ("[prove]", "no [optimize]")),
    "build of nothing": ((MODEL, BUILD + "\nmodel = 'optimized'"), ("[build] model", "[optimize]")),
    "engine of nothing": ((MODEL, "[package]\nmodel = 'engine'"), ("[package] model", "[build]")),
    "engine of RTX": (
        (MODEL, BUILD, "[package]\nmodel = 'engine'"),
        ("does not run an engine of TensorRT-RTX",),
    ),
    "shapes of build": ((MODEL, "[build]\nshapes = 'x=1x40,2x40'"), ("[build] shapes", "2 shapes")),
    "shapes of bench": ((MODEL, "[bench]\nshapes = 'x=1x'"), ("[bench] shapes", "'x=1x'")),
    "shapes of package": ((MODEL, "[package]\nshapes = 'x'"), ("[package] shapes",)),
    "bytes": ((MODEL, "[build]\nmemory_limit = '4 parsecs'"), ("memory_limit", "4GiB")),
    "rounds": ((MODEL, "[bench]\nrounds = 3"), ("[bench]: too few rounds",)),
    "peer": ((MODEL, "[bench]\npeers = ['x']"), ("[bench] peers", "'x'", '"onnxsim"')),
    "no reference": (
        (MODEL, OPTIMIZE, "[verify]\npairs = [['pytorch', 'raw']]"),
        ("[verify] pairs", "no results of PyTorch"),
    ),
    "no pair": ((MODEL, OPTIMIZE, "[verify]\npairs = [['raw']]"), ("['raw']", "this is no pair")),
    "same pair": ((MODEL, OPTIMIZE, "[verify]\npairs = [['raw', 'raw']]"), ("this is no pair",)),
    "nothing to compare": ((MODEL, "[verify]"), ("nothing to compare",)),
    "engine to compare": (
        (MODEL, OPTIMIZE, "[verify]\nengine = 'require'"),
        ("[verify] engine", "no [build]"),
    ),
    "kserve alone": ((MODEL, "[package]\nkserve_cpu = '4'"), ("kserve_cpu, and no kserve",)),
    "replicas": (
        (MODEL, "[package]\nkserve = 's3://x/y'\nkserve_replicas = [1]"),
        ("kserve_replicas", "an array of 2"),
    ),
    "name of the package": ((MODEL, "[package]\nname = '../x'"), ("[package] name", "'../x'")),
    "repository in a step": (
        (MODEL, "[package]\nrepository = 'out/optimize'"),
        ("[package] repository", "another step writes"),
    ),
    "cache in a step": (
        (MODEL, "[build]\ntiming_cache = 'out/verify/cache'"),
        ("[build] timing_cache", "another step writes"),
    ),
    "input in the folder": (("[model]\npath = 'out/m.onnx'", OPTIMIZE), ()),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong(tmp_path: Path, case: str) -> None:
    tables, words = WRONG[case]
    path = write(tmp_path, *tables)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(rx.UsageError if words else rx.InputError) as caught:
        rx.run_pipeline(path)
    text = str(caught.value)
    assert text.count("\n") >= 2, "what, found and fix"
    for word in ("pipeline.toml", *words):
        assert word in text
    assert sorted(tmp_path.rglob("*")) == before


def test_files_that_are_missing(tmp_path: Path) -> None:
    cases = (
        ('[model]\npath = "none.onnx"', OPTIMIZE),
        ('[export]\nsource = "none/config.json"',),
        ('[export]\nsource = "factory:make"\nfiles = ["none.bin"]',),
        (MODEL, OPTIMIZE, '[verify]\ninputs = "none.npz"'),
        (MODEL, OPTIMIZE, '[prove]\nkernels = "none.so"'),
        (MODEL, '[package]\nplugin_library = "none.so"'),
    )
    for tables in cases:
        with pytest.raises(rx.InputError, match="does not exist") as caught:
            rx.run_pipeline(write(tmp_path, *tables))
        assert str(tmp_path / "none") in caught.value.found
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[pipeline\n", "line 1"),
        (b'[pipeline]\nname = "x"\nname = "y"\n', "line 3"),
        (b"\xff\xfe", "decode"),
        (b"#" * (1 << 20) + b"\n#", "1,048,576 bytes"),
        (b"a = " + b"[" * 5000, "TOML"),
    ],
)
def test_no_toml(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "p.toml"
    path.write_bytes(content)
    with pytest.raises(rx.InputError) as caught:
        rx.run_pipeline(path)
    assert words in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    for path, words in (tmp_path / "none.toml", "does not exist"), (tmp_path, "cannot be read"):
        with pytest.raises(rx.InputError, match=f"pipeline file {words}"):
            rx.run_pipeline(path)


def test_a_key_outside_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text('name = "x"\n')
    with pytest.raises(rx.UsageError, match="outside of every table"):
        rx.run_pipeline(path)


def test_a_name_that_is_no_file(tmp_path: Path) -> None:
    for name in ("../x", "a b", ".hidden"):
        with pytest.raises(rx.UsageError, match="name cannot be used"):
            rx.run_pipeline(write(tmp_path, MODEL, OPTIMIZE, name=name))


def test_shapes_that_do_not_fit_the_model(tmp_path: Path) -> None:
    for table in ("build", "package"):
        path = write(tmp_path, MODEL, OPTIMIZE, f'[{table}]\nshapes = "x=1x41,2x41,8x41"')
        with pytest.raises(rx.UsageError, match="Dimension 1 is 40"):
            rx.run_pipeline(path)
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_none(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, OPTIMIZE)
    (tmp_path / "three.onnx").write_bytes(b"no model")
    done = rx.run_pipeline(path)
    assert (done.exit_code, done.steps[0].state) == (3, "failed")
    assert not (tmp_path / "out/optimize").exists()


def test_folders_that_belong_to_something_else(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, OPTIMIZE)
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("mine")
    with pytest.raises(rx.UsageError, match="files that no pipeline made") as caught:
        rx.run_pipeline(path)
    assert "thesis.tex" in caught.value.found
    assert [p.name for p in out.iterdir()] == ["thesis.tex"]
    (out / "thesis.tex").unlink()
    rx.run_pipeline(path)  # an empty folder is ours
    other = write(tmp_path, MODEL, OPTIMIZE, name="other")
    with pytest.raises(rx.UsageError, match="belongs to another pipeline"):
        rx.run_pipeline(other)
    write(tmp_path, MODEL, OPTIMIZE)
    copy = tmp_path / "copy.toml"
    copy.write_text(path.read_text())
    with pytest.raises(rx.UsageError, match="belongs to another pipeline"):
        rx.run_pipeline(copy)
    path.unlink()  # renamed, not another
    assert rx.run_pipeline(copy).step("optimize").state == "skipped"
    (out / "pipeline.json").write_text("{}")
    with pytest.raises(rx.InputError, match="does not say which pipeline"):
        rx.run_pipeline(copy)


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, OPTIMIZE)
    (tmp_path / "out").write_text("mine")
    with pytest.raises(rx.InputError, match="is taken"):
        rx.run_pipeline(path)
    path.write_text(path.read_text().replace('"out"', '"out/deeper"'))
    with pytest.raises(rx.InputError, match="cannot be made"):
        rx.run_pipeline(path)


def test_the_pipeline_file_may_not_be_in_its_folder(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL, OPTIMIZE)
    path.write_text(path.read_text().replace('"out"', '"."'))
    with pytest.raises(rx.UsageError, match="pipeline file itself"):
        rx.run_pipeline(path)


@pytest.mark.parametrize(
    ("package", "table", "brings"),
    [
        ("tensorrt_rtx", BUILD, "tensorrt_rtx>="),
        ("tritonclient", "[package]", "tritonclient>="),
        ("onnxruntime", "[bench]", "onnxruntime>="),
        ("matplotlib", "[bench]\npng = true", "matplotlib>="),
    ],
)
def test_a_missing_backend_is_told_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, table: str, brings: str
) -> None:
    find = importlib.util.find_spec

    def hidden(name: str, *rest: object) -> object:
        return None if name == package else find(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("rmsnorm_export.system.packages.find_spec", hidden)
    from rmsnorm_export.serving.protos import definitions

    definitions.cache_clear()
    path = write(tmp_path, MODEL, OPTIMIZE, table)
    with pytest.raises(rx.BackendMissingError) as caught:
        rx.run_pipeline(path)
    assert brings in caught.value.fix
    assert not (tmp_path / "out").exists()


def test_every_key_has_a_type_that_can_be_read() -> None:
    for name, table in TABLES.items():
        for entry in spread(table):
            if entry.facts.toml:
                assert "a value" not in expected(entry.written), f"[{name}] {entry.key}"
                with pytest.raises(Unfit):
                    decode(object(), entry.written)
    assert set(STEPS) < set(TABLES)


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, MODEL, OPTIMIZE, '[package]\nrepository = "../models"')
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    settings = settle(read_document("../pipeline.toml"))
    assert settings.folder == tmp_path / "out"
    assert settings.onnx("raw") == tmp_path / "three.onnx"
    assert settings.repository == tmp_path.parent / "models"
    assert dataclasses.asdict(settings)["document"]["path"] == path
