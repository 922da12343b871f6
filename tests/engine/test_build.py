"""Real engines, built by TensorRT-RTX without a GPU: the files, the record, the refusals."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

import rmsnorm_export as rx
from rmsnorm_export.errors import BackendMissingError, InputError, RequirementError, UsageError
from rmsnorm_export.records import from_json
from rmsnorm_export.system import process
from rmsnorm_export.system.reading import sha256_of
from rmsnorm_export.tensorrt.engine import backends, build
from rmsnorm_export.tensorrt.engine.backends import RTX, TENSORRT, choose
from rmsnorm_export.tensorrt.engine.build import build_engine, require_plugin
from rmsnorm_export.tensorrt.engine.options import plan_plugin
from rmsnorm_export.tensorrt.engine.result import EngineRecord

from .conftest import SHAPES, N, model_of, needs_rtx, norm

pytestmark = needs_rtx
HERE = "tests.engine.test_build"
F16, F32 = TensorProto.FLOAT16, TensorProto.FLOAT


def test_an_engine_and_its_record(one_norm: Path, tmp_path: Path) -> None:
    before = one_norm.read_bytes()
    result = build_engine(one_norm, tmp_path / "e.engine", shapes=SHAPES)
    record, text = result.record, result.sidecar.read_text()
    assert from_json(text, EngineRecord) == record
    assert str(tmp_path) not in text
    assert result.path.read_bytes()[:4] == b"vtrt"
    assert (record.bytes, record.sha256) == (result.path.stat().st_size, sha256_of(result.path))
    assert (record.model, record.model_sha256) == ("one.onnx", sha256_of(one_norm))
    assert (record.backend, record.messages) == ("tensorrt-rtx", ())
    assert record.profiles[0].inputs[0].max == (128, N)
    assert [item.text() for item in record.outputs] == ["'y' float32 [rows, 40]"]
    assert record.layers_from in ("builder log", "inspector")
    (only,) = record.norms
    assert (only.name, only.op, only.form) == ("norm", "RMSNorm", "node")
    assert (only.how, only.kernels, only.reason) == ("fused", 1, "")
    assert "Mean" in only.names[0]
    with pytest.raises(RequirementError, match="nothing was written") as caught:
        require_plugin(record)
    assert caught.value.found == "norm is fused"
    assert one_norm.read_bytes() == before
    assert {p.name for p in tmp_path.iterdir()} == {"one.onnx", "e.engine", "e.engine.json"}


def test_a_long_row_is_not_one_kernel(tmp_path: Path) -> None:
    """From 16,384 elements on TensorRT-RTX 1.7.1 sums in one kernel and scales in another."""
    n = 32768
    model = model_of(norm(), x=F16, n=n)
    shapes = {"x": [(rows, n) for rows in (1, 4, 64)]}
    (only,) = build_engine(model, tmp_path / "e", shapes=shapes).record.norms
    assert (only.how, (only.kernels or 0) >= 2) == ("unfused", True)


def test_external_data_is_read_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "model" / "m.onnx"
    for folder in ("model", "elsewhere"):
        (tmp_path / folder).mkdir()
    options = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(model_of(norm()), source, **options)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert build_engine(source, tmp_path / "e", shapes=SHAPES).record.model == "m.onnx"
    with pytest.raises(InputError, match="does not know its folder"):
        build_engine(source.read_bytes(), tmp_path / "f", shapes=SHAPES)
    source.with_name("w.bin").unlink()
    with pytest.raises(InputError):
        build_engine(source, tmp_path / "f", shapes=SHAPES)
    assert not (tmp_path / "f").exists()


def test_names_that_look_like_patterns(tmp_path: Path) -> None:
    model = model_of(norm(x="t"))
    model.graph.input[0].name = "x[0]"
    model.graph.input.append(helper.make_tensor_value_info("x*", F32, ["rows", N]))
    model.graph.node.insert(0, helper.make_node("Sub", ["x[0]", "x*"], ["t"], name="sub"))
    record = build_engine(model, tmp_path / "e", dims="rows=1,2,3").record
    assert [item.max for item in record.profiles[0].inputs] == [(3, N), (3, N)]
    assert record.norms[0].how == "fused"


def test_several_profiles(one_norm: Path, tmp_path: Path) -> None:
    shapes = [SHAPES, {"x": [(256, N), (256, N), (512, N)]}]
    record = build_engine(one_norm, tmp_path / "e", shapes=shapes).record
    assert [p.inputs[0].opt for p in record.profiles] == [(4, N), (256, N)]
    assert {layer.profile for layer in record.layers} == {0, 1}
    assert (record.norms[0].how, record.norms[0].kernels) == ("fused", 1)


def test_nothing_is_overwritten(one_norm: Path, tmp_path: Path) -> None:
    """What exists stays without force; the model stays with it, too."""
    engine, sidecar, before = tmp_path / "e", tmp_path / "e.json", one_norm.read_bytes()
    for taken in (engine, sidecar):
        taken.write_text("mine")
        with pytest.raises(UsageError, match="exists already"):
            build_engine(one_norm, engine, shapes=SHAPES)
        assert taken.read_text() == "mine"
    build_engine(one_norm, engine, shapes=SHAPES, force=True)
    assert from_json(sidecar.read_text(), EngineRecord).sha256 == sha256_of(engine)
    os.link(one_norm, tmp_path / "link.json")
    for source, target in ((one_norm, one_norm), (tmp_path / "link.json", tmp_path / "link")):
        with pytest.raises(UsageError, match="input file"):
            build_engine(source, target, shapes=SHAPES, force=True)
    assert one_norm.read_bytes() == before


MIXED = (
    helper.make_node("RMSNormalization", ["x", "w32"], ["y"], name="mixed"),
    helper.make_node("SimplifiedLayerNormalization", ["x", "w32"], ["y"], name="mixed"),
    helper.make_node("F", ["x", "w32"], ["y"], domain="other", name="call"),
)
FUNCTION = helper.make_function(
    "other", "F", ["x", "w32"], ["y"], [MIXED[0]], [helper.make_opsetid("", 23)]
)


@pytest.mark.parametrize("node", MIXED, ids=lambda node: node.op_type)
def test_a_scale_that_the_parser_would_round_is_refused(
    node: onnx.NodeProto, tmp_path: Path
) -> None:
    model = model_of(node, x=F16, y=F32, functions=(FUNCTION,))
    with pytest.raises(InputError) as caught:
        build_engine(model, tmp_path / "e", shapes=SHAPES)
    for word in ("x float16", "scale float32", "'mixed'", "--target portable"):
        assert word in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", ["onnx", "portable"])
def test_optimize_writes_no_such_scale(target: Any, tmp_path: Path) -> None:
    """f16 rows times an f32 scale, spelled out: the casts are in the graph, and stay."""
    ones = ", ".join(["1.0"] * N)
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]>\n'
        f"g (float16[rows,{N}] x) => (float16[rows,{N}] y)\n"
        f"<float[{N}] w = {{{ones}}}, int64[1] axes = {{-1}}, float eps = {{0.000001}}> {{"
        "x32 = Cast<to = 1>(x) sq = Mul(x32, x32) mean = ReduceMean(sq, axes) s = Add(mean, eps)"
        "root = Sqrt(s) normed = Div(x32, root) scaled = Mul(normed, w) y = Cast<to = 10>(scaled) }"
    )
    result = rx.optimize(model, target=target)
    assert len(result.report.fused) == 1
    record = build_engine(result.model, tmp_path / "e", shapes=SHAPES).record
    assert ([n.how for n in record.norms], record.messages) == (["fused"], ())


def test_numbers_that_are_not_those_of_the_model_are_said(tmp_path: Path) -> None:
    half = helper.make_node("RMSNormalization", ["x", "w"], ["y"], name="norm", stash_type=10)
    record = build_engine(model_of(half, x=F16), tmp_path / "e", shapes=SHAPES).record
    assert any("FP16" in message for message in record.messages)
    wide = model_of(norm(), x=TensorProto.DOUBLE)
    record = build_engine(wide, tmp_path / "f", shapes=SHAPES).record
    assert any("float64 is computed in float32" in note for note in record.notes)


@pytest.mark.parametrize(
    ("op", "domain", "words"),
    [
        ("Frobnicate", "other", "node 'bad' (Frobnicate)"),
        ("RMSNorm", "rmsnorm_export", "function body"),
    ],
)
def test_what_the_parser_refuses(op: str, domain: str, words: str, tmp_path: Path) -> None:
    bad = helper.make_node(op, ["x"], ["t"], "bad", domain=domain)
    model = model_of(bad, helper.make_node("Tanh", ["t"], ["y"], name="y"))
    model.opset_import.append(helper.make_opsetid("rmsnorm_export", 1))
    with pytest.raises(InputError) as caught:
        build_engine(model, tmp_path / "e", shapes=SHAPES)
    assert words in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("tensorrt_stand_in")
def test_the_way_of_tensorrt(
    one_norm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls that TensorRT gets, on TensorRT-RTX under its name: not TensorRT itself."""
    options = {"backend": "tensorrt", "shapes": SHAPES, "force": True}
    record = build_engine(
        rx.optimize(one_norm).model, tmp_path / "e", **options, hardware_compatible=True,
        memory_limit=0.25, tf32=True, optimization_level=1,
    ).record  # fmt: skip
    assert (record.backend, record.version) == ("tensorrt", "11.4.0.1")
    assert record.flags["hardware_compatible"] is True
    assert [n.how for n in record.norms] == ["fused"]
    # TensorRT-RTX says that it lacks what was asked for, which shows that it was asked.
    assert any("setHardwareCompatibilityLevel" in text for text in record.messages)
    with pytest.raises(InputError, match="libnvinfer_lean"):
        build_engine(one_norm, tmp_path / "f", **options, version_compatible=True)
    broken = tmp_path / "libbroken.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(build, "plan_plugin", lambda *_, **__: (broken, "a test"))
    with pytest.raises(InputError, match="libbroken") as caught:
        build_engine(one_norm, tmp_path / "f", **options)
    assert "plugin check" in caught.value.fix
    assert not (tmp_path / "f").exists()


def die(request: dict[str, str]) -> None:
    """End as a backend does that crashes; in the child."""
    print("error: tactic lost", flush=True)
    os.kill(os.getpid(), int(request["signal"]))


@pytest.mark.parametrize(("number", "word"), [(11, "SIGSEGV"), (6, "SIGABRT"), (9, "memory")])
def test_a_death_is_told(
    one_norm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, word: str
) -> None:
    crash = {"signal": number}
    monkeypatch.setattr(build, "run_backend", lambda *_: process.ask(f"{HERE}:die", crash))
    old = tmp_path / "old.engine"
    old.write_bytes(b"old")
    with pytest.raises(InputError, match="tactic lost") as caught:
        build_engine(one_norm, old, shapes=SHAPES, force=True)
    assert word in str(caught.value)
    assert old.read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["old.engine", "one.onnx"]


BOTH = {"tensorrt", "tensorrt_rtx", "polygraphy"}


@pytest.mark.parametrize(
    ("modules", "gpu", "expected"),
    [
        (BOTH, True, TENSORRT),
        (BOTH, False, RTX),
        (BOTH - {"tensorrt_rtx"}, False, TENSORRT),
        (BOTH - {"tensorrt"}, True, RTX),
        (BOTH - {"polygraphy"}, True, None),
        (set(), True, None),
    ],
)
def test_auto_takes_what_can_build_here(
    modules: set[str], gpu: bool, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "is_installed", modules.__contains__)
    monkeypatch.setattr(backends, "gpu_visible", lambda: gpu)
    with contextlib.ExitStack() as stack:
        if expected is None:
            stack.enter_context(pytest.raises(BackendMissingError, match="pip install"))
        assert choose("auto")[0] is expected


@pytest.mark.parametrize(
    ("info", "own", "reason", "error"),
    [
        (RTX, True, "no plugin layers", UsageError),
        (TENSORRT, False, "no node of the domain", UsageError),
        (TENSORRT, True, "not built", BackendMissingError),
    ],
)
def test_the_plugin_takes_part_where_it_can(
    info: Any, own: bool, reason: str, error: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library, why = plan_plugin("auto", info, own=own)
    assert (library, reason in why) == (None, True)
    with pytest.raises(error):
        plan_plugin("require", info, own=own)


def test_a_folder_of_graphs(one_norm: Path, tmp_path: Path) -> None:
    """Ranges by the names of dimensions, one engine of each graph."""
    folder = tmp_path / "graphs"
    folder.mkdir()
    for name in ("prefill", "decode"):
        (folder / f"{name}.onnx").write_bytes(one_norm.read_bytes())
    (folder / "config.json").write_text("{}")
    built = build_engine(folder, tmp_path / "engines", dims="rows=1,4,128")
    assert sorted(built.results) == ["decode", "prefill"]
    for name, result in built.results.items():
        assert result.path == tmp_path / "engines" / f"{name}.engine"
        assert result.record.sha256 == sha256_of(result.path)
    with pytest.raises(UsageError, match="not empty"):
        build_engine(folder, tmp_path / "engines", dims="rows=1")
