"""ONNX files whose graph breaks a rule."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from hostile.frames import (
    branch,
    constants,
    if_nodes,
    nested_bytes,
    norm_model,
    norm_nodes,
    write,
)
from hostile.registry import hostile


@hostile("without a graph")
def no_graph(folder: Path) -> Path:
    model = onnx.ModelProto(ir_version=10, producer_name="nobody")
    model.opset_import.add(domain="", version=18)
    return write(folder, model)


@hostile("opset_import")
def no_opset(folder: Path) -> Path:
    model = norm_model()
    del model.opset_import[:]
    return write(folder, model)


@hostile("version 0", "does not exist")
def opset_zero(folder: Path) -> Path:
    model = norm_model()
    model.opset_import[0].version = 0
    return write(folder, model)


@hostile("IR version", "9999")
def future_ir_version(folder: Path) -> Path:
    model = norm_model()
    model.ir_version = 9999
    return write(folder, model)


@hostile("IR version", "ir_version 0")
def no_ir_version(folder: Path) -> Path:
    model = norm_model()
    model.ClearField("ir_version")
    return write(folder, model)


@hostile("cycle")
def cycle(folder: Path) -> Path:
    nodes = norm_nodes()
    nodes[4].input[1] = "y"
    return write(folder, norm_model(nodes))


@hostile("cycle")
def self_loop(folder: Path) -> Path:
    nodes = norm_nodes()
    nodes[3].input[0] = "root"
    return write(folder, norm_model(nodes))


@hostile("cycle")
def cycle_through_a_subgraph(folder: Path) -> Path:
    then = branch([helper.make_node("Neg", ["y"], ["a"], name="inner")], "a")
    other = branch([helper.make_node("Neg", ["x"], ["b"])], "b")
    return write(folder, norm_model(if_nodes(then, other)))


@hostile("undefined", "'ghost'", "'add'")
def undefined_input(folder: Path) -> Path:
    nodes = norm_nodes()
    nodes[2].input[1] = "ghost"
    return write(folder, norm_model(nodes))


@hostile("undefined", "'ghost'", "'inner'")
def undefined_in_a_subgraph(folder: Path) -> Path:
    then = branch([helper.make_node("Neg", ["ghost"], ["a"], name="inner")], "a")
    other = branch([helper.make_node("Neg", ["x"], ["b"])], "b")
    return write(folder, norm_model(if_nodes(then, other)))


@hostile("undefined", "'y'")
def undefined_output(folder: Path) -> Path:
    return write(folder, norm_model(norm_nodes()[:-1]))


@hostile("redeclared", "'root'", "'sqrt'")
def duplicate_value(folder: Path) -> Path:
    nodes = norm_nodes()
    nodes[2].output[0] = "root"
    nodes[3].input[0] = "root"
    return write(folder, norm_model(nodes))


@hostile("redeclared", "'eps'")
def output_named_as_initializer(folder: Path) -> Path:
    nodes = norm_nodes()
    nodes[0].output[0] = "eps"
    return write(folder, norm_model(nodes))


@hostile("duplicate", "'eps'")
def duplicate_initializer(folder: Path) -> Path:
    return write(folder, norm_model(initializers=[*constants(), constants()[2]]))


@hostile("duplicate", "'x'")
def duplicate_graph_input(folder: Path) -> Path:
    model = norm_model()
    model.graph.input.add().CopyFrom(model.graph.input[0])
    return write(folder, model)


@hostile("impossible dimensions", "'w'")
def negative_dims(folder: Path) -> Path:
    model = norm_model()
    model.graph.initializer[3].dims[:] = [-8]
    return write(folder, model)


@hostile("does not fit", "'w'")
def absurd_dims(folder: Path) -> Path:
    model = norm_model()
    model.graph.initializer[3].dims[:] = [2**62]
    return write(folder, model)


@hostile("impossible dimensions", "'w'")
def overflowing_dims(folder: Path) -> Path:
    model = norm_model()
    model.graph.initializer[3].dims[:] = [2**62, 2**62]
    return write(folder, model)


@hostile("does not fit", "'w'")
def data_shorter_than_shape(folder: Path) -> Path:
    model = norm_model()
    model.graph.initializer[3].dims[:] = [9]
    return write(folder, model)


@hostile("does not fit", "'pair'")
def attribute_data_shorter_than_shape(folder: Path) -> Path:
    tensor = helper.make_tensor("pair", TensorProto.FLOAT, [2], [1.0, 2.0])
    tensor.dims[:] = [3]
    nodes = [*norm_nodes(), helper.make_node("Constant", [], ["c"], name="c", value=tensor)]
    return write(folder, norm_model(nodes))


@hostile("element type", "'w'", "77")
def unknown_element_type(folder: Path) -> Path:
    model = norm_model()
    model.graph.initializer[3].data_type = 77
    return write(folder, model)


@hostile("element type", "'pair'", "77")
def unknown_element_type_in_an_attribute(folder: Path) -> Path:
    tensor = helper.make_tensor("pair", TensorProto.FLOAT, [2], [1.0, 2.0])
    tensor.data_type = 77
    nodes = [*norm_nodes(), helper.make_node("Constant", [], ["c"], name="c", value=tensor)]
    return write(folder, norm_model(nodes))


@hostile("sparse", "'thin'")
def sparse_initializer(folder: Path) -> Path:
    model = norm_model()
    values = helper.make_tensor("thin", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("at", TensorProto.INT64, [1], [3])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [8]))
    return write(folder, model)


@hostile("cannot be read", "Map types")
def map_type(folder: Path) -> Path:
    model = norm_model()
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, [1])
    info = model.graph.input.add(name="table")
    info.type.CopyFrom(helper.make_map_type_proto(TensorProto.INT64, value))
    return write(folder, model)


@hostile("not UTF-8")
def name_that_is_not_utf8(folder: Path) -> Path:
    path = write(folder, norm_model())
    path.write_bytes(path.read_bytes().replace(b"normal", b"n\xff\xfe\xfdal"))
    return path


@hostile("no type", "'keepdims'", "'reduce'")
def untyped_attribute(folder: Path) -> Path:
    nodes = norm_nodes()
    nodes[1].attribute[0].ClearField("type")
    return write(folder, norm_model(nodes))


@hostile("nested too deeply")
def deep_nest(folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(nested_bytes(10_000))
    return path


def _function(name: str, calls: str) -> onnx.FunctionProto:
    body = [helper.make_node(calls, ["a"], ["b"], domain="local", name=f"call_{calls}")]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, ["a"], ["b"], body, opsets)


@hostile("circle", "local::Ping", "local::Pong")
def recursive_functions(folder: Path) -> Path:
    nodes = [helper.make_node("Ping", ["x"], ["y"], domain="local")]
    functions = [_function("Ping", "Pong"), _function("Pong", "Ping")]
    return write(folder, norm_model(nodes, functions=functions))


@hostile("undefined", "'b'", "'Hole'")
def function_without_its_output(folder: Path) -> Path:
    hole = helper.make_function("local", "Hole", ["a"], ["b"], [], [helper.make_opsetid("", 18)])
    nodes = [helper.make_node("Hole", ["x"], ["y"], domain="local")]
    return write(folder, norm_model(nodes, functions=[hole]))


@hostile("undefined", r"\x1b[2J\u202e")
def control_characters_in_names(folder: Path) -> Path:
    nodes = norm_nodes()
    nodes[2].input[1] = "\x1b[2J\u202eghost"
    return write(folder, norm_model(nodes))
