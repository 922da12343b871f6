"""``bench`` with real sessions: what is checked, what is not ranked, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from rmsnorm_export.benchmark import measure, sessions
from rmsnorm_export.benchmark.checks import check_outputs
from rmsnorm_export.benchmark.measure import bench
from rmsnorm_export.benchmark.result import AGAIN, RAW, Benchmark, Trial
from rmsnorm_export.errors import BackendMissingError, InputError, UsageError
from rmsnorm_export.records import from_json, to_json
from tests.cli.conftest import model

FAST: dict[str, Any] = {"rounds": 18, "threads": 1, "providers": ("cpu",)}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three norms over 40 elements, any number of rows."""
    file = tmp_path_factory.mktemp("bench") / "three.onnx"
    onnx.save(model(3), file)
    return file


def test_every_target_is_checked_and_timed(path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    result = bench(path, shapes="x=1x40,3x40", progress=lambda *step: seen.append(step), **FAST)
    assert result.passed
    assert [variant.name for variant in result.variants] == [RAW, "portable", "onnx", "ort"]
    assert [variant.fused for variant in result.variants] == [None, 3, 3, 3]
    assert {trial.status for trial in result.trials} == {"ok"}
    assert all(check.passed for trial in result.trials for check in trial.checks)
    assert [(case.label, case.inputs) for case in result.cases] == [
        ("x=1x40", ("x float32 [1, 40]",)),
        ("x=3x40", ("x float32 [3, 40]",)),
    ]
    assert len(result.timings) == 2 * 5
    for timing in result.timings:
        assert timing.rounds >= 18
        assert 0 < timing.low <= timing.ratio <= timing.high
        assert 0 < timing.q1_ms <= timing.median_ms <= timing.q3_ms
        assert timing.floor >= 0.01
    assert [t.variant for t in result.timed("cpu", "x=3x40")[:2]] == [RAW, AGAIN]
    assert result.session["intra_op_num_threads"] == 1
    assert result.versions["onnxruntime"]
    assert [done for _, done, _ in seen] == list(range(len(seen)))
    assert seen[-1][1] + 1 == seen[-1][2]


def test_the_json_form_comes_back(path: Path) -> None:
    result = bench(path, targets=("ort",), **FAST)
    assert from_json(to_json(result), Benchmark) == result


@pytest.mark.parametrize("form", ["bytes", "proto", "ir"])
def test_a_model_in_memory(form: str) -> None:
    proto = model(1)
    source: Any = {
        "bytes": proto.SerializeToString(), "proto": proto, "ir": ir.from_proto(proto)
    }[form]  # fmt: skip
    assert bench(source, targets=("portable",), shapes={"x": (2, 40)}, **FAST).timings


def test_a_wrong_target_is_not_ranked_and_fails(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "wrong.onnx"
    onnx.save(model(3, scale=1.5), wrong)
    real = measure.make_target
    monkeypatch.setattr(
        measure,
        "make_target",
        lambda source, target, *rest: real(wrong if target == "ort" else source, target, *rest),
    )
    result = bench(path, targets=("portable", "ort"), shapes="x=2x40", **FAST)
    assert not result.passed
    assert result.reason.startswith("ort on cpu: out at x=2x40")
    assert [name for name, _, _ in result.unranked()] == ["ort"]
    assert {t.variant for t in result.timings} == {RAW, AGAIN, "portable"}


def reshaping() -> onnx.ModelProto:
    """A model whose rows must be even, which its declared shape does not say."""
    shape = numpy_helper.from_array(np.array([-1, 2, 4], np.int64), "shape")
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [shape],
    )
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def test_sizes_that_the_model_refuses() -> None:
    with pytest.raises(UsageError, match="does not run at the shapes x=3x4"):
        bench(reshaping(), shapes="x=3x4", **FAST)
    assert bench(reshaping(), shapes="x=2x4", **FAST).passed


def test_a_model_that_onnx_runtime_does_not_load() -> None:
    proto = reshaping()
    proto.graph.node[0].op_type = "NoSuchOperator"
    proto.graph.node[0].domain = "nowhere"
    proto.opset_import.append(helper.make_opsetid("nowhere", 1))
    with pytest.raises(InputError, match="ONNX Runtime does not load the model"):
        bench(proto, **FAST)


@pytest.mark.parametrize(
    "options",
    [
        {"seconds": 0.0},
        {"seconds": float("inf")},
        {"rounds": 5},
        {"threads": 0},
        {"targets": ("nope",)},
        {"targets": ()},
        {"providers": ("nope",)},
        {"providers": ()},
        {"numerics": "nope"},
    ],
)
def test_options_that_cannot_be_used(options: dict[str, Any], path: Path) -> None:
    with pytest.raises(UsageError):
        bench(path, **options)


def test_a_provider_that_is_not_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    present = ["CPUExecutionProvider"]
    monkeypatch.setattr(sessions.onnxruntime(), "get_available_providers", lambda: present)
    with pytest.raises(BackendMissingError, match="cuda"):
        bench(path, providers=("cuda",))
    result = bench(path, targets=("ort",), rounds=9)
    assert result.providers == ("cpu",)
    assert "the provider cuda is not in this ONNX Runtime" in result.notes


def test_a_provider_that_falls_back_is_not_measured(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(sessions.onnxruntime(), "get_available_providers", lambda: present)
    real = measure.Measurement.trial

    def trial(self: measure.Measurement, variant: str, provider: str) -> Trial:
        if provider == "cuda":
            return Trial(variant, provider, "failed", "fell back to the CPU")
        return real(self, variant, provider)

    monkeypatch.setattr(measure.Measurement, "trial", trial)
    result = bench(path, targets=("ort",), rounds=9)
    assert result.providers == ("cpu",)
    assert "the provider cuda cannot be used here: fell back to the CPU" in result.notes
    with pytest.raises(BackendMissingError, match="cuda"):
        bench(path, targets=("ort",), providers=("cpu", "cuda"), rounds=9)


def test_a_model_that_only_another_provider_loads(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(sessions.onnxruntime(), "get_available_providers", lambda: present)
    asked: list[str] = []

    def open_session(_: str, provider: str, **__: object) -> None:
        asked.append(provider)
        raise RuntimeError(f"no kernel on {provider}")

    monkeypatch.setattr(sessions, "open_session", open_session)
    with pytest.raises(InputError) as caught:
        bench(path, targets=("ort",), rounds=9)
    assert asked == ["cpu", "cuda"]
    assert caught.value.found == "no kernel on cpu"


def test_an_output_that_is_missing_or_of_another_shape_is_wrong() -> None:
    zeros = np.zeros((2, 2), np.float32)
    checks = check_outputs("x", {"b": zeros[0]}, {"a": zeros, "b": zeros})
    assert [check.passed for check in checks] == [False, False]
    assert checks[0].reason == "the output is missing"
    assert "[2], not float32 [2, 2]" in checks[1].reason


def test_outputs_without_a_number_are_compared_with_nothing(tmp_path: Path) -> None:
    """Both are NaN everywhere: no evidence, so that it is neither ranked nor a pass."""
    proto = model(1)
    proto.graph.node.append(helper.make_node("Sqrt", ["negative"], ["nan"]))
    proto.graph.node.append(helper.make_node("Mul", ["out", "nan"], ["bad"]))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(-1.0, np.float32), "negative"))
    proto.graph.output[0].name = "bad"
    onnx.save(proto, tmp_path / "nan.onnx")
    result = bench(tmp_path / "nan.onnx", targets=("ort",), shapes="x=2x40", **FAST)
    assert not result.passed
    assert {trial.status for trial in result.trials} == {"not compared"}
    assert not result.timings
    assert any("nothing could be compared on cpu" in note for note in result.notes)
