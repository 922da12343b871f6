"""Files that are no ONNX model at all."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import numpy as np

from hostile.frames import norm_model, write
from hostile.registry import hostile


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
