"""Which backend runs what, one made here too; what is missing is named; engines without a GPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import rmsnorm_export as rx
from rmsnorm_export.compare.backend import Answer, RunModel, _kind_of_model, choose_backend
from rmsnorm_export.compare.backends import BACKENDS
from rmsnorm_export.compare.engine import Engine, output_array, profile_for
from rmsnorm_export.compare.onnx_backend import OnnxRuntime
from rmsnorm_export.compare.outputs import Bounds
from rmsnorm_export.errors import BackendMissingError, InputError, UsageError
from rmsnorm_export.tensorrt.engine.backends import gpu_visible
from rmsnorm_export.tensorrt.engine.result import read_record
from tests.engine.conftest import RTX_INSTALLED, needs_rtx
from tests.tools.tables import table

from .broken import begins_at, chain, set_epsilon

TABLE: dict[str, Any] = table(__file__)

on_gpu = pytest.mark.skipif(not (RTX_INSTALLED and gpu_visible()), reason="runs engines on a GPU")
no_gpu = pytest.mark.skipif(gpu_visible(), reason="what is said without a GPU")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine of three blocks with its record, and the model beside it."""
    path = tmp_path_factory.mktemp("built") / "m.engine"
    ir.save(chain(3), path.with_name("model.onnx"))
    model, shapes = path.with_name("model.onnx"), "h0=1x16,5x16,64x16"
    rx.build_engine(model, path, backend="tensorrt-rtx", shapes=shapes)
    return path


@pytest.mark.parametrize(
    ("name", "content", "backend"),
    [
        ("other", b"anything", "onnxruntime"),
        ("model.pt2", b"", "torch"),
        ("M.ENGINE", b"", "engine"),
        ("m.plan", b"", "engine"),
        ("bytes", b"vtrt", "engine"),
    ],
)
def test_auto_goes_by_the_model(name: str, content: bytes, backend: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert choose_backend(tmp_path / name, "auto", False, optimize=True).args[1] == backend


@pytest.mark.parametrize(("model", "backend", "words"), TABLE["refused"])
def test_a_backend_that_does_not_go_with_the_model(model: str, backend: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        rx.verify(chain(1), model, backend_b=backend)
    with pytest.raises(UsageError, match=words):
        rx.verify(model, chain(1), backend_a=backend)


@pytest.mark.parametrize("side", ["backend_a", "backend_b"])
def test_what_is_missing_is_named_before_any_work(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = "no/such/model.onnx"  # is not even looked for
    if not gpu_visible():
        with pytest.raises(BackendMissingError, match="no GPU is visible"):
            rx.verify(nothing, nothing, **{side: "onnxruntime-cuda"})
    monkeypatch.setattr("rmsnorm_export.system.packages.is_installed", lambda _: False)
    with pytest.raises(BackendMissingError, match="The backend torch needs") as caught:
        rx.verify(nothing, nothing, **{side: "torch"})
    assert caught.value.fix == "pip install 'torch<2.14,>=2.9' 'onnxscript>=0.5'"
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(BackendMissingError, match="ONNX Runtime"):
        rx.verify(nothing, nothing)


class Reference(OnnxRuntime):
    """ONNX's reference implementation, in Python."""

    __slots__ = ()
    runtime = "onnx (reference)"  # type: ignore[assignment]

    @classmethod
    def require(cls, name: str) -> None:
        assert name == "reference"

    def load(self, content: bytes, names: Sequence[str] | None = None) -> RunModel:
        evaluator = ReferenceEvaluator(onnx.load_from_string(content))
        every = tuple(evaluator.output_names if names is None else names)
        return lambda feeds: Answer(
            dict(zip(every, evaluator.run(list(every), dict(feeds)), strict=True))
        )


@pytest.mark.parametrize("side", ["backend_a", "backend_b"])
def test_a_new_backend_is_a_class_and_a_row(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is chosen, compared and searched."""
    monkeypatch.setitem(BACKENDS, "reference", f"{__name__}:Reference")
    how: Any = {"shapes": {"h0": [5, 16]}, side: "reference"}
    rewritten = rx.optimize(chain(4))
    site = rewritten.report.fused[2].name
    same = rx.verify(chain(4), rewritten.model, **how)
    assert same.passed, same.reason
    assert sorted(same.backends) == ["onnxruntime", "reference"]
    assert "onnx (reference)" in same.runtime
    broken = rx.verify(chain(4), set_epsilon(rewritten.model, site, 0.5), **how)
    assert begins_at(broken) == (site, "at", True)
    with pytest.raises(UsageError, match="Invalid enum value") as caught:
        rx.verify(chain(1), chain(1), backend_b="ones")
    assert "engine, reference" in caught.value.fix


@needs_rtx
@no_gpu
def test_engines_without_a_gpu(engine: Path, tmp_path: Path) -> None:
    """What stands against one is named first; the last is the genuine refusal of the runtime."""
    alone = tmp_path / "alone.engine"
    with pytest.raises(BackendMissingError, match="only where a GPU is"):
        rx.verify(engine.with_name("model.onnx"), engine)
    with pytest.raises(InputError, match="does not exist"):
        rx.verify(alone, chain(1))
    alone.write_bytes(engine.read_bytes())
    with pytest.raises(InputError, match="record of the engine does not exist"):
        rx.verify(alone, chain(1))
    with pytest.raises(BackendMissingError, match="TensorRT-RTX finds no GPU"):
        Engine(engine, read_record(engine)).run({"h0": np.ones((5, 16), np.float32)})


@needs_rtx
def test_the_record_says_what_an_engine_takes(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmsnorm_export.tensorrt.engine.backends.gpu_visible", lambda: True)
    side = Engine.open(engine)
    (one,) = side.declared().values()
    assert (one.name, one.dtype, one.shape) == ("h0", "float32", (None, 16))
    assert (side.name, side.shapes()) == ("tensorrt-rtx", {"h0": (5, 16)})
    assert "TensorRT-RTX decides on TF32" in side.reduced


def test_the_profile_is_the_one_that_fits() -> None:
    profiles = [
        ({"x": (low, 4)}, {"x": (low, 4)}, {"x": (high, 4)}) for low, high in ((1, 2), (3, 8))
    ]
    for rows, number in ((1, 0), (2, 0), (3, 1), (8, 1), (9, 0)):
        assert profile_for(profiles, {"x": np.zeros((rows, 4), np.float32)}) == number


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.bool_])
@pytest.mark.parametrize("shape", [(2, 3), (), (2, 0, 3)])
def test_arrays_come_back_as_they_went(shape: tuple[int, ...], dtype: Any, tmp_path: Path) -> None:
    """The files between the processes, bfloat16 and empty arrays included."""
    array = np.ones(shape, dtype)
    array.tofile(file := tmp_path / "array.bin")
    read = output_array({"dtype": str(array.dtype), "shape": shape, "file": str(file)})
    assert (read.dtype, read.shape, read.tobytes()) == (array.dtype, shape, array.tobytes())


def test_bounds_and_their_reasons() -> None:
    tf32 = Bounds(reduced="the engine was built with TF32")
    assert Bounds().relative("float32") == (1e-4, "float32: 0.0001 of the largest element")
    assert tf32.relative("float32")[0] == 1e-2
    assert "11 significant bits: the engine was built with TF32" in tf32.relative("float32")[1]
    for dtype in ("float64", "float16", "bfloat16", "int64"):
        assert tf32.relative(dtype) == Bounds().relative(dtype)
    assert Bounds(through="float16").relative("float32")[0] == 1e-2
    assert Bounds(through="bfloat16").relative("float16")[0] == 4e-2
    own = Bounds(rtol=1e-3, reduced="TF32").relative("float32")
    assert own == (1e-3, "given: rtol 0.001, atol 0")
    assert rx.verify(chain(1), chain(1), atol=1.0).outputs[0].tolerance == "given: rtol 0, atol 1"


@on_gpu
def test_engines_on_the_gpu(engine: Path) -> None:
    model = engine.with_name("model.onnx")
    outcome = rx.verify(model, engine)
    assert outcome.passed, outcome.reason
    assert outcome.backends == ("onnxruntime", "tensorrt-rtx")
    differs = rx.verify(chain(3, wrong=1), engine)
    assert any("gives no values inside" in note for note in differs.notes)
    with pytest.raises(InputError, match="does not run the engine"):
        rx.verify(model, engine, shapes={"h0": [65, 16]})
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        assert rx.verify(model, model, backend_b="onnxruntime-cuda").passed


@pytest.mark.parametrize(("model", "choice", "kind"), TABLE["kinds"])
def test_a_path_says_what_it_is(tmp_path: Path, model: str, choice: str, kind: str) -> None:
    assert _kind_of_model(model.format(folder=tmp_path), choice) == kind
