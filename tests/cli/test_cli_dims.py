"""Sizes by the name of a dimension: as a flag, in Python, and as a key of a pipeline file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

import rmsnorm_export as rx
from rmsnorm_export.cli.build import command as build
from rmsnorm_export.records import from_json, to_dict
from rmsnorm_export.tensorrt.engine.result import EngineRecord
from tests.cli.test_cli_build import needs_rtx
from tests.pipeline.pipelines import MODEL, OPTIMIZE, write

from .conftest import Run

PROFILE = [{"name": "x", "dtype": "float32", "min": [1, 40], "opt": [8, 40], "max": [8, 40]}]
BENCH: dict[str, Any] = {"targets": ["ort"], "rounds": 9, "threads": 1, "providers": ["cpu"]}


@pytest.fixture
def own_factory() -> Iterator[None]:
    """The command keeps what it imports, for its process ends; other tests have a factory, too."""
    sys.modules.pop("factory", None)
    yield
    sys.modules.pop("factory", None)


@needs_rtx
def test_build(run: Run, three: Path, tmp_path: Path) -> None:
    done = run("build", three, "-o", "e.engine", "--dims", "rows=1..8", "--format", "json")
    assert done.code == 0, done.stderr
    assert [p["inputs"] for p in done.json["record"]["profiles"]] == [PROFILE]
    made = rx.build_engine(three, tmp_path / "f.engine", dims={"rows": (1, 8)})
    assert to_dict(made.record.profiles) == done.json["record"]["profiles"]
    table = '[build]\nbackend = "tensorrt-rtx"\ndims = "rows=1..8"'
    assert rx.run_pipeline(write(tmp_path, MODEL, table)).passed
    text = (tmp_path / "out/build/net.engine.json").read_text("utf-8")
    assert from_json(text, EngineRecord).profiles == made.record.profiles
    run("build", three, "-o", "g", "--dims", "cols=4").assert_error(2, "cols", '--dims "rows=')
    run("build", three, "-o", "g", "--dims", "rows=8..1").assert_error(2, "rows", "--dims")


def test_verify(run: Run, three: Path, tmp_path: Path) -> None:
    done = run("verify", three, three, "--dims", "rows=3", "--format", "json")
    assert done.code == 0, done.stderr
    assert done.json["inputs"] == ["x float32 [3, 40]"]
    assert list(rx.verify(three, three, dims={"rows": 3}).inputs) == done.json["inputs"]
    path = write(tmp_path, MODEL, OPTIMIZE, '[verify]\ndims = "rows=3"')
    assert rx.run_pipeline(path).passed
    pages = [p.read_text("utf-8") for p in (tmp_path / "out/verify").glob("raw*.json")]
    assert len(pages) == 1
    assert from_json(pages[0], rx.Verification).inputs == ("x float32 [3, 40]",)
    run("verify", three, three, "--dims", "rows=3,4").assert_error(2, "--dims")
    run("verify", three, three, "--dims", "rows=0").assert_error(2, "rows")
    run("verify", three, three, "--dims", "cols=4").assert_error(2, "cols", '--dims "rows=')


def test_bench(run: Run, three: Path, tmp_path: Path) -> None:
    shared = ("--rounds", 9, "--threads", 1, "--provider", "cpu", "--targets", "ort")
    done = run("bench", three, "--dims", "rows=1,3", *shared, "--format", "json")
    assert done.code == 0, done.stderr
    points = ["rows=1", "rows=3"]
    assert list(dict.fromkeys(t["case"] for t in done.json["timings"])) == points
    result = rx.bench(three, dims={"rows": (1, 3)}, **BENCH)
    assert list(dict.fromkeys(timing.case for timing in result.timings)) == points
    keys = 'targets = ["ort"]\nrounds = 20\nthreads = 1\nprovider = ["cpu"]'
    assert rx.run_pipeline(write(tmp_path, MODEL, f'[bench]\ndims = "rows=1,3"\n{keys}')).passed
    text = (tmp_path / "out/bench/benchmark.json").read_text("utf-8")
    timings = from_json(text, rx.Benchmark).timings
    assert list(dict.fromkeys(timing.case for timing in timings)) == points
    run("bench", three, *shared, "--dims", "rows=1..8").assert_error(2, "rows", "--dims")


@pytest.mark.export
@pytest.mark.usefixtures("own_factory")
def test_export(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="pip install 'rmsnorm-export[torch]'")
    sizes = "input=float32[batch,rows,40]"
    dims = "batch=2 rows=1..8"
    table = f'[export]\nsource = "factory:make"\nshapes = "{sizes}"\ndims = "{dims}"'
    path = write(tmp_path, table)
    assert rx.run_pipeline(path).passed
    done = run("export", "factory:make", "-o", "m.onnx", "--shapes", sizes, "--dims", dims)
    assert done.code == 0, done.stderr
    for file in (tmp_path / "m.onnx", tmp_path / "out/export/net.onnx"):
        shape = onnx.load(file).graph.input[0].type.tensor_type.shape.dim
        assert [dim.dim_param or dim.dim_value for dim in shape] == [2, "rows", 40]
    wrong = run("export", "factory:make", "-o", "n.onnx", "--shapes", sizes, "--dims", "cols=4")
    wrong.assert_error(2, "cols")


def test_quotes_are_not_needed(run: Run, three: Path) -> None:
    done = run("verify", "--dims", "rows=3", "rows=3", three, three, "--format", "json")
    done.assert_error(2, "rows")  # read as two sizes, not as a third model
    for flags in (
        ("--dims", "batch=1,4", "past + sequence=16..128", "a.onnx", "--dims", "heads=2"),
        ("--dims=batch=1,4", "past + sequence=16..128", "a.onnx", "--dims", "heads=2"),
        ("--dims", "batch=1,4 past + sequence=16..128", "--dims", "heads=2", "a.onnx"),
    ):
        context = build.make_context("build", [*flags, "-o", "a.engine"])
        assert context.params["model"] == "a.onnx"
        assert " ".join(context.params["dims"]) == "batch=1,4 past + sequence=16..128 heads=2"
    context = build.make_context("build", ["--shapes", "x=1x1", "y=2x2", "b=1.onnx", "-o", "c"])
    assert context.params["shapes"] == ("x=1x1", "y=2x2")
    assert context.params["model"] == "b=1.onnx"
