"""Real engines, built by TensorRT-RTX without a GPU: the files, the record, the refusals."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from proof.sites import source

import rmsnorm_export as rx
from rmsnorm_export.api import build_engine
from rmsnorm_export.errors import BackendMissingError, InputError, RequirementError, UsageError
from rmsnorm_export.op.spec import FLOAT, FLOAT16
from rmsnorm_export.records import from_json
from rmsnorm_export.system import packages, process
from rmsnorm_export.system.reading import sha256_of
from rmsnorm_export.tensorrt.engine import backends, build
from rmsnorm_export.tensorrt.engine.backends import RTX, TENSORRT, choose
from rmsnorm_export.tensorrt.engine.build import require_plugin
from rmsnorm_export.tensorrt.engine.options import plan_plugin
from rmsnorm_export.tensorrt.engine.result import EngineRecord

from .conftest import NORM, SHAPES, N, model_of, needs_rtx

pytestmark = needs_rtx


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
    assert record.profiles[0][2]["x"] == (128, N)
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
    model, shapes = model_of(x="float16", n=n), {"x": [(rows, n) for rows in (1, 4, 64)]}
    (only,) = build_engine(model, tmp_path / "e", shapes=shapes).record.norms
    assert (only.how, only.kernels >= 2) == ("unfused", True)


def test_external_data_is_read_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model" / "m.onnx"
    for folder in ("model", "elsewhere"):
        (tmp_path / folder).mkdir()
    options = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(model_of(), path, **options)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert build_engine(path, tmp_path / "e", shapes=SHAPES).record.model == "m.onnx"
    for held in (path.read_bytes(), ir.load(path)):
        with pytest.raises(UsageError, match="must be given as a file"):
            build_engine(held, tmp_path / "f", shapes=SHAPES)
    path.with_name("w.bin").unlink()
    with pytest.raises(InputError):
        build_engine(path, tmp_path / "f", shapes=SHAPES)
    assert not (tmp_path / "f").exists()


def test_several_profiles_of_names_that_look_like_patterns(tmp_path: Path) -> None:
    model = model_of(f'x = Sub ("x[0]", "x*") {NORM}', inputs=("x[0]", "x*"))
    shapes = [
        {name: [(n, N) for n in of] for name in ("x[0]", "x*")} for of in ((1, 4, 8), (9, 16, 64))
    ]
    record = build_engine(model, tmp_path / "e", shapes=shapes).record
    assert [[*usual.values()] for _, usual, _ in record.profiles] == [[(4, N)] * 2, [(16, N)] * 2]
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
    for model, target in ((one_norm, one_norm), (tmp_path / "link.json", tmp_path / "link")):
        with pytest.raises(UsageError, match="input file"):
            build_engine(model, target, shapes=SHAPES, force=True)
    assert one_norm.read_bytes() == before


MIXED = "[mixed] y = RMSNormalization (x, w32)"
FUNCTION = f'<domain: "other", opset_import: ["" : 23]> F (x, w32) => (y) {{ {MIXED} }}'


@pytest.mark.parametrize(
    "body", [MIXED, "[mixed] y = SimplifiedLayerNormalization (x, w32)", "y = other.F (x, w32)"]
)
def test_a_scale_that_the_parser_would_round_is_refused(body: str, tmp_path: Path) -> None:
    model = model_of(body, x="float16", y="float", function=FUNCTION)
    with pytest.raises(InputError) as caught:
        build_engine(model, tmp_path / "e", shapes=SHAPES)
    for word in ("x float16", "scale float32", "'mixed'", "--target portable"):
        assert word in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", ["onnx", "portable"])
def test_optimize_writes_no_such_scale(target: Any, tmp_path: Path) -> None:
    """f16 rows times an f32 scale, spelled out: the casts are in the graph, and stay."""
    body = "{core}\n  scaled = Mul (v, w)\n  y = Cast <to = {dtype}> (scaled)"
    result = rx.optimize(source(body, dtype=FLOAT16, weight=FLOAT), target=target)
    assert len(result.report.fused) == 1
    record = build_engine(result.model, tmp_path / "e", dims="B=1,2,4;S=1,8,64").record
    assert ([n.how for n in record.norms], record.messages) == (["fused"], ())


def test_numbers_that_are_not_those_of_the_model_are_said(tmp_path: Path) -> None:
    half = model_of("y = RMSNormalization <stash_type = 10> (x, w)", x="float16")
    record = build_engine(half, tmp_path / "e", shapes=SHAPES).record
    assert any("FP16" in message for message in record.messages)
    record = build_engine(model_of(x="double"), tmp_path / "f", shapes=SHAPES).record
    assert any("float64 is computed in float32" in note for note in record.notes)


def test_what_the_parser_refuses(tmp_path: Path) -> None:
    for call, words in (
        ("other.Frobnicate (x)", "node 'bad' (Frobnicate)"),
        ("rmsnorm_export.RMSNorm (x)", "function body"),
        ('ScatterElements <reduction = "add"> (x, i, x)', "importScatterElements"),
    ):
        model = model_of(f"i = Cast <to = 7> (x) [bad] t = {call} y = Tanh (t)")
        with pytest.raises(InputError) as caught:
            build_engine(model, tmp_path / "e", shapes=SHAPES)
        assert words in str(caught.value)
    assert not list(tmp_path.iterdir())


STAND_IN = """import tensorrt_rtx
globals().update({k: v for k, v in vars(tensorrt_rtx).items() if not k.startswith("__")})
__version__ = "11.4.0.1"
"""


def test_the_way_of_tensorrt(
    one_norm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls that TensorRT gets, on TensorRT-RTX under its name: not TensorRT itself."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "tensorrt.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    options = {"backend": "tensorrt", "shapes": SHAPES, "force": True}
    record = build_engine(
        rx.optimize(one_norm).model, tmp_path / "e", **options, hardware_compatible=True,
        memory_limit=0.25, tf32=True,
    ).record  # fmt: skip
    assert (record.backend, record.version) == ("tensorrt", "11.4.0.1")
    assert record.flags["hardware_compatible"] is True
    assert [n.how for n in record.norms] == ["fused"]
    # TensorRT-RTX says that it lacks what was asked for, which shows that it was asked.
    assert any("setHardwareCompatibilityLevel" in text for text in record.messages)
    broken = tmp_path / "libbroken.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(build, "plan_plugin", lambda *_, **__: (broken, "a test"))
    with pytest.raises(InputError, match="libbroken") as caught:
        build_engine(one_norm, tmp_path / "f", **options)
    assert "plugin build --force" in caught.value.fix
    assert not (tmp_path / "f").exists()


def die(request: dict[str, str]) -> None:
    """End as a backend does that crashes; in the child."""
    print("error: tactic lost", flush=True)
    os.kill(os.getpid(), int(request["signal"]))


@pytest.mark.parametrize(("number", "word"), [(11, "SIGSEGV"), (6, "SIGABRT"), (9, "memory")])
def test_a_death_is_told(
    one_norm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, word: str
) -> None:
    ended = process.ask(f"{__name__}:die", {"signal": number})
    monkeypatch.setattr(backends, "run_backend", lambda *_: ended)
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
    for place in (backends, packages):
        monkeypatch.setattr(place, "is_installed", modules.__contains__)
    monkeypatch.setattr(backends, "gpu_visible", lambda: gpu)
    missing = pytest.raises(BackendMissingError, match="pip install")
    with contextlib.nullcontext() if expected else missing:
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


def test_a_folder_of_graphs_is_built(one_norm: Path, tmp_path: Path) -> None:
    """Ranges by the names of dimensions, one engine of each graph."""
    folder, engines = tmp_path / "graphs", tmp_path / "engines"
    folder.mkdir()
    for name in ("prefill", "decode"):
        (folder / f"{name}.onnx").write_bytes(one_norm.read_bytes())
    (folder / "config.json").write_text("{}")
    built = build_engine(folder, engines, dims="rows=1,4,128")
    assert sorted(built.results) == ["decode", "prefill"]
    for name, result in built.results.items():
        assert result.path == engines / f"{name}.engine"
        assert result.record.sha256 == sha256_of(result.path)
    with pytest.raises(UsageError, match="not empty"):
        build_engine(folder, engines, dims="rows=1")
