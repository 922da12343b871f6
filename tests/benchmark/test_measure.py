"""``bench`` with real sessions: what is checked, what is not ranked, what is refused."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from rmsnorm_export.benchmark import measure, sessions
from rmsnorm_export.benchmark.measure import bench, check_outputs
from rmsnorm_export.benchmark.result import AGAIN, RAW, Benchmark, Trial
from rmsnorm_export.errors import BackendMissingError, InputError, UsageError
from rmsnorm_export.records import from_json, to_json
from rmsnorm_export.runtime.inputs import read_arrays, write_arrays
from tests.cli.conftest import model

FAST: dict[str, Any] = {"rounds": 18, "threads": 1, "providers": ("cpu",)}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three norms over 40 elements, any number of rows."""
    file = tmp_path_factory.mktemp("bench") / "three.onnx"
    onnx.save(model(3), file)
    return file


def fake_onnxslim(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """An optimizer of that name whose main does ``body``; it sees model and output."""
    package = folder / "onnxslim"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    code = "import sys\ndef main():\n    model, output = sys.argv[1:]\n"
    text = code + textwrap.indent(textwrap.dedent(body), "    ")
    (package / "cli.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)


def peer_alone(path: Path, **options: Any) -> Benchmark:
    return bench(path, targets=(), peers=("onnxslim",), shapes="x=2x40", **FAST, **options)


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
    peak = result.peak_mib("ort", "cpu")
    assert peak is None or peak > 10
    assert result.peak_mib(AGAIN, "cpu") == result.peak_mib(RAW, "cpu")
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


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("raise ImportError('No module named needed')", "failed", "needed"),
        ("raise ValueError('unexpected node')", "failed", "ValueError: unexpected node"),
        ("sys.exit(3)", "failed", "exit code 3"),
        ("pass", "failed", "wrote no ONNX model"),
        ("open(output, 'wb').write(b'no model')", "failed", "wrote no ONNX model"),
        ("raise MemoryError('too much')", "out of memory", "too much"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGABRT)", "killed", "SIGABRT"),
    ],
)
def test_a_peer_that_fails_says_so(
    body: str, status: str, words: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_onnxslim(tmp_path, monkeypatch, body)
    result = peer_alone(path)
    assert result.variants[1].status == status
    assert words in result.variants[1].detail
    assert result.passed
    assert result.timings == ()
    assert result.unranked()[0][0] == "onnxslim"


def test_a_peer_that_is_not_installed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_onnxslim(tmp_path, monkeypatch, "pass")
    (tmp_path / "onnxslim" / "cli.py").write_text("import no_such_package", encoding="utf-8")
    variant = peer_alone(path).variants[1]
    assert variant.status == "not installed"
    assert "pip install onnxslim" in variant.detail


def test_a_peer_has_a_clock_and_a_ceiling(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_onnxslim(tmp_path, monkeypatch, "import time\ntime.sleep(60)")
    assert peer_alone(path, peer_seconds=1.0).variants[1].status == "time limit"
    text = "import sys\ndef main():\n    bytearray(1 << 32)\n"
    (tmp_path / "onnxslim" / "cli.py").write_text(text, encoding="utf-8")
    assert peer_alone(path, peer_memory=1 << 30).variants[1].status == "out of memory"


def test_a_peer_with_wrong_outputs_is_not_ranked(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(model(3, scale=2.0), tmp_path / "wrong.onnx")
    copy = f"import shutil\nshutil.copy({str(tmp_path / 'wrong.onnx')!r}, output)"
    fake_onnxslim(tmp_path, monkeypatch, copy)
    result = peer_alone(path)
    assert result.passed, "a peer's mistake is not the user's"
    assert result.trials[-1].status == "wrong outputs"
    assert not [t for t in result.timings if t.variant == "onnxslim"]


def test_a_peer_that_is_right_is_ranked(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_onnxslim(tmp_path, monkeypatch, "import shutil\nshutil.copy(model, output)")
    assert [t.variant for t in peer_alone(path).timings] == [RAW, AGAIN, "onnxslim"]


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
        {"peer_seconds": -1.0},
        {"rounds": 5},
        {"threads": 0},
        {"targets": ("nope",)},
        {"targets": ("ort", "ort")},
        {"targets": ()},
        {"peers": ("nope",)},
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


def test_variants_that_do_not_fit_together(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmsnorm_export.benchmark.measure.memory_available", lambda: 1)
    with pytest.raises(UsageError, match="do not fit into memory together"):
        bench(path, targets=("ort",), **FAST)


def test_arrays_of_every_kind_come_back(tmp_path: Path) -> None:
    given = {
        "a/b:c": np.arange(6, dtype=np.float16).reshape(2, 3),
        "half": np.array([1.5, -2.0], ml_dtypes.bfloat16),
        "text": np.array([["a", "\u00fc"]], dtype=object),
        "empty": np.zeros((0, 3), np.int64),
    }
    write_arrays(tmp_path / "x.npz", given)
    found = read_arrays(tmp_path / "x.npz")
    assert list(found) == list(given)
    for name, array in given.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


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
