"""Nodes around masks and heads that change nothing go: outputs are the same, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

pytest.importorskip("transformers.exporters.metadata", reason="pip install 'transformers>=5.23'")

from onnxscript import optimizer

import rmsnorm_export as rx
from rmsnorm_export.decoder import fusions
from rmsnorm_export.decoder.redundant import drop_redundant
from rmsnorm_export.runtime.session import load_session, run_session
from tests.decoder.conftest import model_of

pytestmark = [pytest.mark.export, pytest.mark.slow]

_WINDOW = {"num_hidden_layers": 1, "sliding_window": 8}
_CASES: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "phi3": (_WINDOW, {"names": "optimum"}),
    "mistral": ({}, {}),
    "llama, several tokens": ({}, {"multi_token": True}),
    "llama, static": ({}, {"static_cache": 12}),
    "gemma3_text": ({}, {}),
}
_SLOW = [pytest.param(name, marks=pytest.mark.thorough) for name in [*_CASES][1:]]


@pytest.fixture(scope="module", params=["llama", "phi3", *_SLOW])
def graphs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, decoder: Path
) -> list[Path]:
    folder = tmp_path_factory.mktemp("graphs") / "made"
    if request.param == "llama":
        rx.optimize(decoder, target="ort").save(folder)
    else:
        changes, options = _CASES[request.param]
        model = model_of(request.param.partition(",")[0], **changes)
        rx.export_generation(model, folder, target="ort", **options)
    return sorted(folder.glob("*.onnx"))


def feeds_of(model: ir.Model, seed: int, **sizes: int) -> dict[str, np.ndarray]:
    """Numbers of any kind: rows that see nothing, holes in masks, positions in no order."""
    draw = np.random.default_rng(seed)
    feeds: dict[str, np.ndarray] = {}
    for value in model.graph.inputs:
        names = [d if isinstance(d, int) else d.value for d in value.shape or ()]
        shape = [d if isinstance(d, int) else eval(d, {}, sizes) for d in names]
        if value.dtype == ir.DataType.FLOAT:
            feeds[str(value.name)] = draw.standard_normal(shape, np.float32)
        elif "mask" in str(value.name):
            mask = draw.random(shape) < draw.choice([0.3, 0.7])
            mask[draw.random(shape[0]) < 0.3] = False
            feeds[str(value.name)] = mask.astype(value.dtype.numpy())
        else:  # tokens, positions, and what a static cache holds
            feeds[str(value.name)] = draw.integers(0, 4, shape)
    return feeds


def check_same(before: ir.Model, after: ir.Model, *, names: Callable[[int], dict[str, int]]) -> int:
    """Return how many inputs ran, on which all outputs were equal."""
    sessions = [load_session(ir.to_proto(m).SerializeToString()) for m in (before, after)]
    ran = 0
    for seed in range(40):
        feeds = feeds_of(before, seed, **names(seed))
        try:
            expected = run_session(sessions[0], feeds)
        except rx.Error:  # sizes that no cache has
            continue
        computed = run_session(sessions[1], feeds)
        ran += 1
        for name, array in expected.items():
            assert array.tobytes() == computed[name].tobytes(), (name, seed, names(seed))
    return ran


def sizes(seed: int) -> dict[str, int]:
    draw = np.random.default_rng(seed)
    past, sequence = int(draw.integers(0, 9)), int(draw.integers(1, 5))
    drawn = {"batch": 1 + seed % 4, "past": past, "sequence": sequence}
    return drawn | {"heads": 2, "width": 16}  # where optimum's empty cache may have others


def of_fused(seed: int) -> dict[str, int]:
    """Return sizes that a fused attention takes: several tokens after a cache for one row alone."""
    drawn = sizes(seed)
    return drawn if drawn["sequence"] == 1 else drawn | {"batch": 1}


def loaded(path: Path) -> ir.Model:
    model = ir.load(path)
    ir.external_data.load_to_model(model)
    optimizer.optimize(model)
    return model


def count(model: ir.Model, *operators: str) -> int:
    return sum(node.op_type in operators for node in model.graph)


@pytest.mark.parametrize("fused", [False, True], ids=["as exported", "with fusions"])
def test_every_output_is_the_same(
    graphs: list[Path], fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in graphs:
        before = loaded(path)
        if fused:
            monkeypatch.setattr(fusions, "drop_redundant", lambda _: None)
            before, _ = fusions.fuse(before, "cpu")
        after = before.clone()
        drop_redundant(after)
        assert not count(after, "GatherND")
        assert check_same(before, after, names=of_fused if fused else sizes) >= 30


def _transposed(model: ir.Model) -> None:
    """Look the mask up at [token, row]."""
    (lookup,) = (node for node in model.graph if node.op_type == "GatherND")
    columns = lookup.inputs[1].producer()
    first, second = columns.inputs
    columns.replace_input_with(0, second)
    columns.replace_input_with(1, first)


def _without_the_last(model: ir.Model) -> None:
    """Let no token see itself."""
    (compared,) = (node for node in model.graph if node.op_type == "LessOrEqual")
    _instead(compared, 1, lambda tape, value: tape.op("Sub", [value, _one(tape)]))


def _one_later(model: ir.Model) -> None:
    """Look up the mask of the next token, and of the first for the last."""
    (lookup,) = (node for node in model.graph if node.op_type == "GatherND")
    _instead(lookup, 1, lambda tape, value: tape.op("Sub", [value, _one(tape)]))


def _longer(model: ir.Model) -> None:
    """Take a mask for more tokens than there are."""
    (mask,) = (value for value in model.graph.inputs if value.name == "attention_mask")
    mask.shape = ir.Shape(["batch", "past + 3"])
    for use in mask.uses():
        use.node.outputs[0].shape = mask.shape


def _one(tape: ir.tape.Tape) -> ir.Value:
    return tape.op("Constant", [], {"value_ints": [1]})


def _instead(
    node: ir.Node, index: int, change: Callable[[ir.tape.Tape, ir.Value], ir.Value]
) -> None:
    tape, value = ir.tape.Tape(), node.inputs[index]
    changed = change(tape, value)
    changed.shape, changed.dtype = value.shape, value.dtype
    node.graph.insert_before(node, tape.nodes)
    node.replace_input_with(index, changed)


@pytest.mark.parametrize("change", [_transposed, _without_the_last, _one_later, _longer])
def test_what_looks_alike_is_kept(change: Callable[[ir.Model], None], decoder: Path) -> None:
    before = loaded(decoder / "decode.onnx")
    change(before)
    after = before.clone()
    drop_redundant(after)
    kept = "LessOrEqual" if change is _without_the_last else "GatherND"
    assert count(after, kept) == 1
    square = {"batch": 4, "past": 3, "sequence": 1}  # a mask that may be looked up either way
    assert check_same(before, after, names=lambda _: square) >= 30
