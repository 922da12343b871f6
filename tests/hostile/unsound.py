"""ONNX files whose graph breaks a rule."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from hostile.frames import branch, if_nodes, nested_bytes, norm_model, write
from hostile.registry import changed, hostile


@hostile("without a graph")
def no_graph(folder: Path) -> Path:
    model = onnx.ModelProto(ir_version=10, producer_name="nobody")
    model.opset_import.add(domain="", version=18)
    return write(folder, model)


@changed("opset_import")
def no_opset(model: onnx.ModelProto) -> None:
    del model.opset_import[:]


@changed("version 0", "does not exist")
def opset_zero(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 0


@changed("IR version", "9999")
def future_ir_version(model: onnx.ModelProto) -> None:
    model.ir_version = 9999


@changed("IR version", "ir_version 0")
def no_ir_version(model: onnx.ModelProto) -> None:
    model.ClearField("ir_version")


@changed("cycle")
def cycle(model: onnx.ModelProto) -> None:
    model.graph.node[4].input[1] = "y"


@changed("cycle")
def self_loop(model: onnx.ModelProto) -> None:
    model.graph.node[3].input[0] = "root"


@hostile("cycle")
def cycle_through_a_subgraph(folder: Path) -> Path:
    then = branch([helper.make_node("Neg", ["y"], ["a"], name="inner")], "a")
    other = branch([helper.make_node("Neg", ["x"], ["b"])], "b")
    return write(folder, norm_model(if_nodes(then, other)))


@changed("undefined", "'ghost'", "'add'")
def undefined_input(model: onnx.ModelProto) -> None:
    model.graph.node[2].input[1] = "ghost"


@hostile("undefined", "'ghost'", "'inner'")
def undefined_in_a_subgraph(folder: Path) -> Path:
    then = branch([helper.make_node("Neg", ["ghost"], ["a"], name="inner")], "a")
    other = branch([helper.make_node("Neg", ["x"], ["b"])], "b")
    return write(folder, norm_model(if_nodes(then, other)))


@changed("undefined", "'y'")
def undefined_output(model: onnx.ModelProto) -> None:
    del model.graph.node[-1]


@changed("redeclared", "'root'", "'sqrt'")
def duplicate_value(model: onnx.ModelProto) -> None:
    model.graph.node[2].output[0] = "root"
    model.graph.node[3].input[0] = "root"


@changed("redeclared", "'eps'")
def output_named_as_initializer(model: onnx.ModelProto) -> None:
    model.graph.node[0].output[0] = "eps"


@changed("duplicate", "'eps'")
def duplicate_initializer(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(model.graph.initializer[2])


@changed("duplicate", "'x'")
def duplicate_graph_input(model: onnx.ModelProto) -> None:
    model.graph.input.add().CopyFrom(model.graph.input[0])


@changed("impossible dimensions", "'w'")
def negative_dims(model: onnx.ModelProto) -> None:
    model.graph.initializer[3].dims[:] = [-8]


@changed("does not fit", "'w'")
def absurd_dims(model: onnx.ModelProto) -> None:
    model.graph.initializer[3].dims[:] = [2**62]


@changed("impossible dimensions", "'w'")
def overflowing_dims(model: onnx.ModelProto) -> None:
    model.graph.initializer[3].dims[:] = [2**62, 2**62]


@changed("does not fit", "'w'")
def data_shorter_than_shape(model: onnx.ModelProto) -> None:
    model.graph.initializer[3].dims[:] = [9]


@changed("does not fit", "'pair'")
def attribute_data_shorter_than_shape(model: onnx.ModelProto) -> None:
    tensor = helper.make_tensor("pair", TensorProto.FLOAT, [2], [1.0, 2.0])
    tensor.dims[:] = [3]
    model.graph.node.append(helper.make_node("Constant", [], ["c"], name="c", value=tensor))


@changed("element type", "'w'", "77")
def unknown_element_type(model: onnx.ModelProto) -> None:
    model.graph.initializer[3].data_type = 77


@changed("element type", "'pair'", "77")
def unknown_element_type_in_an_attribute(model: onnx.ModelProto) -> None:
    tensor = helper.make_tensor("pair", TensorProto.FLOAT, [2], [1.0, 2.0])
    tensor.data_type = 77
    model.graph.node.append(helper.make_node("Constant", [], ["c"], name="c", value=tensor))


@changed("sparse", "'thin'")
def sparse_initializer(model: onnx.ModelProto) -> None:
    values = helper.make_tensor("thin", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("at", TensorProto.INT64, [1], [3])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [8]))


@changed("cannot be read", "Map types")
def map_type(model: onnx.ModelProto) -> None:
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, [1])
    info = model.graph.input.add(name="table")
    info.type.CopyFrom(helper.make_map_type_proto(TensorProto.INT64, value))


@hostile("not UTF-8")
def name_that_is_not_utf8(folder: Path) -> Path:
    path = write(folder, norm_model())
    path.write_bytes(path.read_bytes().replace(b"normal", b"n\xff\xfe\xfdal"))
    return path


@changed("no type", "'keepdims'", "'reduce'")
def untyped_attribute(model: onnx.ModelProto) -> None:
    model.graph.node[1].attribute[0].ClearField("type")


@changed("another one than its operator reads", "'keepdims'")
def attribute_of_another_type(model: onnx.ModelProto) -> None:
    model.graph.node[1].attribute[0].CopyFrom(helper.make_attribute("keepdims", 1.0))


@changed("another one than its operator reads", "'epsilon'")
def attribute_of_another_type_of_a_fused_norm(model: onnx.ModelProto) -> None:
    node = model.graph.node[5]
    node.op_type, node.domain = "SkipSimplifiedLayerNormalization", "com.microsoft"
    node.attribute.append(helper.make_attribute("epsilon", "small"))


@changed("element type", "'untyped'")
def external_data_without_a_type(model: onnx.ModelProto) -> None:
    value = TensorProto(name="untyped", dims=[2], data_location=TensorProto.EXTERNAL)
    value.external_data.add(key="location", value="w.bin")
    model.graph.node.append(helper.make_node("Constant", [], ["c"], value=value))


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


@changed("undefined", r"\x1b[2J\u202e")
def control_characters_in_names(model: onnx.ModelProto) -> None:
    model.graph.node[2].input[1] = "\x1b[2J\u202eghost"
