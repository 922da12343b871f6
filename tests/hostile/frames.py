"""The pieces of which test models are made: a sound RMSNorm, frames around it, raw protobuf."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

SHAPE = [2, 3, 8]


def norm_nodes() -> list[onnx.NodeProto]:
    """The usual spelling of an RMSNorm from ``x`` to ``y`` with gain ``w``."""
    return [
        helper.make_node("Pow", ["x", "two"], ["square"], name="pow"),
        helper.make_node("ReduceMean", ["square", "axes"], ["mean"], name="reduce", keepdims=1),
        helper.make_node("Add", ["mean", "eps"], ["stable"], name="add"),
        helper.make_node("Sqrt", ["stable"], ["root"], name="sqrt"),
        helper.make_node("Div", ["x", "root"], ["normal"], name="div"),
        helper.make_node("Mul", ["normal", "w"], ["y"], name="mul"),
    ]


def constants(*, gain: bool = True) -> list[onnx.TensorProto]:
    """Initializers for ``norm_nodes``."""
    tensors = [
        onnx.numpy_helper.from_array(np.float32(2), "two"),
        onnx.numpy_helper.from_array(np.array([-1], np.int64), "axes"),
        onnx.numpy_helper.from_array(np.float32(1e-5), "eps"),
    ]
    if gain:
        tensors.append(onnx.numpy_helper.from_array(np.linspace(0.5, 2, 8, dtype="f4"), "w"))
    return tensors


def norm_model(
    nodes: list[onnx.NodeProto] | None = None,
    initializers: list[onnx.TensorProto] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    """A sound model of one RMSNorm, or the same frame around other nodes."""
    graph = helper.make_graph(
        norm_nodes() if nodes is None else nodes,
        "norm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, SHAPE)],
        constants() if initializers is None else initializers,
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions or [])


def write(folder: Path, model: onnx.ModelProto, name: str = "model.onnx") -> Path:
    """Serialize without any check."""
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return path


def external_gain(location: str, offset: int | str | None, length: int | str | None) -> TensorProto:
    """The gain ``w`` of 8 floats as an external tensor."""
    tensor = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[8], data_location=TensorProto.EXTERNAL
    )
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    return tensor


def external_model(
    folder: Path,
    location: str = "w.bin",
    offset: int | str | None = 0,
    length: int | str | None = 32,
    *,
    data: bytes | None = None,
    name: str = "model.onnx",
) -> Path:
    """A model whose gain is external; ``data`` is written to ``w.bin`` unless it is None."""
    if data is not None:
        (folder / "w.bin").write_bytes(data)
    gain = external_gain(location, offset, length)
    return write(folder, norm_model(initializers=[*constants(gain=False), gain]), name)


GAIN = np.linspace(0.5, 2, 8, dtype="<f4").tobytes()


def branch(nodes: list[onnx.NodeProto], output: str) -> onnx.GraphProto:
    """A subgraph without inputs, of one output."""
    info = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    return helper.make_graph(nodes, "branch", [], [info])


def if_nodes(then: onnx.GraphProto, otherwise: onnx.GraphProto) -> list[onnx.NodeProto]:
    """An If on the sign of the sum of ``x``, with its condition; it makes ``y``."""
    return [
        helper.make_node("ReduceSum", ["x"], ["total"], name="total", keepdims=0),
        helper.make_node("Cast", ["total"], ["flag"], name="flag", to=TensorProto.BOOL),
        helper.make_node("If", ["flag"], ["y"], name="if", then_branch=then, else_branch=otherwise),
    ]


def wire(field: int, payload: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return varint(field << 3 | 2) + varint(len(payload)) + payload


def varint(value: int) -> bytes:
    """A protobuf number."""
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def nested_bytes(depth: int) -> bytes:
    """A ModelProto of If in If in If, ``depth`` times; by hand, as protobuf refuses to write it."""
    # Built from the inside out, but joined once: the headers only need the inner length.
    before: list[bytes] = []
    after: list[bytes] = []
    size = 0
    for _ in range(depth):
        graph = varint(6 << 3 | 2) + varint(size)
        tail = varint(20 << 3) + varint(5)
        attribute = wire(1, b"then_branch") + graph
        size += len(attribute) + len(tail)
        node = wire(4, b"If") + wire(1, b"c") + varint(5 << 3 | 2) + varint(size)
        size += len(node)
        holder = varint(1 << 3 | 2) + varint(size)
        size += len(holder)
        before += [attribute, node, holder]
        after.append(tail)
    head = varint(1 << 3) + varint(8) + wire(8, varint(2 << 3) + varint(18))
    return head + varint(7 << 3 | 2) + varint(size) + b"".join(reversed(before)) + b"".join(after)
