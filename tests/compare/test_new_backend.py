"""A runtime is one class and one row: one that is made here is chosen, compared and searched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, get_args

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import rmsnorm_export as rx
from rmsnorm_export.compare import backends
from rmsnorm_export.compare.backend import Answer, Backend, Chosen, RunModel
from rmsnorm_export.compare.onnx_backend import OnnxBackend
from rmsnorm_export.errors import BackendMissingError, UsageError

from .broken import chain, set_epsilon, told

ROWS = {"h0": [5, 16]}


class Reference(OnnxBackend):
    """ONNX's reference implementation, in Python."""

    __slots__ = ()
    name = "reference"

    @property
    def runtime(self) -> str:
        return f"onnx {onnx.__version__} (reference)"

    def load(self, content: bytes, names: Sequence[str] | None = None) -> RunModel:
        evaluator = ReferenceEvaluator(onnx.load_from_string(content))  # type: ignore[arg-type]
        wanted = tuple(evaluator.output_names if names is None else names)
        return lambda feeds: Answer(wanted, tuple(evaluator.run(list(wanted), dict(feeds))))


class Zeros(Backend):
    """As little as a runtime can be: no graph of its own, and nothing inside can be had."""

    name = "zeros"
    runtime = "zeros 1.0"

    @classmethod
    def require(cls, chosen: Chosen) -> None:
        assert chosen.kind == "onnx"
        if not cls.here:
            raise BackendMissingError("This needs zeros.", found="none", fix="count from 0")

    here = True

    @classmethod
    def open(cls, chosen: Chosen) -> Backend:
        del chosen
        return cls()

    @contextmanager
    def running(self) -> Iterator[RunModel]:
        def run(feeds: Mapping[str, np.ndarray]) -> Answer:
            (array,) = feeds.values()
            return Answer(("output",), (np.zeros_like(array),), named=False)

        yield run


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for cls in (Reference, Zeros):
        monkeypatch.setitem(
            backends.BACKENDS, cls.name, backends.BackendRow(f"{__name__}:{cls.__name__}")
        )


def verify(a: ir.Model, b: ir.Model, **options: Any) -> rx.Verification:
    return rx.verify(a, b, shapes=ROWS, **options)


@pytest.mark.parametrize("side", ["backend_a", "backend_b"])
def test_a_model_and_its_rewrite_agree(side: str) -> None:
    result = verify(chain(3), rx.optimize(chain(3)).model, **{side: "reference"})
    assert result.passed, result.reason
    assert sorted(result.backends) == ["onnxruntime", "reference"]
    assert f"onnx {onnx.__version__} (reference)" in result.runtime
    assert result.optimized == (False, side == "backend_a")


@pytest.mark.parametrize("side", ["backend_a", "backend_b"])
def test_a_difference_is_followed_to_its_place(side: str) -> None:
    result = rx.optimize(chain(4))
    site = result.report.fused[2].name
    found = verify(chain(4), set_epsilon(result.model, site, 0.5), **{side: "reference"})
    assert told(found) == (site, "at", True)


def test_a_runtime_without_values_inside() -> None:
    found = verify(chain(2), chain(2), backend_b="zeros")
    assert not found.passed
    assert found.backends == ("onnxruntime", "zeros")
    assert found.first_difference is None
    assert found.notes == (
        "the first difference was not looked for: the backend zeros gives no values inside",
    )


def test_what_it_does_not_run_and_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="backend zeros runs no engine"):
        rx.verify(chain(1), "model.engine", backend_b="zeros")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Invalid enum value") as caught:
        rx.verify(chain(1), chain(1), backend_b="ones")  # type: ignore[arg-type]
    assert "tensorrt, tensorrt-rtx, reference, zeros" in caught.value.fix
    monkeypatch.setattr(Zeros, "here", False)
    with pytest.raises(BackendMissingError, match="needs zeros"):
        rx.verify("no/such/model.onnx", "no/such/model.onnx", backend_b="zeros")  # type: ignore[arg-type]


def test_the_rows_are_what_users_may_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert backends.backend_choices() == get_args(backends.BackendChoice)
    assert backends.how_it_ran("torch", optimized=False) == "torch"
    assert backends.how_it_ran("onnxruntime-cuda", optimized=True) == "CUDA, graph optimization on"
    for name in backends.BACKENDS:
        assert issubclass(backends._backend_class(name), Backend)
        assert backends._backend_class(name).name == name


def test_the_command_line_takes_them_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the choices are made when the command is imported
    from rmsnorm_export.cli.verify import command

    for option in ("backend_a", "backend_b"):
        (kind,) = (one.type for one in command.params if one.name == option)
        assert tuple(kind.choices) == get_args(backends.BackendChoice)  # type: ignore[attr-defined]
