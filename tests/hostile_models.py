"""Hostile and odd model files, and a very large one, made by functions; none is stored.

``HOSTILE`` maps a name to a ``Case``: a function that writes the files into an empty folder and
returns the path to open, the error class that must come of it (None: the model is merely odd and
must be read), and words that the message or the notes must contain.
"""

from __future__ import annotations

import dataclasses
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from rmsnorm_export.errors import InputError

Maker = Callable[[Path], Path]
SHAPE = [2, 3, 8]


@dataclasses.dataclass(frozen=True)
class Case:
    """One hostile or odd input; see the module."""

    make: Maker
    error: type[Exception] | None
    words: tuple[str, ...]


HOSTILE: dict[str, Case] = {}


def hostile(*words: str, error: type[Exception] | None = InputError) -> Callable[[Maker], Maker]:
    """Register a maker under its own name."""

    def register(make: Maker) -> Maker:
        HOSTILE[make.__name__] = Case(make, error, words)
        return make

    return register


def odd(*words: str) -> Callable[[Maker], Maker]:
    """Register a maker of a model that is odd but must be read."""
    return hostile(*words, error=None)


# ---------------------------------------------------------------- building blocks


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


# ---------------------------------------------------------------- not a model file


@hostile("does not exist", "absent.onnx")
def missing_file(folder: Path) -> Path:
    return folder / "absent.onnx"


@hostile("folder")
def a_folder(folder: Path) -> Path:
    path = folder / "model.onnx"
    path.mkdir()
    return path


@hostile("does not exist")
def dangling_symlink(folder: Path) -> Path:
    path = folder / "model.onnx"
    path.symlink_to(folder / "gone.onnx")
    return path


@hostile("not an ordinary file")
def a_pipe(folder: Path) -> Path:
    path = folder / "model.onnx"
    os.mkfifo(path)
    return path


@hostile("empty", "0 bytes")
def empty_file(folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(b"")
    return path


@hostile("not an ONNX model", "ends early", "bytes short")
def truncated_file(folder: Path) -> Path:
    path = write(folder, norm_model())
    path.write_bytes(path.read_bytes()[:-40])
    return path


def _stuff(name: str, data: bytes, *words: str) -> None:
    def make(folder: Path) -> Path:
        path = folder / "model.onnx"
        path.write_bytes(data)
        return path

    make.__name__ = name
    hostile("not an ONNX model", *words)(make)


_stuff("random_bytes", np.random.default_rng(0).bytes(5000))
_stuff("zero_bytes", bytes(4096), "zero bytes")
_stuff("json_text", json.dumps({"ir_version": 8}).encode(), "JSON")
_stuff("html_page", b"<!DOCTYPE html><html><body>404</body></html>", "HTML")
_stuff("text_protobuf", b'ir_version: 8\ngraph {\n  name: "g"\n}\n', "text form")
_stuff("onnx_text", b'<\n  ir_version: 8,\n  opset_import: ["" : 18]\n>\ng (f x) => (f y) {}', "text")
_stuff("plain_text", b"hello, this is not a model\n", "plain text")
_stuff("pickle_file", b"\x80\x02}q\x00." * 9, "pickle")
_stuff("gguf_file", b"GGUF" + bytes(range(64)), "GGUF")
_stuff("gzip_file", b"\x1f\x8b\x08\x00" + bytes(range(64)), "gzip")
_stuff("ort_file", b"\x1c\x00\x00\x00ORTM" + bytes(64), "ONNX Runtime")
_stuff("lfs_pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "LFS")
_stuff("engine_file", b"ftrt" + bytes(range(100)), "TensorRT")


@hostile("not an ONNX model", "zip", ".pt")
def torch_checkpoint(folder: Path) -> Path:
    path = folder / "model.onnx"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", b"\x80\x02.")
    return path


@hostile("not an ONNX model", "safetensors")
def safetensors_file(folder: Path) -> Path:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path = folder / "model.onnx"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    return path


@hostile("larger than any", "2 GiB")
def three_gib_file(folder: Path) -> Path:
    path = folder / "model.onnx"
    with path.open("wb") as file:
        file.truncate(3 << 30)
    return path


# ---------------------------------------------------------------- not a sound model


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


@hostile("cycle", "'div'", "'mul'")
def cycle(folder: Path) -> Path:
    nodes = norm_nodes()
    nodes[4].input[1] = "y"
    return write(folder, norm_model(nodes))


@hostile("cycle", "'sqrt'")
def self_loop(folder: Path) -> Path:
    nodes = norm_nodes()
    nodes[3].input[0] = "root"
    return write(folder, norm_model(nodes))


def _branch(nodes: list[onnx.NodeProto], output: str) -> onnx.GraphProto:
    info = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    return helper.make_graph(nodes, "branch", [], [info])


def _if(then: onnx.GraphProto, otherwise: onnx.GraphProto) -> list[onnx.NodeProto]:
    return [
        helper.make_node("ReduceSum", ["x"], ["total"], name="total", keepdims=0),
        helper.make_node("Cast", ["total"], ["flag"], name="flag", to=TensorProto.BOOL),
        helper.make_node(
            "If", ["flag"], ["y"], name="if", then_branch=then, else_branch=otherwise
        ),
    ]


@hostile("cycle", "'if'")
def cycle_through_a_subgraph(folder: Path) -> Path:
    then = _branch([helper.make_node("Neg", ["y"], ["a"], name="inner")], "a")
    other = _branch([helper.make_node("Neg", ["x"], ["b"])], "b")
    return write(folder, norm_model(_if(then, other)))


@hostile("undefined", "'ghost'", "'add'")
def undefined_input(folder: Path) -> Path:
    nodes = norm_nodes()
    nodes[2].input[1] = "ghost"
    return write(folder, norm_model(nodes))


@hostile("undefined", "'ghost'", "'inner'")
def undefined_in_a_subgraph(folder: Path) -> Path:
    then = _branch([helper.make_node("Neg", ["ghost"], ["a"], name="inner")], "a")
    other = _branch([helper.make_node("Neg", ["x"], ["b"])], "b")
    return write(folder, norm_model(_if(then, other)))


@hostile("undefined", "'y'")
def undefined_output(folder: Path) -> Path:
    return write(folder, norm_model(norm_nodes()[:-1]))


@hostile("duplicate", "'root'", "'add'")
def duplicate_value(folder: Path) -> Path:
    nodes = norm_nodes()
    nodes[2].output[0] = "root"
    nodes[3].input[0] = "root"
    return write(folder, norm_model(nodes))


@hostile("duplicate", "'eps'")
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


def _wire(field: int, payload: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return _varint(field << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
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
        graph = _varint(6 << 3 | 2) + _varint(size)
        tail = _varint(20 << 3) + _varint(5)
        attribute = _wire(1, b"then_branch") + graph
        size += len(attribute) + len(tail)
        node = _wire(4, b"If") + _wire(1, b"c") + _varint(5 << 3 | 2) + _varint(size)
        size += len(node)
        holder = _varint(1 << 3 | 2) + _varint(size)
        size += len(holder)
        before += [attribute, node, holder]
        after.append(tail)
    head = _varint(1 << 3) + _varint(8) + _wire(8, _varint(2 << 3) + _varint(18))
    return head + _varint(7 << 3 | 2) + _varint(size) + b"".join(reversed(before)) + b"".join(after)


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


# ---------------------------------------------------------------- external data


@hostile("'w'", "absolute")
def absolute_location(folder: Path) -> Path:
    return external_model(folder, str(folder / "w.bin"), data=GAIN)


@hostile("'w'", "absolute")
def windows_location(folder: Path) -> Path:
    return external_model(folder, r"C:\weights\w.bin", data=GAIN)


def _inner(folder: Path) -> Path:
    """A folder for the model, with a file outside of it that no model may reach."""
    (folder / "secret.bin").write_bytes(GAIN)
    inner = folder / "inner"
    inner.mkdir()
    return inner


@hostile("'w'", "../secret.bin", "leaves the folder")
def parent_location(folder: Path) -> Path:
    return external_model(_inner(folder), "../secret.bin")


@hostile("'w'", "leaves the folder")
def hidden_parent_location(folder: Path) -> Path:
    inner = _inner(folder)
    (inner / "sub").mkdir()
    return external_model(inner, "sub/../../secret.bin")


@hostile("'w'", "symbolic link", "secret.bin")
def symlinked_data(folder: Path) -> Path:
    inner = _inner(folder)
    (inner / "w.bin").symlink_to(folder / "secret.bin")
    return external_model(inner)


@hostile("'w'", "symbolic link")
def symlinked_folder(folder: Path) -> Path:
    inner = _inner(folder)
    (inner / "sub").symlink_to(folder)
    return external_model(inner, "sub/secret.bin")


@hostile("'w'", "w.bin", "does not exist")
def missing_data(folder: Path) -> Path:
    return external_model(folder)


@hostile("'w'", "not an ordinary file")
def data_is_a_folder(folder: Path) -> Path:
    (folder / "w.bin").mkdir()
    return external_model(folder)


@hostile("'w'", "w.bin", "too short", "31 bytes")
def short_data(folder: Path) -> Path:
    return external_model(folder, data=GAIN[:-1])


@hostile("'w'", "too short")
def offset_past_the_end(folder: Path) -> Path:
    return external_model(folder, offset=2**62, data=GAIN)


@hostile("negative", "'w'")
def negative_offset(folder: Path) -> Path:
    return external_model(folder, offset=-4, data=GAIN)


@hostile("offset", "'four'")
def offset_that_is_no_number(folder: Path) -> Path:
    return external_model(folder, offset="four", data=GAIN)


@hostile("'w'", "16 bytes", "32 bytes")
def wrong_length(folder: Path) -> Path:
    return external_model(folder, length=16, data=GAIN)


@hostile("'w'", "not a file name")
def no_location(folder: Path) -> Path:
    return external_model(folder, "", data=GAIN)


# ---------------------------------------------------------------- odd, but models


@odd()
def sound(folder: Path) -> Path:
    return write(folder, norm_model())


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


@odd("hard links")
def hard_linked_data(folder: Path) -> Path:
    path = external_model(folder, data=GAIN)
    os.link(folder / "w.bin", folder / "other.bin")
    return path


@odd("sorted")
def nodes_out_of_order(folder: Path) -> Path:
    return write(folder, norm_model(norm_nodes()[::-1]))


@odd()
def unknown_domain(folder: Path) -> Path:
    model = norm_model([*norm_nodes(), helper.make_node("Magic", ["y"], ["z"], domain="far.away")])
    model.opset_import.add(domain="far.away", version=7)
    return write(folder, model)


@odd("opset 11")
def old_opset(folder: Path) -> Path:
    nodes = norm_nodes()
    nodes[1] = helper.make_node("ReduceMean", ["square"], ["mean"], name="reduce", axes=[-1])
    model = norm_model(nodes)
    model.opset_import[0].version = 11
    return write(folder, model)


@odd("opset 999")
def future_opset(folder: Path) -> Path:
    model = norm_model()
    model.opset_import[0].version = 999
    return write(folder, model)


@odd("negative dimensions")
def negative_value_dims(folder: Path) -> Path:
    model = norm_model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    return write(folder, model)


@odd()
def huge_value_dims(folder: Path) -> Path:
    model = norm_model()
    model.graph.value_info.append(
        helper.make_tensor_value_info("square", TensorProto.FLOAT, [2**62, 2**62, 8])
    )
    return write(folder, model)


@odd()
def strange_names(folder: Path) -> Path:
    model = norm_model()
    for node in model.graph.node:
        node.name = "\x1b[31m\u202e" + node.name + "\n" + "\u00e9" * 3000
    return write(folder, model)


@odd()
def big_attribute(folder: Path) -> Path:
    nodes = [*norm_nodes(), helper.make_node("Constant", [], ["c"], value_ints=range(1_000_000))]
    return write(folder, norm_model(nodes))


@odd()
def deepest_nest(folder: Path) -> Path:
    then = _branch([helper.make_node("Neg", ["x"], ["v31"])], "v31")
    for level in range(30, 0, -1):
        other = _branch([helper.make_node("Abs", ["x"], [f"e{level}"])], f"e{level}")
        node = helper.make_node(
            "If", ["flag"], [f"v{level}"], then_branch=then, else_branch=other
        )
        then = _branch([node], f"v{level}")
    other = _branch([helper.make_node("Neg", ["x"], ["b"])], "b")
    return write(folder, norm_model(_if(then, other)))


@odd()
def no_nodes(folder: Path) -> Path:
    model = norm_model([])
    del model.graph.output[:]
    return write(folder, model)
