"""Every hostile file gives a three-line error and changes nothing; every odd one is read right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hostile_models import (
    GAIN,
    HOSTILE,
    SHAPE,
    external_model,
    nested_bytes,
    norm_model,
    norm_nodes,
    write,
)

from graph.folders import snapshot
from rmsnorm_export.compare.verify import verify
from rmsnorm_export.errors import Error, InputError, UsageError
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.graph.save import save_model, to_bytes

BAD = [name for name, case in HOSTILE.items() if case.error is not None]
ODD = [name for name, case in HOSTILE.items() if case.error is None]

# ONNX Runtime has no operator of that domain, no such opset, or no output to compute.
NOT_RUN = {"unknown_domain", "future_opset", "no_nodes"}


def assert_three_lines(error: Error) -> None:
    lines = str(error).split("\n")
    assert len(lines) == 3, lines
    assert lines[1].startswith("found: ")
    assert lines[2].startswith("fix: ")
    assert all(line.isprintable() and len(line) > 6 for line in lines)


@pytest.mark.parametrize("name", BAD)
def test_hostile_file(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    case = HOSTILE[name]
    path = case.make(tmp_path)
    before = snapshot(tmp_path)
    assert case.error is not None
    with pytest.raises(case.error) as caught:
        load_model(path)
    assert isinstance(caught.value, Error)
    assert_three_lines(caught.value)
    for word in case.words:
        assert word in str(caught.value)
    for pair in ((path, norm_model()), (norm_model(), path)):
        with pytest.raises(case.error) as other:
            verify(*pair)
        assert str(other.value) == str(caught.value)
    assert snapshot(tmp_path) == before
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ODD)
def test_odd_file(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    case = HOSTILE[name]
    path = case.make(tmp_path)
    before = snapshot(tmp_path)
    loaded = load_model(path)
    for word in case.words:
        assert word in " ".join(loaded.notes)
    if not case.words:
        assert loaded.notes == ()
    out = path.with_name("out.onnx")
    save_model(loaded.model, out, source=loaded)
    after = snapshot(tmp_path)
    assert after.pop("out.onnx")
    assert after == before
    assert capfd.readouterr() == ("", "")
    if name not in NOT_RUN:
        np.testing.assert_array_equal(_run(out), _run(path))


def _run(path: Path) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("cut", range(1, 400, 7))
def test_a_model_cut_anywhere_is_an_input_error(cut: int, tmp_path: Path) -> None:
    path = write(tmp_path, norm_model())
    data = path.read_bytes()
    # The opset import is the last field: whatever is cut off the end, it is incomplete.
    with pytest.raises(InputError):
        load_model(data[:-cut])


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
            assert_three_lines(error)
            refused += 1
    assert 200 < refused < 2000


def test_deep_nest_in_memory() -> None:
    proto = norm_model()
    graph = proto.graph
    for _ in range(10_000):
        attribute = graph.node.add(op_type="If").attribute.add(name="then_branch")
        attribute.type = onnx.AttributeProto.GRAPH
        graph = attribute.g
    with pytest.raises(InputError, match="nested too deeply"):
        load_model(proto)


def test_deep_nest_of_onnx_ir() -> None:
    inner = ir.Graph([], [], nodes=[], name="leaf")
    for _ in range(2_000):
        node = ir.Node("", "If", [], [ir.AttrGraph("then_branch", inner)])
        inner = ir.Graph([], [], nodes=[node], opset_imports={"": 18})
    with pytest.raises(InputError, match="nested too deeply"):
        load_model(ir.Model(inner, ir_version=10))


@pytest.mark.parametrize("depth", [32, 33, 34, 1000])
def test_nests_around_the_limit_of_the_parser(depth: int) -> None:
    with pytest.raises(InputError, match=r"nested too deeply|undefined"):
        load_model(nested_bytes(depth))


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


def test_undefined_name_in_a_function(tmp_path: Path) -> None:
    body = [onnx.helper.make_node("Neg", ["nowhere"], ["b"], name="negate")]
    function = onnx.helper.make_function(
        "local", "F", ["a"], ["b"], body, [onnx.helper.make_opsetid("", 18)]
    )
    nodes = [onnx.helper.make_node("F", ["x"], ["y"], domain="local")]
    with pytest.raises(InputError, match="'nowhere'"):
        load_model(write(tmp_path, norm_model(nodes, functions=[function])))


def test_nodes_out_of_order_in_onnx_ir_leave_the_model_alone() -> None:
    model = ir.from_proto(norm_model(norm_nodes()[::-1]))
    loaded = load_model(model)
    assert [node.name for node in model.graph] == ["mul", "div", "sqrt", "add", "reduce", "pow"]
    assert next(node.name for node in loaded.model.graph) == "pow"
    assert "sorted" in loaded.notes[0]


def test_every_kind_of_source_is_taken(tmp_path: Path) -> None:
    path = write(tmp_path, norm_model())
    data = path.read_bytes()
    for source in (path, str(path), data, onnx.load(path), ir.load(path)):
        assert verify(path, source).passed
        assert verify(source, data).passed


def test_external_data_needs_a_folder(tmp_path: Path) -> None:
    path = external_model(tmp_path, data=GAIN)
    assert verify(path, ir.load(path)).passed
    for source in (path.read_bytes(), onnx.load(path, load_external_data=False)):
        with pytest.raises(InputError, match="does not know its folder"):
            verify(path, source)


def test_what_is_no_model_at_all() -> None:
    with pytest.raises(UsageError, match="of a type"):
        verify(7, norm_model())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="0 bytes"):
        verify(norm_model(), b"")


def test_a_file_that_goes_away(tmp_path: Path) -> None:
    path = write(tmp_path, norm_model())
    loaded = load_model(path)
    path.unlink()
    with pytest.raises(InputError, match="cannot be read again"):
        loaded.to_bytes()
