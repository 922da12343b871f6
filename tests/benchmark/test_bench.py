"""``bench`` with real sessions: what is checked, what is ranked, what is refused, how it reads."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import rmsnorm_export as rx
from rmsnorm_export.benchmark.measure import bench
from rmsnorm_export.benchmark.model import GPU, Measurement, grid, wrong_output
from rmsnorm_export.benchmark.options import BenchOptions
from rmsnorm_export.benchmark.result import AGAIN, RAW, Benchmark, Timing, Verdict, headlines
from rmsnorm_export.errors import BackendMissingError, UsageError
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.records import from_json, to_json
from rmsnorm_export.runtime.sizes import Declared
from tests.cli.conftest import model
from tests.proof.sites import LLAMA, source

FAST: dict[str, Any] = {"seconds": 0.02, "threads": 1, "providers": ("cpu",)}


def measured(source: Any, **options: Any) -> Benchmark:
    return bench(source, **(FAST | options))


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a report has a note more."""
    monkeypatch.setattr("rmsnorm_export.benchmark.model.load_average", lambda: 0.0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three norms over 40 elements, any number of rows."""
    file = tmp_path_factory.mktemp("bench") / "three.onnx"
    onnx.save(model(3), file)
    return file


def test_for_the_cuda_provider_a_sum_in_half_precision_is_in_the_node() -> None:
    """Measured beside the targets where CUDA is; here the file is made, and runs on the CPU."""
    body = f"  h = Add (x, q)\n  xf = Cast <to = 1> (h)\n{LLAMA}"
    ends = {"inputs": ("x", "q", "w"), "outputs": ("y", "h"), "row": "xf"}
    run = Measurement(load_model(source(body, dtype=10, **ends)), BenchOptions(**FAST))
    run.prepare(("cpu",))
    for target in ("ort", GPU):
        run.make(target)
    ort, gpu = (onnx.load_from_string(run.contents[name]).graph for name in ("ort", GPU))
    assert len(ort.node) == len(gpu.node) + 1
    run.measure("cpu")
    assert GPU in {one.variant for one in run.timings}


def test_every_target_is_checked_and_timed(path: Path) -> None:
    steps: list[str] = []
    result = measured(path, shapes="x=1x40,3x40", progress=lambda what, *_: steps.append(what))
    assert result.passed
    assert {one.variant for one in result.timings} == {RAW, AGAIN, "portable", "onnx", "ort"}
    assert result.unranked == {}
    assert result.cases == {f"x={n}x40": (f"x float32 [{n}, 40]",) for n in (1, 3)}
    assert len(result.timings) == 2 * 5
    for one in result.timings:
        assert one.rounds >= 20
        assert one.floor >= 0.01
        assert 0 < one.low <= one.ratio <= one.high
        assert 0 < one.q1_ms <= one.median_ms <= one.q3_ms
    assert [t.variant for t in result.timed("cpu", "x=3x40")[:2]] == [RAW, AGAIN]
    assert steps[-1] == "timing x=3x40 on cpu"
    assert from_json(to_json(result), Benchmark) == result


def test_a_busy_machine_gives_no_verdict(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmsnorm_export.benchmark.model.load_average", lambda: 9.0)
    monkeypatch.setattr("rmsnorm_export.benchmark.model.cores", lambda: 4)
    busy = measured(path, targets=("ort",), shapes="x=1x40")
    assert busy.timings[-1].verdict == "no verdict"
    assert headlines(busy) == ["cpu: no verdict, the machine was busy"]
    assert "a load of 9 on 4 cores: measure again" in busy.to_text()
    monkeypatch.setattr("rmsnorm_export.benchmark.model.load_average", lambda: 8.0)
    idle = measured(path, targets=("ort",), shapes="x=1x40")
    assert idle.timings[-1].verdict != "no verdict"


def test_a_model_whose_norms_are_one_node_already_is_no_model_before(
    path: Path, tmp_path: Path
) -> None:
    fused = tmp_path / "fused.onnx"
    rx.optimize(path).save(fused)
    (note,) = measured(fused, targets=("ort",), shapes="x=1x40").notes
    assert "--target plain" in note
    assert measured(path, targets=("ort",), shapes="x=1x40").notes == ()


def test_a_wrong_target_is_not_ranked_and_fails(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def optimize(source: Any, *, target: str, **options: Any) -> Any:
        source = model(3, scale=1.5) if target == "ort" else source
        return rx.optimize(source, target=target, **options)

    monkeypatch.setattr("rmsnorm_export.benchmark.model.optimize", optimize)
    result = measured(path, targets=("portable", "ort"), shapes="x=2x40")
    assert not result.passed
    assert result.reason.startswith("ort on cpu: out at x=2x40")
    assert list(result.unranked) == ["ort on cpu"]
    assert {t.variant for t in result.timings} == {RAW, AGAIN, "portable"}


def test_outputs_without_a_number_are_compared_with_nothing() -> None:
    """Both are NaN everywhere: no evidence, so that it is neither ranked nor a pass."""
    proto = model(1)
    proto.graph.node.append(helper.make_node("Sqrt", ["negative"], ["nan"]))
    proto.graph.node.append(helper.make_node("Mul", ["out", "nan"], ["bad"]))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(-1.0, np.float32), "negative"))
    proto.graph.output[0].name = "bad"
    result = measured(proto, targets=("ort",), shapes="x=2x40")
    assert not result.passed
    assert set(result.unranked) == {"raw on cpu", "ort on cpu"}
    assert not result.timings


def test_an_output_that_is_missing_or_of_another_shape_is_wrong() -> None:
    zeros = np.zeros((2, 2), np.float32)
    assert "lacks outputs" in wrong_output("x", {"b": zeros}, {"a": zeros, "b": zeros})
    assert "[2, 2] and float32 [2]" in wrong_output("x", {"a": zeros[0]}, {"a": zeros})
    assert wrong_output("x", {"a": zeros}, {"a": zeros}) == ""


def test_a_model_that_does_not_run() -> None:
    """Rows must be even, which the declared shape does not say."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[rows, 4] x) => (float y) {
      shape = Constant <value_ints = [-1, 2, 4]> ()  y = Reshape (x, shape) }"""
    with pytest.raises(UsageError, match="does not run at the shapes x=3x4"):
        measured(onnx.parser.parse_model(text), shapes="x=3x4")


def test_usual_sizes_that_a_model_refuses_are_told() -> None:
    """As GroupQueryAttention refuses a prompt of several rows after a cache."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[rows, n] x) => (float y) {
      first = Constant <value_ints = [0]> ()  y = Squeeze (x, first) }"""
    result = measured(onnx.parser.parse_model(text))
    assert list(result.cases) == ["x=1x16", "x=1x128"]
    assert any("not measured at x=4x128" in note for note in result.notes)


def test_a_provider_that_is_not_there_or_does_not_start(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BackendMissingError, match="CUDA"):
        measured(path, providers=("cpu", "cuda"), targets=("ort",))
    present = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: present)
    result = measured(path, providers=None, targets=("ort",))
    assert result.providers == ("cpu",)
    assert result.unranked["raw on cuda"].startswith("failed: ")


Shape = tuple[int | str | None, ...]


@pytest.mark.parametrize(
    ("shapes", "labels"),
    [
        ({"x": (3, 4)}, ["x=3x4"]),
        ({"ids": ("batch", "seq"), "m": ("batch", "seq")}, ["ids=1x16", "ids=1x128", "ids=4x128"]),
        ({"x": ("batch", 3, 8, 8)}, ["x=1x3x8x8", "x=4x3x8x8"]),
        ({"x": (None, None, 8)}, ["x=1x16x8", "x=1x128x8", "x=4x128x8"]),
    ],
)
def test_where_it_is_measured_without_shapes(shapes: dict[str, Shape], labels: list[str]) -> None:
    declared = {name: Declared(name, "float32", shape) for name, shape in shapes.items()}
    assert list(grid(declared, BenchOptions())) == labels


def timing(variant: str, case: str, ratio: float, verdict: Verdict) -> Timing:
    """A timing with an interval of 2 % on either side."""
    times = (5 * ratio, 4.9 * ratio, 5.2 * ratio, ratio, ratio - 0.02, ratio + 0.02)
    return Timing(variant, "cpu", case, 90, 9, *times, 0.03, verdict)


def test_the_headline_and_the_text(path: Path) -> None:
    cases, equal = ("x=1x40", "x=3x40"), "no difference beyond noise"
    rows = ((RAW, 1.0, "baseline"), (AGAIN, 1.01, "noise floor"), ("portable", 1.1, "slower"),
            ("onnx", 1.0, equal), ("ort", 0.8, "faster"))  # fmt: skip
    whole = dataclasses.replace(
        measured(path, targets=("ort",), shapes="x=1x40,3x40"),
        timings=tuple(timing(n, case, r, v) for case in cases for n, r, v in rows),
        unranked={"plain": "failed: no room", "native on cpu": "logits: 2, 0.1 allowed"},
        notes=("a note",),
    )
    assert headlines(whole) == [
        "cpu: ort takes 0.80 of raw's time (faster), portable takes 1.10 of raw's time (slower);"
        " no measurable gain with onnx"
    ]
    both = (timing("ort", cases[0], 0.8, "faster"), timing("ort", cases[1], 1.2, "slower"))
    mixed = dataclasses.replace(whole, timings=both)
    assert headlines(mixed) == ["cpu: ort takes 0.80-1.20 of raw's time (faster, slower)"]
    same = dataclasses.replace(whole, timings=(timing("ort", cases[0], 1.0, equal),))
    assert headlines(same) == ["cpu: no measurable gain with ort"]
    text = whole.to_text(verbose=1)
    for words in ("0.780 - 0.820", "plain: failed: no room", "native on cpu: logits", "a note"):
        assert words in text
    wrong = dataclasses.replace(whole, passed=False, reason="ort on cpu: logits")
    assert wrong.to_text().startswith("WRONG OUTPUTS: ort on cpu: logits")
