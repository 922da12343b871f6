"""Models that are odd, and sound."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from hostile.frames import GAIN, branch, external_model, if_nodes, norm_model, norm_nodes, write
from hostile.registry import changed, odd


@odd("'checksum'")
def external_checksum(folder: Path) -> Path:
    path = external_model(folder, data=GAIN)
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[3].external_data.add(key="checksum", value="0" * 40)
    return write(folder, model)


@changed(error=None)
def sound(model: onnx.ModelProto) -> None:
    """Left as it is."""


@odd()
def external_sound(folder: Path) -> Path:
    return external_model(folder, data=GAIN)


@odd()
def external_without_offset(folder: Path) -> Path:
    return external_model(folder, offset=None, length=None, data=GAIN)


@odd()
def symlink_that_stays_inside(folder: Path) -> Path:
    (folder / "real.bin").write_bytes(GAIN)
    (folder / "w.bin").symlink_to("real.bin")
    return external_model(folder)


@odd("sorted")
def nodes_out_of_order(folder: Path) -> Path:
    return write(folder, norm_model(norm_nodes()[::-1]))


@changed(error=None)
def unknown_domain(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Magic", ["y"], ["z"], domain="far.away"))
    model.opset_import.add(domain="far.away", version=7)


@changed("opset 11", error=None)
def old_opset(model: onnx.ModelProto) -> None:
    mean = helper.make_node("ReduceMean", ["square"], ["mean"], name="reduce", axes=[-1])
    model.graph.node[1].CopyFrom(mean)
    model.opset_import[0].version = 11


@changed("opset 999", error=None)
def future_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 999


@changed("negative dimensions", error=None)
def negative_value_dims(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1


@changed(error=None)
def huge_value_dims(model: onnx.ModelProto) -> None:
    huge = helper.make_tensor_value_info("square", TensorProto.FLOAT, [2**62, 2**62, 8])
    model.graph.value_info.append(huge)


@changed(error=None)
def strange_names(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.name = "\x1b[31m\u202e" + node.name + "\n" + "\u00e9" * 3000


@changed(error=None)
def big_attribute(model: onnx.ModelProto) -> None:
    big = helper.make_node("Constant", [], ["c"], value_ints=range(1_000_000))
    model.graph.node.append(big)


@odd()
def deepest_nest(folder: Path) -> Path:
    then = branch([helper.make_node("Neg", ["x"], ["v31"])], "v31")
    for level in range(30, 0, -1):
        other = branch([helper.make_node("Abs", ["x"], [f"e{level}"])], f"e{level}")
        node = helper.make_node("If", ["flag"], [f"v{level}"], then_branch=then, else_branch=other)
        then = branch([node], f"v{level}")
    other = branch([helper.make_node("Neg", ["x"], ["b"])], "b")
    return write(folder, norm_model(if_nodes(then, other)))


@changed(error=None)
def no_nodes(model: onnx.ModelProto) -> None:
    del model.graph.node[:]
    del model.graph.output[:]
