"""Real engines, built by TensorRT-RTX without a GPU: the files, the record, the refusals."""

from __future__ import annotations

import inspect as python_inspect
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import rmsnorm_export as rx
from rmsnorm_export.errors import BackendMissingError, InputError, RequirementError, UsageError
from rmsnorm_export.records import from_json
from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.tensorrt.engine.backends import gpu_visible
from rmsnorm_export.tensorrt.engine.build import _check_plugin, build_engine
from rmsnorm_export.tensorrt.engine.options import BuildOptions
from rmsnorm_export.tensorrt.engine.result import EngineRecord

from .conftest import SHAPES, N, model_of, needs_rtx, norm

pytestmark = needs_rtx
F16, F32 = TensorProto.FLOAT16, TensorProto.FLOAT


def tanh(x: str, y: str) -> onnx.NodeProto:
    return helper.make_node("Tanh", [x], [y], name=y)


def test_an_engine_and_its_record(one_norm: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    before = one_norm.read_bytes()
    result = build_engine(
        one_norm, tmp_path / "e.engine", shapes=SHAPES, progress=lambda *step: told.append(step)
    )
    record = result.record
    assert from_json(result.sidecar.read_text(), EngineRecord) == record
    assert result.path.read_bytes()[:4] == b"vtrt"
    assert (record.bytes, record.sha256) == (result.path.stat().st_size, sha256_of(result.path))
    assert record.model.sha256 == sha256_of(one_norm)
    assert record.model.name == "one.onnx"
    assert str(tmp_path) not in result.sidecar.read_text()
    assert record.backend == "tensorrt-rtx"
    assert record.version
    assert record.profiles[0].inputs[0].max == (128, N)
    assert record.layers_from in ("builder log", "inspector")
    with pytest.raises(RequirementError, match="nothing was written") as caught:
        _check_plugin(record, BuildOptions(plugin="require"))
    assert caught.value.found == "norm is fused"
    (found,) = record.norms
    assert (found.name, found.op, found.form) == ("norm", "RMSNorm", "node")
    assert (found.how, found.kernels, found.reason) == ("fused", 1, "")
    assert "Mean" in found.names[0]
    assert record.messages == ()
    assert one_norm.read_bytes() == before
    assert {p.name for p in tmp_path.iterdir()} == {"one.onnx", "e.engine", "e.engine.json"}
    done = [step[1] for step in told]
    assert done == sorted(done)
    assert len(done) > 10
    assert {step[2] for step in told} == {100}


def test_a_long_row_is_not_one_kernel(tmp_path: Path) -> None:
    """From 16,384 elements on TensorRT-RTX 1.7.1 sums in one kernel and scales in another."""
    n = 32768
    model = model_of(norm(), x=F16, n=n)
    result = build_engine(model, tmp_path / "e", shapes={"x": [(1, n), (4, n), (64, n)]})
    (found,) = result.record.norms
    assert found.how == "unfused"
    assert found.kernels is not None
    assert found.kernels >= 2


def test_a_chain_is_found_by_its_nodes(tmp_path: Path) -> None:
    from tests.cli.conftest import model

    result = build_engine(model(2), tmp_path / "e", shapes=SHAPES)
    assert [(n.form, n.how, n.kernels) for n in result.record.norms] == [("chain", "fused", 1)] * 2
    assert result.record.model.name == "memory"


@pytest.mark.parametrize("form", ["bytes", "proto", "ir"])
def test_models_in_memory(form: str, tmp_path: Path) -> None:
    proto = model_of(norm())
    source = {"bytes": proto.SerializeToString(), "proto": proto, "ir": ir.from_proto(proto)}[form]
    result = build_engine(source, tmp_path / "e", shapes=SHAPES)
    assert len(result.record.norms) == 1


def test_external_data_is_read_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    onnx.save(
        model_of(norm()), folder / "m.onnx", save_as_external_data=True, location="w.bin",
        size_threshold=0,
    )  # fmt: skip
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    record = build_engine(folder / "m.onnx", tmp_path / "e", shapes=SHAPES).record
    (data,) = record.model.data
    assert data.location == "w.bin"
    assert data.sha256 == sha256_of(folder / "w.bin")
    with pytest.raises(UsageError, match="must be given as a file"):
        build_engine((folder / "m.onnx").read_bytes(), tmp_path / "f", shapes=SHAPES)
    (folder / "w.bin").unlink()
    with pytest.raises(InputError):
        build_engine(folder / "m.onnx", tmp_path / "f", shapes=SHAPES)
    assert not (tmp_path / "f").exists()


def test_names_that_look_like_patterns(tmp_path: Path) -> None:
    model = model_of(norm(x="t"))
    model.graph.input[0].name = "x[0]"
    model.graph.input.append(helper.make_tensor_value_info("x*", F32, ["rows", N]))
    model.graph.node.insert(0, helper.make_node("Sub", ["x[0]", "x*"], ["t"], name="sub"))
    record = build_engine(model, tmp_path / "e", shapes="x[0]=1x40,2x40,3x40;x*=1x40,2x40,3x40")
    assert [item.max for item in record.record.profiles[0].inputs] == [(3, N), (3, N)]
    assert record.record.norms[0].how == "fused"


def test_several_profiles(one_norm: Path, tmp_path: Path) -> None:
    result = build_engine(
        one_norm, tmp_path / "e", shapes=[SHAPES, {"x": [(256, N), (256, N), (512, N)]}]
    )
    record = result.record
    assert [p.inputs[0].opt for p in record.profiles] == [(4, N), (256, N)]
    assert {layer.profile for layer in record.layers} == {0, 1}
    assert (record.norms[0].how, record.norms[0].kernels) == ("fused", 1)


def test_nothing_is_overwritten_without_force(one_norm: Path, tmp_path: Path) -> None:
    engine, sidecar = tmp_path / "e", tmp_path / "e.json"
    for taken in (engine, sidecar):
        taken.write_text("mine")
        with pytest.raises(UsageError, match="exists already"):
            build_engine(one_norm, engine, shapes=SHAPES)
        assert taken.read_text() == "mine"
        taken.unlink()
    engine.write_text("old")
    sidecar.write_text("old")
    build_engine(one_norm, engine, shapes=SHAPES, force=True)
    assert json.loads(sidecar.read_text())["sha256"] == sha256_of(engine)


@pytest.mark.parametrize("name", ["e", "e.json"])
def test_a_file_that_appears_during_the_build(name: str, one_norm: Path, tmp_path: Path) -> None:
    def appear(*_: object) -> None:
        (tmp_path / name).write_text("mine")

    with pytest.raises(UsageError, match="during the build"):
        build_engine(one_norm, tmp_path / "e", shapes=SHAPES, progress=appear)
    assert (tmp_path / name).read_text() == "mine"
    assert {p.name for p in tmp_path.iterdir()} == {"one.onnx", name}


def test_the_model_is_never_the_output(one_norm: Path, tmp_path: Path) -> None:
    before = one_norm.read_bytes()
    with pytest.raises(UsageError, match="input file"):
        build_engine(one_norm, one_norm, shapes=SHAPES, force=True)
    other = tmp_path / "e.json"
    os.link(one_norm, other)
    with pytest.raises(UsageError, match="input file"):
        build_engine(other, tmp_path / "e", shapes=SHAPES, force=True)
    with pytest.raises(UsageError, match="timing cache"):
        build_engine(one_norm, tmp_path / "f", shapes=SHAPES, timing_cache=one_norm)
    assert one_norm.read_bytes() == before


def test_a_full_disk(one_norm: Path, tmp_path: Path) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16));"
        "from rmsnorm_export.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    (tmp_path / "e.engine").write_bytes(b"old")
    command = [sys.executable, "-c", code, "build", str(one_norm), "-o", "e.engine", "--force"]
    done = subprocess.run(
        [*command, "--shapes", SHAPES], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 3, done.stderr
    assert "File too large" in done.stderr
    assert "free some space" in done.stderr
    assert (tmp_path / "e.engine").read_bytes() == b"old"
    assert {p.name for p in tmp_path.iterdir()} == {"one.onnx", "e.engine"}
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1 << 16


@pytest.mark.parametrize("op", ["RMSNormalization", "SimplifiedLayerNormalization"])
@pytest.mark.parametrize("place", ["main", "function"])
def test_a_scale_that_the_parser_would_round_is_refused(
    op: str, place: str, tmp_path: Path
) -> None:
    node = helper.make_node(op, ["x", "w32"], ["y"], name="mixed")
    functions: tuple[onnx.FunctionProto, ...] = ()
    if place == "function":
        inner = helper.make_node(op, ["a", "b"], ["c"], name="mixed")
        opsets = [helper.make_opsetid("", 23)]
        functions = (helper.make_function("other", "F", ["a", "b"], ["c"], [inner], opsets),)
        node = helper.make_node("F", ["x", "w32"], ["y"], domain="other", name="call")
    model = model_of(node, x=F16, y=F32, functions=functions)
    with pytest.raises(InputError) as caught:
        build_engine(model, tmp_path / "e", shapes=SHAPES)
    for word in ("x float16", "scale float32", "'mixed'", "--target portable"):
        assert word in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", ["onnx", "portable"])
def test_optimize_writes_no_such_scale(target: str, tmp_path: Path) -> None:
    """f16 rows times an f32 scale, spelled out: the casts are in the graph, and stay."""
    cast = helper.make_node("Cast", ["x"], ["x32"], to=F32)
    chain = [
        cast,
        helper.make_node("Mul", ["x32", "x32"], ["sq"]),
        helper.make_node("ReduceMean", ["sq", "axes"], ["mean"]),
        helper.make_node("Add", ["mean", "eps"], ["sum"]),
        helper.make_node("Sqrt", ["sum"], ["root"]),
        helper.make_node("Div", ["x32", "root"], ["normed"]),
        helper.make_node("Mul", ["normed", "w32"], ["scaled"]),
        helper.make_node("Cast", ["scaled"], ["y"], to=F16),
    ]
    model = model_of(*chain, x=F16, opset=18)
    for name, value in (("axes", np.array([-1])), ("eps", np.array(1e-6, np.float32))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    result = rx.optimize(model, target=target)  # type: ignore[arg-type]
    assert len(result.report.fused) == 1
    record = build_engine(result.model, tmp_path / "e", shapes=SHAPES).record
    assert [n.how for n in record.norms] == ["fused"]
    assert record.messages == ()


def test_a_norm_in_half_types_draws_the_warning(tmp_path: Path) -> None:
    node = helper.make_node("RMSNormalization", ["x", "w"], ["y"], name="norm", stash_type=10)
    record = build_engine(model_of(node, x=F16), tmp_path / "e", shapes=SHAPES).record
    assert {m.kind for m in record.messages} == {"half-norm"}


def test_float64_is_said_to_be_float32(tmp_path: Path) -> None:
    model = model_of(norm(), x=TensorProto.DOUBLE)
    record = build_engine(model, tmp_path / "e", shapes=SHAPES).record
    assert any("float64 is computed in float32" in note for note in record.notes)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (("Frobnicate", "other"), ("node 'bad' (Frobnicate)", "Plugin not found", "--target onnx")),
        (("RMSNorm", "rmsnorm_export"), ("'bad' (RMSNorm)", "no function body")),
        (("SequenceEmpty", ""), ("'bad' (SequenceEmpty)", "UNSUPPORTED_NODE")),
    ],
)
def test_what_the_parser_refuses(node: tuple[str, str], words, tmp_path: Path) -> None:
    op, domain = node
    bad = helper.make_node(op, [] if op == "SequenceEmpty" else ["x"], ["t"], "bad", domain=domain)
    model = model_of(bad, tanh("x" if op == "SequenceEmpty" else "t", "y"))
    if op == "SequenceEmpty":
        model.graph.node.append(helper.make_node("SequenceLength", ["t"], ["l"], name="len"))
        model.graph.output.append(helper.make_tensor_value_info("l", TensorProto.INT64, []))
    model.opset_import.append(helper.make_opsetid("rmsnorm_export", 1))
    with pytest.raises(InputError) as caught:
        build_engine(model, tmp_path / "e", shapes=SHAPES)
    for word in words:
        assert word in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_timing_cache_is_not_touched(one_norm: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.write_bytes(b"mine")
    record = build_engine(one_norm, tmp_path / "e", shapes=SHAPES, timing_cache=cache).record
    assert cache.read_bytes() == b"mine"
    assert any("no timing cache" in note for note in record.notes)


def test_the_way_of_tensorrt(tensorrt_stand_in: Path, one_norm: Path, tmp_path: Path) -> None:
    """The calls that TensorRT gets, on TensorRT-RTX under its name: not TensorRT itself."""
    portable = tmp_path / "p.onnx"
    rx.optimize(one_norm).save(portable)
    mine = tmp_path / "mine"
    mine.write_bytes(b"mine")
    record = build_engine(
        portable, tmp_path / "e", backend="tensorrt", shapes=SHAPES, timing_cache=mine,
        hardware_compatible=True, memory_limit=1 << 28, tf32=True,
    ).record  # fmt: skip
    assert (record.backend, record.version) == ("tensorrt", "11.4.0.1")
    assert record.flags["hardware_compatible"] is True
    assert [n.how for n in record.norms] == ["fused"]
    assert mine.read_bytes() == b"mine"
    assert any("left as it is" in note for note in record.notes)
    # TensorRT-RTX says that it lacks what was asked for, which shows that it was asked.
    assert any("setHardwareCompatibilityLevel" in m.text for m in record.messages)
    fresh = tmp_path / "fresh"
    build_engine(
        portable, tmp_path / "e", backend="tensorrt", shapes=SHAPES, timing_cache=fresh, force=True
    )
    assert fresh.stat().st_size > 0
    with pytest.raises(InputError, match="libnvinfer_lean"):
        build_engine(
            portable, tmp_path / "f", backend="tensorrt", shapes=SHAPES, version_compatible=True
        )
    assert tensorrt_stand_in.is_dir()


def test_a_plugin_library_that_does_not_load(
    tensorrt_stand_in: Path, one_norm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmsnorm_export.tensorrt.engine import plugins

    assert tensorrt_stand_in.is_dir()
    broken = tmp_path / "libbroken.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(plugins, "_library", lambda: broken)
    portable = tmp_path / "p.onnx"
    rx.optimize(one_norm).save(portable)
    with pytest.raises(rx.Error) as caught:
        build_engine(portable, tmp_path / "e", backend="tensorrt", shapes=SHAPES)
    assert caught.value.exit_code == 6
    assert "libbroken.so" in str(caught.value)
    assert not (tmp_path / "e").exists()


def test_the_builder_gets_level_and_verbosity(one_norm: Path, tmp_path: Path) -> None:
    """The backend says in its log and by the file what it was told."""
    plain = build_engine(one_norm, tmp_path / "a.engine", shapes=SHAPES)
    fast = build_engine(one_norm, tmp_path / "b.engine", shapes=SHAPES, optimization_level=0)
    quiet = build_engine(one_norm, tmp_path / "c.engine", shapes=SHAPES, profiling_verbosity="none")
    assert fast.record.flags["optimization_level"] == 0
    assert any("every level" in note for note in fast.record.notes)
    assert fast.record.sha256 == plain.record.sha256  # as the note says
    # The names of layers are in the file, and no longer are.
    assert quiet.record.sha256 != plain.record.sha256
    assert quiet.record.flags["profiling_verbosity"] == "none"


@pytest.mark.skipif(gpu_visible(), reason="a GPU is visible")
@pytest.mark.parametrize("flag", ["refit", "strip_weights"])
def test_refitting_needs_a_gpu(one_norm: Path, tmp_path: Path, flag: str) -> None:
    with pytest.raises(BackendMissingError, match="with a GPU only"):
        build_engine(one_norm, tmp_path / "e.engine", shapes=SHAPES, **{flag: True})
    assert not (tmp_path / "e.engine").exists()


def test_tensorrt_gets_the_same_controls() -> None:
    """Through Polygraphy's own maker of configurations, whose keywords these are."""
    from polygraphy.backend.trt import CreateConfig

    source = Path(python_inspect.getfile(CreateConfig)).read_text(encoding="utf-8")
    for keyword in (
        "builder_optimization_level",
        "refittable",
        "strip_plan",
        "profiling_verbosity",
    ):
        assert f"\n        {keyword}=None," in source, keyword
    assert CreateConfig(builder_optimization_level=1, refittable=True, strip_plan=True) is not None
