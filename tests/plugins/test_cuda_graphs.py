"""Whole graphs in ONNX Runtime's CUDA provider on the stand-in for CUDA: ours, and decoders.

The nodes of this package compute on the CPU here, on memory that is the device's as well, so that
their numbers are right or wrong; those of ONNX Runtime compute nothing.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper

import rmsnorm_export as rx
from rmsnorm_export.op.spec import FLOAT16
from tests.plugins import kernel_build
from tests.proof.sites import LLAMA, source
from tests.tools.cuda.provider import Inputs, Outcome, Provider
from tests.tools.runtimes.measure import INSTALL
from toolbox.corpus.decoders import decoder

VERSION = "1.31.1"
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_key_value_heads": 2}
FORMS: dict[str, dict[str, Any]] = {
    "as exported": {"target": "plain"},
    "norms": {"target": "ort"},
    "with sums": {"runtime": "onnxruntime-gpu"},
    "fused": {"runtime": "onnxruntime-gpu", "fusions": "cuda"},
    "fused, static": {"runtime": "onnxruntime-gpu", "fusions": "cuda", "static_cache": 32},
    "ours, static": {"target": "portable", "static_cache": 32},
}


@pytest.fixture(scope="module")
def provider() -> Provider:
    provider = Provider(VERSION)
    if problem := provider.install():
        pytest.skip(f"onnxruntime-gpu {VERSION}: {problem}; with a network, {INSTALL}")
    return provider


@pytest.fixture(scope="module")
def library() -> str:
    """Of nodes of this package; those of CUDA compute on the CPU."""
    return str(kernel_build.node_library())


def _inputs(path: pathlib.Path) -> Inputs:
    """One token behind eight."""
    sizes = {"batch": 1, "past": 8, "past + 1": 9}
    return [
        (
            value.name,
            tensor.elem_type,
            [d.dim_value or sizes[d.dim_param] for d in tensor.shape.dim],
        )
        for value in onnx.load(path, load_external_data=False).graph.input
        for tensor in (value.type.tensor_type,)
    ]


def _waits_for_the_host(events: Sequence[str]) -> list[str]:
    """Return what a CUDA graph cannot hold, of the events that one recorded."""
    words = ("malloc", "wait", "copy host", "copy device-host", "copy-async host", "-host")
    recorded = [event for event in events if event.startswith("captured")]
    return [event for event in recorded if any(word in event for word in words)]


def _norm(n: int) -> tuple[onnx.ModelProto, Inputs, np.ndarray]:
    """A norm as a node of this package, and what it gives."""
    model = ir.to_proto(rx.optimize(source(LLAMA, dtype=FLOAT16, n=n, shape="2, 5")).model)
    inputs = [("x", FLOAT16, [2, 5, n]), ("w", FLOAT16, [n])]
    x, w = (np.random.default_rng(0).standard_normal(shape) for _, _, shape in inputs)
    x, w = (array.astype(np.float16).astype(np.float32) for array in (x, w))
    row = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-6))
    return model, inputs, row.astype(np.float16) * w.astype(np.float16)


def _assert_right(outcome: Outcome, expected: np.ndarray) -> None:
    assert not outcome.error
    distance = np.abs(np.asarray(outcome.outputs[0], np.float16) - expected)
    assert (distance <= np.spacing(np.abs(expected))).all()


@pytest.mark.thorough
@pytest.mark.parametrize("graph", [False, True], ids=["runs", "a CUDA graph"])
def test_our_nodes_give_their_numbers_without_a_copy(
    provider: Provider, library: str, *, graph: bool
) -> None:
    model, inputs, expected = _norm(64)
    (outcome,) = provider.run([(model, inputs)], runs=3, graph=graph, outputs=True, library=library)
    _assert_right(outcome, expected)
    assert outcome.device == "cuda"
    assert not _waits_for_the_host(outcome.runs[0])
    last = [event.partition("\t")[0] for event in outcome.runs[-1] if "wait" not in event]
    if graph:
        assert last == ["launch graph"]
    else:  # one kernel, the copy of the output, and no memory that the first run had not
        (kernel,) = outcome.kernels()
        assert last == [f"launch {kernel}", "copy-async device-host 1280"]
        assert "row_hot" in kernel


@pytest.mark.thorough
@pytest.mark.parametrize("own_stream", [False, True], ids=["its own", "the caller's"])
def test_our_nodes_are_on_the_stream_of_the_session(
    provider: Provider, library: str, *, own_stream: bool
) -> None:
    """As the provider's kernel behind them is; and on a stream of the caller."""
    model, inputs, _ = _norm(64)
    output = model.graph.output[0]
    model.graph.node.append(helper.make_node("Add", [output.name] * 2, ["doubled"]))
    output.name, asked = "doubled", [(model, inputs)]
    (outcome,) = provider.run(asked, library=library, own_stream=own_stream)
    assert not outcome.error
    (ours, of_ours), (_, of_theirs) = outcome.launches()
    assert "row_hot" in ours
    assert of_ours == of_theirs != "(nil)"
    assert (of_ours == outcome.stream) == own_stream


@pytest.mark.thorough
def test_two_sessions_at_once(provider: Provider, library: str) -> None:
    """Each in a thread, of another length, on a stream of its own: each has its own numbers."""
    norms = [_norm(64), _norm(4096)]
    asked = [(model, inputs) for model, inputs, _ in norms]
    outcomes = provider.run(asked, runs=20, outputs=True, library=library, together=True)
    for outcome, (_, _, expected) in zip(outcomes, norms, strict=True):
        _assert_right(outcome, expected)
    launches = {one for outcome in outcomes for run in range(20) for one in outcome.launches(run)}
    kernels, streams = zip(*launches, strict=True)
    assert len({*kernels}) == len({*streams}) == len(launches) == 2, launches


@pytest.mark.thorough
def test_a_token_of_a_decoder(provider: Provider, library: str, tmp_path: pathlib.Path) -> None:
    """Of a static cache it is one CUDA graph; of a cache that grows the provider records none."""
    model, launches = decoder("llama", torch.float16, **SIZES), {}
    for name, options in FORMS.items():
        rx.export_generation(model, tmp_path / name, **options)
        path, static = tmp_path / name / "decode.onnx", "static" in name
        more = {"library": library} if "ours" in name else {}
        asked = [(onnx.load(path), _inputs(path))]
        (recorded,) = provider.run(asked, runs=2, graph=True, **more)
        assert bool(recorded.error) != static, (name, recorded.error)
        if static:
            assert not _waits_for_the_host(recorded.runs[0])
            assert [event for event in recorded.runs[1] if "wait" not in event] == ["launch graph"]
        (outcome,) = provider.run(asked, runs=2, **more)
        launches[name] = len(outcome.kernels())
    norms = 5
    assert launches["norms"] == launches["as exported"], "ONNX Runtime fuses these itself"
    assert launches["with sums"] == launches["norms"] - (norms - 1)
    assert launches["fused"] < 0.7 * launches["with sums"]
