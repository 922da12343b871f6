"""Models that are odd, and sound."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from hostile.frames import GAIN, branch, external_model, if_nodes, norm_model, norm_nodes, write
from hostile.registry import changed, hostile, odd


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


# External data that is missing, too short, or somewhere that no model may reach.


def _placed(name: str, words: tuple[str, ...], location: str = "w.bin", **arguments: Any) -> None:
    """Register a model whose gain is said to be there."""

    def make(folder: Path) -> Path:
        return external_model(folder, location, **arguments)

    make.__name__ = name
    hostile(*words)(make)


_placed("windows_location", ("'w'", "absolute"), r"C:\weights\w.bin", data=GAIN)
_placed("missing_data", ("'w'", "w.bin", "No such file"))
_placed("data_is_a_device", ("'w'", "absolute"), "/dev/zero")
_placed("data_is_a_device_by_a_detour", ("'w'", "leaves the folder"), "../" * 40 + "dev/zero")
_placed("short_data", ("'w'", "w.bin", "too short", "31 bytes"), data=GAIN[:-1])
_placed("offset_past_the_end", ("'w'", "too short"), offset=2**62, data=GAIN)
_placed("negative_offset", ("negative", "'w'"), offset=-4, data=GAIN)
_placed("offset_that_is_no_number", ("'four'",), offset="four", data=GAIN)
_placed("wrong_length", ("'w'", "16 bytes", "32 bytes"), length=16, data=GAIN)
_placed("no_location", ("'w'", "not a file name"), "", data=GAIN)


@hostile("'w'", "absolute")
def absolute_location(folder: Path) -> Path:
    return external_model(folder, str(folder / "w.bin"), data=GAIN)


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


@hostile("'w'", "hard link")
def hard_linked_data(folder: Path) -> Path:
    inner = _inner(folder)
    (inner / "w.bin").hardlink_to(folder / "secret.bin")
    return external_model(inner)


@hostile("'w'", "not an ordinary file")
def data_is_a_folder(folder: Path) -> Path:
    (folder / "w.bin").mkdir()
    return external_model(folder)


@hostile("'w'", "not an ordinary file")
def data_is_a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "w.bin")
    return external_model(folder)


# Files that are no ONNX model at all.


@hostile("No such file", "absent.onnx")
def missing_file(folder: Path) -> Path:
    return folder / "absent.onnx"


@hostile("folder")
def a_folder(folder: Path) -> Path:
    path = folder / "model.onnx"
    path.mkdir()
    return path


@hostile("No such file")
def dangling_symlink(folder: Path) -> Path:
    path = folder / "model.onnx"
    path.symlink_to(folder / "gone.onnx")
    return path


@hostile("device, pipe or socket")
def a_pipe(folder: Path) -> Path:
    path = folder / "model.onnx"
    os.mkfifo(path)
    return path


@hostile("not an ONNX model", "cut short")
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


_HEADER = b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
_stuff("safetensors_file", len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(4))
_stuff("empty_file", b"", "0 bytes")
_stuff("random_bytes", np.random.default_rng(0).bytes(5000))
_stuff("zero_bytes", bytes(4096))
_stuff("json_text", json.dumps({"ir_version": 8}).encode())
_stuff("pickle_file", b"\x80\x02}q\x00." * 9, "no whole protobuf")
_stuff("lfs_pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "LFS")
_stuff("engine_file", b"ftrt" + bytes(range(100)), "engine")


@hostile("not an ONNX model", "checkpoint")
def torch_checkpoint(folder: Path) -> Path:
    path = folder / "model.onnx"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", b"\x80\x02.")
    return path


@hostile("too many", "large weights")
def three_gib_file(folder: Path) -> Path:
    path = folder / "model.onnx"
    with path.open("wb") as file:
        file.truncate(3 << 30)
    return path
