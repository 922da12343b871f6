"""Real engines, built by TensorRT-RTX without a GPU: the files, the record, the refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import rmsnorm_export as rx
from rmsnorm_export.errors import BackendMissingError, InputError, RequirementError, UsageError
from rmsnorm_export.records import from_json
from rmsnorm_export.system import process
from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.tensorrt.engine import backends, build
from rmsnorm_export.tensorrt.engine.backends import RTX, TENSORRT, choose
from rmsnorm_export.tensorrt.engine.build import _check_plugin, build_engine
from rmsnorm_export.tensorrt.engine.options import BuildOptions, plan_plugin
from rmsnorm_export.tensorrt.engine.result import EngineRecord

from .conftest import SHAPES, N, model_of, needs_rtx, norm

pytestmark = needs_rtx
HERE = "tests.engine.test_build"
F16, F32 = TensorProto.FLOAT16, TensorProto.FLOAT


def tanh(x: str, y: str) -> onnx.NodeProto:
    return helper.make_node("Tanh", [x], [y], name=y)


def test_an_engine_and_its_record(one_norm: Path, tmp_path: Path) -> None:
    before = one_norm.read_bytes()
    result = build_engine(one_norm, tmp_path / "e.engine", shapes=SHAPES)
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


def test_the_model_is_never_the_output(one_norm: Path, tmp_path: Path) -> None:
    before = one_norm.read_bytes()
    with pytest.raises(UsageError, match="input file"):
        build_engine(one_norm, one_norm, shapes=SHAPES, force=True)
    other = tmp_path / "e.json"
    os.link(one_norm, other)
    with pytest.raises(UsageError, match="input file"):
        build_engine(other, tmp_path / "e", shapes=SHAPES, force=True)
    with pytest.raises(UsageError, match="input file"):
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
    assert any("FP16" in message for message in record.messages)


def test_float64_is_said_to_be_float32(tmp_path: Path) -> None:
    model = model_of(norm(), x=TensorProto.DOUBLE)
    record = build_engine(model, tmp_path / "e", shapes=SHAPES).record
    assert any("float64 is computed in float32" in note for note in record.notes)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (
            ("Frobnicate", "other"),
            ("node 'bad' (Frobnicate)", "Plugin not found", "terms of ONNX"),
        ),
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


def test_the_way_of_tensorrt(tensorrt_stand_in: Path, one_norm: Path, tmp_path: Path) -> None:
    """The calls that TensorRT gets, on TensorRT-RTX under its name: not TensorRT itself."""
    portable, cache = tmp_path / "p.onnx", tmp_path / "cache"
    rx.optimize(one_norm).save(portable)
    options = {"backend": "tensorrt", "shapes": SHAPES, "force": True}
    record = build_engine(
        portable, tmp_path / "e", **options, timing_cache=cache, hardware_compatible=True,
        memory_limit=0.25, tf32=True, optimization_level=1,
    ).record  # fmt: skip
    assert (record.backend, record.version) == ("tensorrt", "11.4.0.1")
    assert record.flags["hardware_compatible"] is True
    assert [n.how for n in record.norms] == ["fused"]
    # TensorRT-RTX says that it lacks what was asked for, which shows that it was asked.
    assert any("setHardwareCompatibilityLevel" in text for text in record.messages)
    assert cache.stat().st_size > 0
    build_engine(portable, tmp_path / "e", **options, timing_cache=cache)
    mine = tmp_path / "mine"
    mine.write_bytes(b"mine")
    for more, words in (
        ({"timing_cache": mine}, "no timing cache"),
        ({"version_compatible": True}, "libnvinfer_lean"),
    ):
        with pytest.raises(InputError, match=words):
            build_engine(portable, tmp_path / "f", **options, **more)
    assert mine.read_bytes() == b"mine"
    assert tensorrt_stand_in.is_dir()


def test_a_plugin_library_that_does_not_load(
    tensorrt_stand_in: Path, one_norm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tensorrt_stand_in.is_dir()
    broken = tmp_path / "libbroken.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(build, "plan_plugin", lambda *_, **__: (broken, "a test"))
    with pytest.raises(InputError, match="libbroken") as caught:
        build_engine(one_norm, tmp_path / "e", backend="tensorrt", shapes=SHAPES)
    assert "plugin check" in caught.value.fix
    assert not (tmp_path / "e").exists()


def die(request: dict[str, str]) -> None:
    """End as a backend does that crashes; in the child."""
    print("error: tactic lost", flush=True)
    os.kill(os.getpid(), int(request["signal"]))


@pytest.mark.parametrize(("number", "word"), [(11, "SIGSEGV"), (6, "SIGABRT"), (9, "memory")])
def test_a_death_is_a_finding(
    one_norm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, word: str
) -> None:
    monkeypatch.setattr(
        build, "run_backend", lambda *_: process.ask(f"{HERE}:die", {"signal": number})
    )
    old = tmp_path / "old.engine"
    old.write_bytes(b"old")
    with pytest.raises(InputError, match="tactic lost") as caught:
        build_engine(one_norm, old, shapes=SHAPES, force=True)
    assert word in str(caught.value)
    assert old.read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["old.engine", "one.onnx"]


def test_a_child_ends_with_its_caller(tmp_path: Path) -> None:
    """Killed while it waits, so that nothing is left to build for nobody."""
    pid = tmp_path / "pid"
    code = f"from rmsnorm_export.system.process import ask; ask('{HERE}:wait', {str(pid)!r})"
    caller = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    while not (pid.exists() and pid.read_text()):
        assert caller.poll() is None
        time.sleep(0.05)
    caller.kill()
    caller.wait()
    for _ in range(200):
        if not Path("/proc", pid.read_text()).exists():
            return
        time.sleep(0.05)
    pytest.fail("the child lives on")


def wait(path: str) -> None:
    """Say who it is, and wait; in the child."""
    Path(path).write_text(str(os.getpid()))
    time.sleep(60)


def test_auto_takes_what_can_build_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for modules, gpu, expected in (
        ({"tensorrt", "tensorrt_rtx", "polygraphy"}, True, TENSORRT),
        ({"tensorrt", "tensorrt_rtx", "polygraphy"}, False, RTX),
        ({"tensorrt", "polygraphy"}, False, TENSORRT),
        ({"tensorrt_rtx", "polygraphy"}, True, RTX),
        ({"tensorrt_rtx"}, True, None),
        ((), True, None),
    ):
        monkeypatch.setattr(backends, "is_installed", modules.__contains__)
        monkeypatch.setattr(backends, "gpu_visible", lambda gpu=gpu: gpu)
        if expected is not None:
            assert choose("auto")[0] is expected
            continue
        with pytest.raises(BackendMissingError) as caught:
            choose("auto")
        assert "pip install" in caught.value.fix


def test_the_plugin_takes_part_where_it_can(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert plan_plugin("never", TENSORRT, own=True)[0] is None
    for info, own, reason in (
        (RTX, True, "no plugin layers"),
        (TENSORRT, False, "no node of the domain"),
        (TENSORRT, True, "not built"),
    ):
        library, why = plan_plugin("auto", info, own=own)
        assert (library, reason in why) == (None, True)
        with pytest.raises(BackendMissingError if own and info is TENSORRT else UsageError):
            plan_plugin("require", info, own=own)
    for options, info in (({"version_compatible": True}, RTX), ({"embed_plugin": True}, TENSORRT)):
        with pytest.raises(UsageError):
            BuildOptions(**options).check(info)


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
        assert result.record.profiles[0].inputs[0].max == (128, N)
    with pytest.raises(UsageError, match="not empty"):
        build_engine(folder, tmp_path / "engines", dims="rows=1")
