"""Which backend runs what, one made here too; what is missing is named; engines without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import rmsnorm_export as rx
from rmsnorm_export.compare.backend import Answer, RunModel, _kind_of_model, choose_backend
from rmsnorm_export.compare.backends import BACKENDS
from rmsnorm_export.compare.onnx_backend import OnnxRuntime
from rmsnorm_export.compare.outputs import Bounds
from rmsnorm_export.errors import BackendMissingError, UsageError
from rmsnorm_export.tensorrt.engine.backends import gpu_visible

from .broken import chain, set_epsilon


def test_auto_goes_by_the_model_and_another_backend_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"anything")
    assert choose_backend(tmp_path / "other", "auto", optimize=True).name == "onnxruntime"
    for side in ("backend_a", "backend_b"):
        with pytest.raises(UsageError, match="Invalid enum value"):
            rx.verify(chain(1), chain(1), **{side: "cuda"})
        with pytest.raises(UsageError, match="runs no onnx model"):
            rx.verify(chain(1), chain(1), **{side: "torch"})


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

    def load(self, content: bytes) -> RunModel:
        evaluator = ReferenceEvaluator(onnx.load_from_string(content))
        names = evaluator.output_names
        return lambda feeds: Answer(dict(zip(names, evaluator.run(None, dict(feeds)), strict=True)))


@pytest.mark.parametrize("side", ["backend_a", "backend_b"])
def test_a_new_backend_is_a_class_and_a_row(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is chosen and compared."""
    monkeypatch.setitem(BACKENDS, "reference", f"{__name__}:Reference")
    how: Any = {"shapes": {"h0": [5, 16]}, side: "reference"}
    rewritten = rx.optimize(chain(4))
    site = rewritten.report.fused[2].name
    same = rx.verify(chain(4), rewritten.model, **how)
    assert same.passed, same.reason
    assert sorted(same.backends) == ["onnxruntime", "reference"]
    assert "onnx (reference)" in same.runtime
    broken = rx.verify(chain(4), set_epsilon(rewritten.model, site, 0.5), **how)
    assert broken.verdict == "differ"
    with pytest.raises(UsageError, match="Invalid enum value") as caught:
        rx.verify(chain(1), chain(1), backend_b="ones")
    assert "torch, reference" in caught.value.fix


def test_bounds_and_their_reasons() -> None:
    assert Bounds().relative("float32") == (1e-4, "float32: 0.0001 of the largest element")
    assert Bounds(through="float16").relative("float32")[0] == 1e-2
    assert Bounds(through="bfloat16").relative("float16")[0] == 4e-2
    own = Bounds(rtol=1e-3).relative("float32")
    assert own == (1e-3, "given: rtol 0.001, atol 0")
    assert rx.verify(chain(1), chain(1), atol=1.0).outputs[0].tolerance == "given: rtol 0, atol 1"


@pytest.mark.parametrize(
    ("model", "choice", "kind"),
    [
        ("{folder}", "auto", "pytorch"),
        ("{folder}/config.json", "auto", "pytorch"),
        ("package.module:factory", "auto", "pytorch"),
        ("{folder}/a:b", "auto", "onnx"),
        ("net.onnx", "auto", "onnx"),
        ("net.onnx", "torch", "pytorch"),
        ("package.module:factory", "onnxruntime", "onnx"),
        ("{folder}", "onnxruntime", "onnx"),
        ("\0", "auto", "onnx"),
    ],
)
def test_a_path_says_what_it_is(tmp_path: Path, model: str, choice: str, kind: str) -> None:
    assert _kind_of_model(model.format(folder=tmp_path), choice) == kind
