"""The streamed encoding of a model: byte for byte that of protobuf, with one tensor in memory."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph import encode as module
from rmsnorm_export.graph.encode import encode
from rmsnorm_export.graph.tensors import tensor_slots

SIZES = (0, 1, 23, 24, 25, 127, 128, 129, 16383, 16384, 16385)
"""Bytes around those of a mark, and where the length of a length changes."""


def streamed(model: ir.Model) -> bytes:
    stream = io.BytesIO()
    encoding = encode(model, list(tensor_slots(model)), [])
    encoding.write(stream)
    assert encoding.size == len(stream.getvalue())
    return stream.getvalue()


def whole(model: ir.Model) -> bytes:
    data: bytes = ir.serde.serialize_model(model).SerializeToString()
    return data


@pytest.fixture(params=[1, 100, 1024])
def threshold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """From which size on tensors are streamed."""
    monkeypatch.setattr(module, "LARGE_BYTES", request.param)
    return int(request.param)


def initializer(tensor: ir.TensorProtocol, name: str) -> ir.Value:
    value = ir.Value(name=name, const_value=tensor)
    value.type = ir.TensorType(ir.DataType(tensor.dtype))
    value.shape = tensor.shape
    return value


def graph_of(
    tensors: list[ir.TensorProtocol], nodes: list[ir.Node] | None = None, name: str = "g"
) -> ir.Graph:
    values = [initializer(tensor, f"{name}_{i}") for i, tensor in enumerate(tensors)]
    made = ir.Graph([], [], nodes=nodes or [], initializers=values, name=name)
    made.opset_imports[""] = 20
    return made


def model_of(
    tensors: list[ir.TensorProtocol],
    nodes: list[ir.Node] | None = None,
    functions: list[ir.Function] | None = None,
) -> ir.Model:
    made = ir.Model(graph_of(tensors, nodes), ir_version=10, functions=functions or [])
    made.metadata_props["a"] = "b"
    return made


def zeros(count: int, dtype: type = np.uint8) -> ir.Tensor:
    return ir.Tensor(np.arange(count).astype(dtype), doc_string="about it")


@pytest.mark.usefixtures("threshold")
def test_every_type_and_shape() -> None:
    kinds = (np.float32, np.float16, np.float64, np.int64, np.bool_, np.complex64)
    tensors = [zeros(600, kind) for kind in kinds]
    for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4, ml_dtypes.uint4):
        tensors.append(ir.Tensor(np.ones(601, np.float32).astype(kind)))
    tensors.append(ir.Tensor(np.ones((3, 7), ml_dtypes.float4_e2m1fn)))
    tensors.append(ir.Tensor(np.array(2.5, np.float32)))
    tensors.append(ir.Tensor(np.zeros((4, 0, 3), np.float32)))
    tensors.append(ir.Tensor(np.arange(800, dtype=np.float32).reshape(40, 20).T))
    tensors.append(ir.StringTensor([b"a" * 2000, b"", b"b"], shape=ir.Shape([3])))
    model = model_of(tensors)
    assert streamed(model) == whole(model)
    back = onnx.load_model_from_string(streamed(model))
    for proto, tensor in zip(back.graph.initializer, tensors, strict=True):
        np.testing.assert_array_equal(ir.serde.deserialize_tensor(proto).numpy(), tensor.numpy())


@pytest.mark.usefixtures("threshold")
def test_attributes_subgraphs_and_functions() -> None:
    def constant(tensor: ir.Tensor) -> ir.Node:
        return ir.node("Constant", [], {"value": tensor})

    inner = graph_of([zeros(3000)], [constant(zeros(40_000)), constant(zeros(0))], "inner")
    outer = graph_of([zeros(129)], [ir.node("If", [], {"then_branch": inner})], "outer")
    body = graph_of([], [constant(zeros(2000, np.float32))], "body")
    function = ir.Function("d", "f", "", graph=body, attributes=[])
    some = ir.AttrTensors("some", [zeros(1500), zeros(2), zeros(70_000)])
    nodes = [
        constant(zeros(5)),
        ir.node("If", [], {"then_branch": outer, "else_branch": graph_of([], [], "e")}),
        ir.node("Many", [], domain="x"),
        constant(zeros(1025)),
    ]
    nodes[2].attributes["some"] = some
    model = model_of([zeros(5000), zeros(1)], nodes, [function])
    assert streamed(model) == whole(model)


def _with_unknown_field(proto: TensorProto) -> TensorProto:
    proto.MergeFromString(b"\xfa\x3f\x03abc")  # field 1023
    return proto


def _segment(proto: TensorProto) -> TensorProto:
    proto.segment.begin = 0
    return proto


def _metadata(proto: TensorProto) -> TensorProto:
    proto.metadata_props.add(key="k", value="v")
    proto.doc_string = "text"
    proto.data_location = TensorProto.DEFAULT
    return proto


@pytest.mark.usefixtures("threshold")
@pytest.mark.parametrize("change", [lambda p: p, _metadata, _segment, _with_unknown_field])
@pytest.mark.parametrize("raw", [True, False])
def test_tensors_that_came_from_a_file(
    change: Callable[[TensorProto], TensorProto], raw: bool
) -> None:
    values = np.arange(900, dtype=np.float32)
    if raw:
        proto = helper.make_tensor("t", TensorProto.FLOAT, [30, 30], values.tobytes(), raw=True)
    else:
        proto = helper.make_tensor("t", TensorProto.FLOAT, [30, 30], values)
    before = change(proto).SerializeToString()
    model = model_of([ir.serde.TensorProtoTensor(proto), zeros(2000)])
    model.graph.initializers["g_0"].const_value.name = "t"
    assert streamed(model) == whole(model)
    proto.name = "t"
    assert proto.SerializeToString() == before


def test_metadata_of_a_tensor_from_a_file_is_its_own() -> None:
    proto = _metadata(helper.make_tensor("t", TensorProto.UINT8, [2000], bytes(2000), raw=True))
    tensor = ir.serde.TensorProtoTensor(proto)
    tensor.metadata_props["later"] = "yes"
    model = model_of([tensor])
    assert streamed(model) == whole(model)
    assert b"later" in streamed(model)


def test_initializers_of_a_function_are_not_written() -> None:
    body = graph_of([zeros(3000)], [], "body")
    model = model_of([zeros(2000)], [], [ir.Function("d", "f", "", graph=body, attributes=[])])
    assert streamed(model) == whole(model)


@pytest.mark.usefixtures("threshold")
@pytest.mark.skipif(not hasattr(TensorProto, "FLOAT6E2M3"), reason="needs onnx with FLOAT6")
def test_data_that_the_writer_looks_at() -> None:
    """Six-bit data has a form of its own, which a mark would not have."""
    proto = TensorProto(name="t", data_type=TensorProto.FLOAT6E2M3, dims=[2049])
    proto.raw_data = bytes(1537)
    model = model_of([ir.serde.TensorProtoTensor(proto)])
    assert streamed(model) == whole(model)


TREES = st.recursive(st.just([]), lambda deeper: st.lists(deeper, max_size=3), max_leaves=12)


@given(st.data(), TREES, st.integers(1, 200))
def test_any_nesting(data: st.DataObject, tree: list, threshold: int) -> None:
    sizes = st.lists(st.sampled_from(SIZES), max_size=3)
    count = 0

    def build(branches: list) -> ir.Graph:
        nonlocal count
        count += 1
        name = f"g{count}"
        nodes = [ir.node("Constant", [], {"value": zeros(n)}) for n in data.draw(sizes)]
        nodes += [ir.node("Loop", [], {"body": build(branch)}) for branch in branches]
        return graph_of([zeros(n) for n in data.draw(sizes)], nodes, name)

    model = ir.Model(build(tree), ir_version=10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LARGE_BYTES", threshold)
        assert streamed(model) == whole(model)


@pytest.mark.parametrize("stored", [3996, 4004])
def test_data_that_does_not_fit_its_shape(stored: int) -> None:
    tensor = ir.LazyTensor(
        lambda: ir.Tensor(np.zeros(stored, np.uint8)),
        dtype=ir.DataType.FLOAT,
        shape=ir.Shape([1000]),
    )
    with pytest.raises(InputError, match=rf"g_1.*{stored} bytes.*4000"):
        streamed(model_of([zeros(2), tensor]))


MEMORY = """
import os, sys
import numpy as np
import onnx_ir as ir
from rmsnorm_export.graph.save import save_model

def peak():
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


kind, path = sys.argv[1:]
rows = [np.full(1 << 20, i, np.float64) for i in range(24)]
if kind == "proto":
    tensors = [ir.serde.TensorProtoTensor(ir.serde.serialize_tensor(ir.Tensor(r))) for r in rows]
    del rows
else:
    tensors = [ir.Tensor(row) for row in rows]
values = [ir.Value(name=f"w{i}", const_value=t) for i, t in enumerate(tensors)]
graph = ir.Graph([], [], nodes=[], initializers=values, name="g", opset_imports={"": 20})
before = peak()
print(save_model(ir.Model(graph, ir_version=10), path).bytes >> 20, peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("kind", ["array", "proto"])
def test_saving_takes_memory_for_one_tensor(tmp_path, kind: str) -> None:
    """192 MiB of weights in tensors of 8: some copies of one, and none of all."""
    command = [sys.executable, "-c", MEMORY, kind, str(tmp_path / "m.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    size, grown = done.stdout.split()
    assert int(size) == 192
    assert float(grown) < 48
