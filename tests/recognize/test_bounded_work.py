"""Small files that ask for much work or memory, or have no rows; and rows that are squares."""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rmsnorm_export as rx
from bench import graphs

TARGETS = ("portable", "onnx", "ort")


def _norm(x: str, *, swapped: bool = False, tag: str = "") -> list[onnx.NodeProto]:
    """A weightless norm of ``x``; ``swapped``: the last product as rstd * x."""
    square, mean, total, root, rstd = (
        f"{name}{tag}" for name in ("square", "mean", "sum", "root", "rstd")
    )
    return [
        helper.make_node("Pow", [x, "two"], [square]),
        helper.make_node("ReduceMean", [square], [mean], axes=[-1], keepdims=1),
        helper.make_node("Add", [mean, "epsilon"], [total]),
        helper.make_node("Sqrt", [total], [root]),
        helper.make_node("Reciprocal", [root], [rstd]),
        helper.make_node("Mul", [rstd, x] if swapped else [x, rstd], [f"y{tag}"]),
    ]


def _model(
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int | str],
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    constants = {"two": np.float32(2), "epsilon": np.float32(1e-6)}
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=9)


def _nested(levels: int) -> list[onnx.FunctionProto]:
    """``f0``, which calls ``f1`` twice, which calls ``f2`` twice, ...: 2 ** levels paths."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    functions = []
    for level in range(levels):
        call: dict[str, Any] = {"domain": "f"}
        name = f"f{level + 1}"
        if level + 1 == levels:
            call, name = {}, "Neg"
        nodes = [helper.make_node(name, ["a"], ["b"], **call)]
        nodes.append(helper.make_node(name, ["b"], ["c"], **call))
        functions.append(helper.make_function("f", f"f{level}", ["a"], ["c"], nodes, opsets))
    return functions


@pytest.mark.parametrize("target", TARGETS)
def test_functions_that_call_functions_are_walked_once(target: Any) -> None:
    """The norm behind 2 ** 40 paths needs the rank, which only their end tells."""
    nodes = [helper.make_node("f0", ["x"], ["h"], domain="f"), *_norm("h")]
    report = rx.inspect(_model(nodes, [2, 16], _nested(40)), target=target)
    assert len(report.fused) == 1, report.refused


@pytest.mark.parametrize("levels", [150, 3000])
def test_functions_may_call_functions_very_deeply(levels: int) -> None:
    report = rx.inspect(
        _model(
            [helper.make_node("f0", ["x"], ["h"], domain="f"), *_norm("h")],
            [2, 16],
            _nested(levels),
        )
    )
    assert len(report.fused) + len(report.refused) == 1


@pytest.mark.parametrize("target", TARGETS)
def test_a_scalar_has_no_rows(target: Any) -> None:
    nodes = _norm("x")
    del nodes[1].attribute[:]
    report = rx.optimize(_model(nodes, []), target=target).report
    assert [refusal.reason for refusal in report.refused] == ["all-axes"]


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_ones_of_a_size_that_a_file_merely_declares_are_not_made(target: Any) -> None:
    report = rx.optimize(_model(_norm("x"), [1, 2**36]), target=target).report
    assert [refusal.reason for refusal in report.refused] == ["row-too-long"]
    assert f"{2**36:,}" in report.refused[0].found


def test_portable_needs_no_ones() -> None:
    assert len(rx.optimize(_model(_norm("x"), [1, 2**36])).report.fused) == 1


def test_portable_needs_no_ones_beside_a_norm_that_has_a_scale() -> None:
    """Both call one function, so that the one without a scale passes ones."""
    scaled = [
        helper.make_node("Slice", ["x", "zero", "eight", "last"], ["h"]),
        *_norm("h", tag="_h"),
        helper.make_node("Mul", ["y_h", "gain"], ["scaled"]),
    ]
    model = _model([*scaled, *_norm("x")], [1, 2**36])
    for name, value in (("zero", [0]), ("eight", [8]), ("last", [-1])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(8, np.float32), "gain"))
    model.graph.output.append(helper.make_tensor_value_info("scaled", TensorProto.FLOAT, None))
    result = rx.optimize(model)
    assert len(result.report.fused) == 2
    assert len(result.to_bytes()) < 10_000


@pytest.mark.parametrize("name", graphs.HARD)
@pytest.mark.parametrize("target", TARGETS)
def test_work_grows_with_the_size_of_a_graph(name: str, target: Any) -> None:
    """Counted in calls of functions, which do not depend on the machine."""
    calls = []
    for size in (0, 400, 800):  # the first is for what is imported
        model, norms = graphs.HARD[name](size or 10)
        profile = cProfile.Profile()
        profile.enable()
        report = rx.optimize(model, target=target).report
        profile.disable()
        assert len(report.fused) == norms
        calls.append(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]
    assert calls[2] < 2.2 * calls[1]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("square", ["Mul", "Pow"])
def test_a_row_that_is_itself_a_square(square: str, swapped: bool) -> None:
    """relu(x) ** 2 and then a norm, as in squared-ReLU blocks."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node(square, ["r", "r" if square == "Mul" else "two"], ["h"]),
        *_norm("h", swapped=swapped),
    ]
    report = rx.optimize(_model(nodes, [2, 16]), prove=True).report
    assert len(report.fused) == 1, report.refused
    assert report.fused[0].proof is not None
    assert report.fused[0].proof.passed


def test_a_row_that_many_nodes_read_is_looked_at_once() -> None:
    """Its list of readers is no call of a function: told by the clock, with room for a slow one."""
    model, _ = graphs.HARD["one row"](40_000)
    start = time.process_time()
    assert len(rx.optimize(model, target="ort").report.fused) == 1
    assert time.process_time() - start < 30
