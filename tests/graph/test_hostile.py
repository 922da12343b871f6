"""Damaged, cyclic and deep models are refused in three lines, whatever kind of source they are.

The command line's tests put every model of the registry through ``load_model``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hostile import frames
from hostile.frames import GAIN, branch, external_model, if_nodes, norm_model, norm_nodes

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.graph.save import to_bytes


def test_a_model_cut_anywhere_is_an_input_error() -> None:
    # The opset import is the last field: whatever is cut off the end, it is incomplete.
    for cut in range(1, 400, 7):
        with pytest.raises(InputError):
            load_model(norm_model().SerializeToString()[:-cut])


def test_random_damage_never_gives_another_exception(tmp_path: Path) -> None:
    constant = onnx.helper.make_tensor("pair", onnx.TensorProto.FLOAT, [2], [1.0, 2.0])
    extra = onnx.helper.make_node("Constant", [], ["c"], name="c", value=constant)
    sources = [
        norm_model([*norm_nodes(), extra]).SerializeToString(),
        external_model(tmp_path, data=GAIN).read_bytes(),
    ]
    rng = np.random.default_rng(0)
    refused = 0
    for turn in range(2000):
        damaged = bytearray(sources[turn % 2])
        for position in rng.integers(0, len(damaged), 3):
            damaged[position] = rng.integers(0, 256)
        try:
            to_bytes(load_model(bytes(damaged)).model, weights="reference")
        except InputError as error:
            _, found, fix = str(error).split("\n")
            assert (found[:7], fix[:5]) == ("found: ", "fix: ")
            assert (found + fix).isprintable()
            refused += 1
    assert 200 < refused < 2000


def _deep_proto() -> onnx.ModelProto:
    proto = norm_model()
    graph = proto.graph
    for _ in range(10_000):
        attribute = graph.node.add(op_type="If").attribute.add(name="then_branch")
        attribute.type = onnx.AttributeProto.GRAPH
        graph = attribute.g
    return proto


def _deep_ir() -> ir.Model:
    inner = ir.Graph([], [], nodes=[], name="leaf")
    for _ in range(2_000):
        node = ir.Node("", "If", [], [ir.AttrGraph("then_branch", inner)])
        inner = ir.Graph([], [], nodes=[node], opset_imports={"": 18})
    return ir.Model(inner, ir_version=10)


@pytest.mark.parametrize(
    "build",
    [_deep_proto, _deep_ir, *(lambda n=n: frames.nested_bytes(n) for n in (32, 33, 34, 1000))],
)
def test_a_nest_is_too_deep_and_not_read(build: Callable[[], object]) -> None:
    """In memory, and around the limit of the parser."""
    with pytest.raises(InputError, match=r"nested too deeply|undefined"):
        load_model(build())  # type: ignore[arg-type]


@pytest.mark.parametrize("convert", [lambda model: model, ir.from_proto])
def test_a_nest_of_31_levels_is_read_and_one_of_32_is_not(convert: Callable[..., object]) -> None:
    def nested(levels: int) -> object:
        other = branch([onnx.helper.make_node("Neg", ["x"], ["b"])], "b")
        nodes = [onnx.helper.make_node("Abs", ["x"], ["v0"])]
        for level in range(1, levels):
            inner = branch(nodes, f"v{level - 1}")
            nodes = [onnx.helper.make_node("If", ["flag"], [f"v{level}"], then_branch=inner,
                                           else_branch=other)]  # fmt: skip
        return convert(norm_model(if_nodes(branch(nodes, f"v{levels - 1}"), other)))

    load_model(nested(31))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="nested too deeply"):
        load_model(nested(32))  # type: ignore[arg-type]


def _cycle(nodes: dict[str, ir.Node]) -> None:
    nodes["div"].replace_input_with(1, nodes["mul"].outputs[0])


def _duplicate(nodes: dict[str, ir.Node]) -> None:
    nodes["sqrt"].outputs[0].name = "mean"


def _stranger(nodes: dict[str, ir.Node]) -> None:
    other = ir.from_proto(norm_model())
    stranger = next(node for node in other.graph if node.name == "sqrt").outputs[0]
    nodes["div"].replace_input_with(1, stranger)


def _without_data(nodes: dict[str, ir.Node]) -> None:
    graph = nodes["div"].graph
    assert isinstance(graph, ir.Graph)
    graph.initializers["eps"].const_value = None


@pytest.mark.parametrize(
    ("break_it", "words"),
    [(_cycle, "cycle"), (_duplicate, "duplicate name 'mean'"),
     (_stranger, "does not enclose it"), (_without_data, "'eps'")],
)  # fmt: skip
def test_defects_in_onnx_ir(break_it: Callable[[dict[str, ir.Node]], None], words: str) -> None:
    model = ir.from_proto(norm_model())
    break_it({node.name or "": node for node in model.graph})
    with pytest.raises(InputError, match=words):
        load_model(model)


def test_nodes_out_of_order_in_onnx_ir_leave_the_model_alone() -> None:
    model = ir.from_proto(norm_model(norm_nodes()[::-1]))
    loaded = load_model(model)
    assert [node.name for node in model.graph] == ["mul", "div", "sqrt", "add", "reduce", "pow"]
    assert next(node.name for node in loaded.model.graph) == "pow"
    assert "sorted" in loaded.notes[0]
