"""A runtime is one class and one row: one that is made here is chosen, compared and searched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import rmsnorm_export as rx
from rmsnorm_export.compare import backends
from rmsnorm_export.compare.backend import Answer, RunModel
from rmsnorm_export.compare.onnx_backend import OnnxRuntime
from rmsnorm_export.errors import UsageError

from .broken import chain, set_epsilon, told


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
        return lambda feeds: Answer(every, tuple(evaluator.run(list(every), dict(feeds))))


@pytest.fixture(autouse=True)
def row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backends.BACKENDS, "reference", f"{__name__}:Reference")


@pytest.mark.parametrize("side", ["backend_a", "backend_b"])
def test_it_agrees_and_is_searched(side: str) -> None:
    how: Any = {"shapes": {"h0": [5, 16]}, side: "reference"}
    rewritten = rx.optimize(chain(4))
    site = rewritten.report.fused[2].name
    same = rx.verify(chain(4), rewritten.model, **how)
    assert same.passed, same.reason
    assert sorted(same.backends) == ["onnxruntime", "reference"]
    assert "onnx (reference)" in same.runtime
    broken = rx.verify(chain(4), set_epsilon(rewritten.model, site, 0.5), **how)
    assert told(broken) == (site, "at", True)


def test_what_it_does_not_run() -> None:
    with pytest.raises(UsageError, match="backend reference runs no engine"):
        rx.verify(chain(1), "model.engine", backend_b="reference")
    with pytest.raises(UsageError, match="Invalid enum value") as caught:
        rx.verify(chain(1), chain(1), backend_b="ones")
    assert "engine, reference" in caught.value.fix
