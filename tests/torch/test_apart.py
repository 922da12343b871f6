"""A trace in a fork: the graph comes back, its weights are the module's, and so are errors."""

from __future__ import annotations

import os
import signal
import sys
import traceback

import onnx_ir as ir
import pytest
import torch
from onnx_ir.tensor_adapters import TorchTensor

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.tensors import memory_of
from rmsnorm_export.torch.export.apart import begin_trace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")


class Weights(torch.nn.Module):
    """With a tied parameter, a buffer of half precision, and one that is a part of another."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = self.tied = torch.nn.Parameter(torch.randn(3, 4))
        self.register_buffer("small", torch.ones(2, dtype=torch.bfloat16))
        self.register_buffer("row", self.weight.detach()[1])
        self.register_buffer("empty", torch.ones(0))


def graph_of(**tensors: torch.Tensor) -> ir.Model:
    values = [
        ir.Value(name=name, const_value=TorchTensor(tensor, name=name))
        for name, tensor in tensors.items()
    ]
    graph = ir.Graph([], [], nodes=[], initializers=values, opset_imports={"": 18})
    return ir.Model(graph, ir_version=10)


def test_weights_are_the_modules_and_the_rest_is_what_was_traced() -> None:
    module = Weights()
    here = {
        "tied": module.tied,
        "transposed": module.weight.T,
        "small": module.small,
        "row": module.row,
        "empty": module.empty,
        "lifted": torch.arange(5),
    }
    model, pid = begin_trace(module, lambda: (graph_of(**here), os.getpid()))()
    assert pid != os.getpid()
    there = {name: value.const_value for name, value in model.graph.initializers.items()}
    for name, tensor in here.items():
        own = TorchTensor(tensor, name=name)
        assert there[name].dtype == own.dtype
        assert there[name].tobytes() == own.tobytes()
        shared = name not in ("lifted", "empty")
        assert (memory_of(there[name]) == memory_of(own) is not None) == shared


def test_errors_have_the_traceback_of_where_they_were_raised() -> None:
    def refuse() -> tuple[ir.Model, None]:
        raise InputError("No.", found="x", fix="none")

    with pytest.raises(InputError, match="No") as caught:
        begin_trace(Weights(), refuse)()
    assert "in refuse" in "".join(traceback.format_exception(caught.value))


def test_a_process_that_ends_is_an_error() -> None:
    def end() -> tuple[ir.Model, None]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    with pytest.raises(InputError, match="ended before") as caught:
        begin_trace(Weights(), end)()
    assert caught.value.found == "the process was ended by SIGKILL"


def test_what_no_fork_can_use_is_traced_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert begin_trace(Weights().to("meta"), lambda: (graph_of(), os.getpid()))()[1] == os.getpid()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert begin_trace(Weights(), lambda: (graph_of(), os.getpid()))()[1] == os.getpid()
