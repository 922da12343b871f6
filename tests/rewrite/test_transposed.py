"""Casts around Transposes that would end ONNX Runtime: where they stand, and that nothing changes.

That the files load is in ``tests/runtime/test_real_runtimes.py``.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

import rmsnorm_export as rx
from rmsnorm_export.runtime.session import load_session, open_session, run_session
from tests.tools.runtimes import halves

X = {"input": np.random.default_rng(5).standard_normal(halves.FIXED).astype(np.float32)}


def _transposes(model: rx.Model) -> Counter[int | None]:
    """Count the Transposes by element type."""
    nodes = (node for node in model.graph.all_nodes() if node.op_type == "Transpose")
    return Counter(int(node.inputs[0].dtype or 0) for node in nodes if node.inputs[0])


@pytest.mark.parametrize(
    ("label", "target", "widened"),
    [
        ("half | product", "ort", 1),
        ("half | product", "portable", 0),
        ("half, no scale | product", "portable", 1),
        ("half, no scale | product", "plain", 1),
        ("half | turned", "onnx", 1),
        ("half | in two steps", "ort", 2),
        ("half | sum", "ort", 0),
        ("residual | sum", "ort", 1),
        ("half | transposed before", "plain", 1),
        ("half | fused product", "ort", 1),
        ("half | branch", "ort", 1),
        ("half | operands of one rank", "ort", 0),
        ("half | rows and columns", "ort", 0),
        ("half | computed between", "ort", 0),
        ("half | no transpose", "ort", 0),
    ],
)
def test_casts_stand_where_they_are_needed_alone(label: str, target: str, widened: int) -> None:
    source = halves.build(f"{label} | free")
    result = rx.optimize(source, target=target, numerics="upcast")
    assert _transposes(result.model)[1] == widened
    assert any("between Casts" in note for note in result.report.notes) == bool(widened)
    again = rx.optimize(result.model, target=target, numerics="upcast")
    assert _transposes(again.model) == _transposes(result.model)


@pytest.mark.parametrize("place", ["product", "in two steps", "two products", "read twice"])
def test_every_number_is_as_without_casts(place: str) -> None:
    source = halves.build(f"half, no scale | {place} | fixed")
    with_casts = rx.optimize(source, target="onnx", numerics="upcast")
    without = rx.optimize(source, runtime="opencv", numerics="upcast")
    assert not any("between Casts" in note for note in without.report.notes)
    computed = [
        run_session(load_session(one.to_bytes()), X)["output"] for one in (with_casts, without)
    ]
    assert np.array_equal(*computed)


def test_in_a_function_of_the_model() -> None:
    """Where the session inlines it, the norm stands beside the Transpose as elsewhere.

    Each node has the name of its output, so that the name is taken.
    """
    model = halves.build("half | product | fixed")
    inner = list(model.graph.node)[1:-1]
    for node in inner:
        node.name = node.output[0]
    constants = [one for one in model.graph.initializer if any(one.name in n.input for n in inner)]
    function = onnx.helper.make_function(
        "own", "Block", ["x", *(one.name for one in constants)], ["y"], inner,
        [onnx.helper.make_opsetid("", 18)],
    )  # fmt: skip
    call = onnx.helper.make_node("Block", list(function.input), ["y"], domain="own")
    first, last = model.graph.node[0], model.graph.node[-1]
    del model.graph.node[:]
    model.graph.node.extend([first, call, last])
    model.functions.append(function)
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    expected = run_session(load_session(model.SerializeToString()), X)["output"]
    result = rx.optimize(model, target="ort", numerics="upcast")
    assert result.report.fused
    computed = run_session(open_session(result.to_bytes(), optimize=True), X)["output"]
    assert np.abs(computed - expected).max() < 0.05
