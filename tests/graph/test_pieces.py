"""Weights beside protobuf: what is read and written is what protobuf reads and writes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from google.protobuf.message import DecodeError
from onnx.helper import make_tensor
from onnx.numpy_helper import from_array

from rmsnorm_export.graph import pieces
from rmsnorm_export.graph.load import load_model, serialize
from rmsnorm_export.graph.save import save_model
from rmsnorm_export.op.dtypes import Array

_SMALL = 8
"""Bytes that are taken out of models as small as these."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "LEAST", _SMALL)


def _model(*tensors: onnx.TensorProto) -> onnx.ModelProto:
    text = '<ir_version: 10, opset_import: ["" : 18]> main (float[B, 4] x) => (float[B, 4] y)'
    model = onnx.parser.parse_model(text + "{ y = Mul (x, w) }")
    model.graph.initializer.extend(tensors)
    return model


def _weight(name: str, *shape: int) -> onnx.TensorProto:
    return from_array(np.random.default_rng(len(name)).normal(size=shape).astype("f4"), name)


def _parsed(content: bytes) -> tuple[bytes | None, int]:
    """Return what a file holds, weights in their places, and how many weights were taken out."""
    try:
        proto, tensors = pieces.parse(content)
    except DecodeError:
        return None, 0
    for one in proto.graph.initializer:
        if one.name in tensors:
            one.raw_data = tensors[one.name].tobytes()
    return proto.SerializeToString(deterministic=True), len(tensors)


def _by_protobuf(content: bytes) -> bytes | None:
    try:
        proto = onnx.ModelProto.FromString(content)
    except DecodeError:
        return None
    names = [one.name for one in proto.graph.initializer]
    return proto.SerializeToString(deterministic=True) if len({*names}) == len(names) else b"twice"


def test_hostile_bytes_are_what_protobuf_makes_of_them() -> None:
    content, draw = (
        _model(_weight("w", 4), _weight("other", 2, 3)).SerializeToString(),
        random.Random(0),
    )
    cases = [content[:end] for end in range(len(content) + 1)]
    for _ in range(4000):
        flipped = bytearray(content)
        for _ in range(draw.choice([1, 1, 2, 3])):
            flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        start, end = sorted(draw.randrange(len(content)) for _ in range(2))
        cases += [bytes(flipped), content[:start] + content[end:], content[:end] + content[start:]]
    taken = refused = 0
    for case in cases:
        expected = _by_protobuf(case)
        if expected == b"twice":  # is refused later
            continue
        computed, count = _parsed(case)
        assert computed == expected, case
        taken, refused = taken + count, refused + (expected is None)
    assert min(taken, refused) > 1000


def _here(tensor: onnx.TensorProto) -> None:
    """As onnx.save writes what had external data."""
    tensor.data_location = onnx.TensorProto.DEFAULT


def _both(tensor: onnx.TensorProto) -> None:
    """Data in raw bytes and as numbers."""
    tensor.float_data.extend([1.0] * 4)


def _longer(tensor: onnx.TensorProto) -> None:
    tensor.raw_data += b"1234"


def _negative(tensor: onnx.TensorProto) -> None:
    tensor.dims[0] = -1


def _elsewhere(tensor: onnx.TensorProto) -> None:
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="other.bin")


def _in_numbers(tensor: onnx.TensorProto) -> None:
    half = np.arange(4, dtype=np.float16).view(np.uint16).tolist()
    tensor.CopyFrom(onnx.TensorProto(name="w", dims=[4], data_type=10, int32_data=half))


def _nibbles(tensor: onnx.TensorProto) -> None:
    tensor.CopyFrom(make_tensor("w", 22, [40], bytes(range(20)), raw=True))


CHANGES = (_both, _longer, _negative, _elsewhere, _in_numbers, _nibbles)
_AGAIN = onnx.ModelProto(graph=onnx.GraphProto(initializer=[_weight("more", 8)]))
"""A graph in a second field, which protobuf merges."""
_GROUP = bytes([0xCB, 0x06, 0xCC, 0x06])
"""An unknown field of a kind that protobuf has given up."""


@pytest.mark.parametrize(
    ("change", "more", "count"),
    [(lambda _: None, _AGAIN.SerializeToString(), 2), (lambda _: None, _GROUP, 0), (_here, b"", 1),
     *((change, b"", 0) for change in CHANGES)],
)  # fmt: skip
def test_odd_files_are_read_as_by_protobuf(
    change: Callable[[onnx.TensorProto], None], more: bytes, count: int
) -> None:
    model = _model(_weight("w", 4))
    change(model.graph.initializer[0])
    content = model.SerializeToString() + more
    expected = _by_protobuf(content)
    assert expected is not None
    assert _parsed(content) == (expected, count)


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "i8", "?", "c8", ml_dtypes.bfloat16])
def test_weights_are_read_and_written_as_by_protobuf(tmp_path: Path, dtype: object) -> None:
    array: Array = np.arange(24).reshape(4, 6).astype(np.dtype(dtype))  # type: ignore[call-overload]
    proto = _model(_weight("w", 4), ir.serde.serialize_tensor(ir.Tensor(array, name="other")))
    proto.graph.initializer[1].doc_string = "unused"
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    model = load_model(path).model
    read = model.graph.initializers["other"].const_value
    assert isinstance(read, ir.Tensor)
    assert read.doc_string == "unused"
    assert read.numpy().tobytes() == array.tobytes()
    assert not read.numpy().flags.writeable
    by_protobuf = ir.serde.serialize_model(model).SerializeToString()
    assert serialize(model) == by_protobuf
    saved = save_model(model, path, force=True)  # in place of the file that it was read from
    assert path.read_bytes() == by_protobuf
    assert saved.bytes == len(by_protobuf)
