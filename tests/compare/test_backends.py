"""Which backend runs what; what is missing is named first; engines as far as a CPU takes them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

import rmsnorm_export as rx
from rmsnorm_export.compare import engine as engine_backend
from rmsnorm_export.compare.backend import Answer
from rmsnorm_export.compare.backends import choose_backend
from rmsnorm_export.compare.engine import Engine, EngineFile, TensorRTRTX, output_array, profile_for
from rmsnorm_export.compare.flow import Flow
from rmsnorm_export.compare.onnx_backend import OnnxRuntimeCuda
from rmsnorm_export.compare.outputs import Bounds
from rmsnorm_export.errors import (
    BackendMissingError,
    InputError,
    UsageError,
    VerificationError,
)
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.runtime.inputs import make_inputs, numpy_type
from rmsnorm_export.system import packages
from rmsnorm_export.system.packages import is_installed
from rmsnorm_export.system.process import Ended
from rmsnorm_export.tensorrt.engine import backends as engine_backends
from rmsnorm_export.tensorrt.engine.backends import RTX, gpu_visible
from rmsnorm_export.tensorrt.engine.result import EngineProfile, InputRange

from .broken import chain, set_epsilon, told

RTX_HERE = is_installed("tensorrt_rtx") and is_installed("polygraphy")
needs_rtx = pytest.mark.skipif(not RTX_HERE, reason=f"TensorRT-RTX and Polygraphy: {RTX.pip}")
needs_gpu = pytest.mark.skipif(not (RTX_HERE and gpu_visible()), reason="runs engines on a GPU")
no_gpu = pytest.mark.skipif(gpu_visible(), reason="what is said without a GPU")

SHAPES = "h0=1x16,5x16,64x16"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine of three blocks with its record, and the model."""
    folder = tmp_path_factory.mktemp("built")
    ir.save(chain(3), folder / "model.onnx")
    rx.build_engine(
        folder / "model.onnx", folder / "m.engine", backend="tensorrt-rtx", shapes=SHAPES
    )
    return folder


@pytest.fixture
def engine(built: Path, tmp_path: Path) -> Path:
    for name in ("m.engine", "m.engine.json", "model.onnx"):
        (tmp_path / name).write_bytes((built / name).read_bytes())
    return tmp_path / "m.engine"


def chosen(model: object, choice: str) -> tuple[str, str]:
    made = choose_backend(model, choice)  # type: ignore[arg-type]
    return made.name, made.kind


def test_auto_goes_by_the_model(tmp_path: Path) -> None:
    model = chain(1)
    onnx_file = tmp_path / "m.onnx"
    ir.save(model, onnx_file)
    assert chosen(model, "auto") == ("onnxruntime", "onnx")
    assert chosen(onnx_file, "auto") == ("onnxruntime", "onnx")
    assert chosen(onnx_file, "tensorrt") == ("tensorrt", "onnx")
    assert chosen("model.pt2", "auto") == ("torch", "pytorch")
    for name in ("m.engine", "m.plan", "M.ENGINE"):
        assert chosen(tmp_path / name, "auto") == ("tensorrt", "engine")
    plain = tmp_path / "without_ending"
    plain.write_bytes(onnx_file.read_bytes())
    assert chosen(plain, "auto") == ("onnxruntime", "onnx")
    plain.write_bytes(b"vtrt and more")
    assert chosen(plain, "auto") == ("tensorrt", "engine")
    plain.write_bytes(b"anything")
    record = tmp_path / "without_ending.json"
    record.write_text('{\n  "schema_version": 1,\n  "kind": "engine_record"}')
    assert chosen(plain, "auto") == ("tensorrt", "engine")
    record.write_text("{}")
    assert chosen(plain, "auto") == ("onnxruntime", "onnx")


@pytest.mark.parametrize(
    ("model", "backend", "words"),
    [
        ("m.pt2", "onnxruntime", "runs no PyTorch model"),
        ("m.pt2", "tensorrt", "runs no PyTorch model"),
        ("m.engine", "torch", "runs no engine"),
        ("m.plan", "onnxruntime-cuda", "runs no engine"),
        ("m.onnx", "cuda", "Invalid enum value"),
    ],
)
def test_a_backend_that_does_not_go_with_the_model(model: str, backend: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        rx.verify(chain(1), model, backend_b=backend)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=words):
        rx.verify(model, chain(1), backend_a=backend)  # type: ignore[arg-type]


@no_gpu
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("onnxruntime-cuda", "CUDA provider"),
        ("tensorrt", "tensorrt is not installed|only where a GPU is"),
        pytest.param("tensorrt-rtx", "only where a GPU is", marks=needs_rtx),
    ],
)
def test_what_is_missing_is_named_before_any_work(backend: str, words: str, *, first: bool) -> None:
    nothing = "no/such/model.onnx"  # is not even looked for
    options = {"backend_a" if first else "backend_b": backend}
    with pytest.raises(BackendMissingError, match=words) as caught:
        rx.verify(nothing, nothing, **options)  # type: ignore[arg-type]
    assert caught.value.found
    assert caught.value.fix


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for where in (packages, engine_backends):
        monkeypatch.setattr(where, "is_installed", lambda module: module == "tensorrt_rtx")
    with pytest.raises(BackendMissingError, match="The backend torch needs") as caught:
        rx.verify("a.pt2", chain(1))
    assert caught.value.fix == "pip install 'torch>=2.9' 'onnxscript>=0.5'"
    with pytest.raises(BackendMissingError, match="polygraphy is not installed"):
        rx.verify(chain(1), chain(1), backend_b="tensorrt-rtx")


@needs_rtx
@no_gpu
def test_a_good_engine_without_a_gpu(engine: Path) -> None:
    with pytest.raises(BackendMissingError, match="only where a GPU is"):
        rx.verify(engine.with_name("model.onnx"), engine)
    with pytest.raises(UsageError, match="not one of the backend tensorrt"):
        rx.verify(chain(3), engine, backend_b="tensorrt")


@needs_rtx
def test_an_unusable_engine_is_named_first(engine: Path) -> None:
    engine.with_name("m.engine.json").unlink()
    engine.write_bytes(b"no engine at all")
    with pytest.raises(InputError, match="backend of the engine is not known"):
        rx.verify(engine, chain(1))
    with pytest.raises(InputError, match="does not exist"):
        rx.verify(engine.with_name("missing.engine"), chain(1))


@needs_rtx
@no_gpu
def test_the_process_loads_the_engine_and_says_what_stops_it(engine: Path) -> None:
    """The genuine refusal of the runtime, for running and for describing."""
    side = Engine(engine, RTX)
    feeds = {"h0": np.ones((5, 16), np.float32)}
    for ask in (lambda: side.run(feeds), side.profiles):
        with pytest.raises(BackendMissingError, match="TensorRT-RTX finds no GPU") as caught:
            ask()
        assert "CUDA" in caught.value.found
    engine.write_bytes(engine.read_bytes()[:100])
    with pytest.raises((InputError, BackendMissingError)) as damaged:
        side.run(feeds)
    assert "m.engine" in damaged.value.found


@needs_rtx
@no_gpu
def test_an_engine_that_is_built_for_the_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the run itself: the model is marked, its data copied, an engine built."""
    source = chain(3)
    ir.save(source, tmp_path / "m.onnx", external_data="w.bin", size_threshold_bytes=16)
    side = TensorRTRTX(load_model(tmp_path / "m.onnx"))
    declared = side.declared()
    assert declared is not None
    feeds = make_inputs(declared, {}, {"h0": [5, 16]}, seed=0)
    with side.running() as run, pytest.raises(BackendMissingError, match="finds no GPU"):
        run(feeds)
    with side.probing(feeds, Flow(side.graph)) as read:
        with pytest.raises(BackendMissingError, match="finds no GPU"):
            read(["n1"])

        def look(made: Engine, _: object) -> Answer:
            work = made.path.parent
            record = json.loads((work / "marked.engine.json").read_text())
            assert record["backend"] == "tensorrt-rtx"
            assert record["profiles"][0]["inputs"][0]["opt"] == [5, 16]
            marked = onnx.load(work / "marked.onnx", load_external_data=False)
            assert [output.name for output in marked.graph.output] == ["y", "n1", "p2"]
            assert (work / "w.bin").read_bytes() == (tmp_path / "w.bin").read_bytes()
            return Answer(("y", "n1"), (np.zeros(1), np.ones(1)))

        monkeypatch.setattr(Engine, "run", look)
        assert read(["n1", "p2"]) == {"n1": np.ones(1)}


@needs_rtx
def test_the_record_says_what_an_engine_takes(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_backend, "gpu_visible", lambda: True)
    side = EngineFile.open(choose_backend(engine, "auto"))
    declared = side.declared()
    assert (declared["h0"].dtype, declared["h0"].shape) == ("float32", (None, 16))
    assert side.shapes() == {"h0": (5, 16)}
    assert side.name == "tensorrt-rtx"
    assert "TensorRT-RTX decides on TF32" in side.reduced


def profile(low: int, high: int) -> EngineProfile:
    return EngineProfile((InputRange("x", "float32", (low, 4), (low, 4), (high, 4)),))


def test_the_profile_is_the_one_that_fits() -> None:
    profiles = (profile(1, 2), profile(3, 8))
    for rows, number in ((1, 0), (2, 0), (3, 1), (8, 1), (9, 0)):
        assert profile_for(profiles, {"x": np.zeros((rows, 4), np.float32)}) == number
    assert profile_for(profiles, {"x": np.zeros(4, np.float32)}) == 0


def test_an_engine_says_its_profiles_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [[[1, 4], [1, 4], [2, 4]], [[3, 4], [3, 4], [8, 4]]]
    inputs = [{"name": "x", "dtype": "float32", "ranges": two}]
    answer = Ended(({"event": "answer", "result": {"inputs": inputs}},), 0, "")
    monkeypatch.setattr(engine_backend, "run_backend", lambda *_: answer)
    assert Engine(Path("m.engine"), RTX).profiles() == (profile(1, 2), profile(3, 8))


def test_arrays_come_back_as_they_went(tmp_path: Path) -> None:
    """The files between the processes, bfloat16 and empty arrays included."""
    for number, array in enumerate(
        (
            np.arange(6, dtype=np.float32).reshape(2, 3),
            np.arange(4).astype(ml_dtypes.bfloat16),
            np.array(True),
            np.zeros((2, 0, 3), np.int64),
        )
    ):
        file = tmp_path / f"{number}.bin"
        file.write_bytes(array.tobytes())
        output = {"dtype": str(array.dtype), "shape": list(array.shape), "file": str(file)}
        read = output_array(output)
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        assert read.tobytes() == array.tobytes()
    with pytest.raises(InputError, match="cannot be fed"):
        numpy_type("float8")


def test_reduced_arithmetic_widens_the_default_and_says_so() -> None:
    plain, _ = Bounds().relative("float32")
    wide, why = Bounds(reduced="TF32 products on CUDA").relative("float32")
    assert (plain, wide) == (1e-4, 1e-2)
    assert "11 significant bits: TF32 products on CUDA" in why
    for dtype in ("float64", "float16", "bfloat16", "int64"):
        assert Bounds(reduced="TF32").relative(dtype) == Bounds().relative(dtype)
    assert Bounds(rtol=1e-3, reduced="TF32").relative("float32") == (1e-3, "given: rtol 0.001")
    side = OnnxRuntimeCuda(load_model(chain(1)), optimized=True)
    assert side.reduced == "TF32 products on CUDA"
    plain_side = side.plain()
    assert plain_side is not None
    assert plain_side.reduced == ""


def test_tolerances_are_in_the_result() -> None:
    result = rx.verify(chain(1), chain(1))
    assert result.backends == ("onnxruntime", "onnxruntime")
    assert result.outputs[0].tolerance == (
        "float32: 0.0001 of the largest element, 1700 units of roundoff (6.0e-08) through the"
        " layers"
    )
    given = rx.verify(chain(1), chain(1), rtol=1e-3, max_ulp=1e6)
    assert given.outputs[0].tolerance == "given: rtol 0.001, max_ulp 1e+06"


def test_a_missing_onnxruntime_is_named_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(BackendMissingError, match="ONNX Runtime"):
        rx.verify("no/such/model.onnx", chain(1))


@needs_gpu
def test_engines_on_the_gpu(engine: Path) -> None:
    """An engine file, a model that is built, and the place of a difference, for real."""
    model = engine.with_name("model.onnx")
    whole = rx.verify(model, engine)
    assert whole.passed, whole.reason
    assert whole.backends == ("onnxruntime", "tensorrt-rtx")
    assert rx.verify(model, model, backend_b="tensorrt-rtx", shapes={"h0": [5, 16]}).passed
    result = rx.optimize(model)
    site = result.report.fused[1].name
    broken = set_epsilon(result.model, site, 0.5)
    found = rx.verify(model, broken, backend_b="tensorrt-rtx", shapes={"h0": [5, 16]})
    assert told(found)[0] == site
    differs = rx.verify(broken, engine)
    assert any("values inside an engine" in note for note in differs.notes)
    with pytest.raises(VerificationError, match="cannot run the engine"):
        rx.verify(model, engine, shapes={"h0": [65, 16]})
    engine.with_name("m.engine.json").unlink()
    assert rx.verify(model, engine, backend_b="tensorrt-rtx").passed


@needs_gpu
def test_cuda_on_the_gpu(engine: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has no CUDA provider")
    model = engine.with_name("model.onnx")
    result = rx.verify(model, model, backend_b="onnxruntime-cuda")
    assert result.passed
    assert "TF32" in result.outputs[0].tolerance
