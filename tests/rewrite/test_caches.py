"""Caches of fixed size: written where the new rows go, and in place where the caller binds so."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

from rmsnorm_export.rewrite.caches import write_rows
from rmsnorm_export.tensorrt.engine.model import open_model

ROOM, HEADS, WIDTH = 11, 3, 5


def decode(opset: int, *, cached: bool = True, back: tuple[int, ...] = (1, 2, 0, 3)) -> ir.Model:
    """As ``index_copy_`` of two tensors is exported; without ``cached`` into an empty cache."""
    nodes = [
        helper.make_node("Range", ["zero", "count", "one"], ["steps"]),
        helper.make_node("Add", ["steps", "start"], ["places"]),
        helper.make_node("Unsqueeze", ["places", "last"], ["column"]),
    ]
    for name in ("keys", "values"):
        cache = f"input.{name}"
        if not cached:
            cache = f"empty.{name}"
            nodes.append(helper.make_node("Mul", [f"input.{name}", "nothing"], [cache]))
        nodes += [
            helper.make_node("Transpose", [cache], [f"{name}.turned"], perm=[2, 0, 1, 3]),
            helper.make_node("Transpose", [f"new.{name}"], [f"{name}.rows"], perm=[2, 0, 1, 3]),
            helper.make_node(
                "ScatterND", [f"{name}.turned", "column", f"{name}.rows"], [f"{name}.made"]
            ),
            helper.make_node("Transpose", [f"{name}.made"], [f"output.{name}"], perm=back),
        ]
    constants = [
        helper.make_tensor("zero", TensorProto.INT64, [], [0]),
        helper.make_tensor("one", TensorProto.INT64, [], [1]),
        helper.make_tensor("last", TensorProto.INT64, [1], [-1]),
        helper.make_tensor("nothing", TensorProto.FLOAT, [], [0.0]),
    ]
    tensor = helper.make_tensor_value_info
    cache, new = ["batch", HEADS, ROOM, WIDTH], ["batch", HEADS, "tokens", WIDTH]
    inputs = [tensor(f"input.{one}", TensorProto.FLOAT, cache) for one in ("keys", "values")]
    inputs += [tensor(f"new.{one}", TensorProto.FLOAT, new) for one in ("keys", "values")]
    inputs += [tensor(one, TensorProto.INT64, []) for one in ("start", "count")]
    shape = cache if back == (1, 2, 0, 3) else [None] * 4
    outputs = [tensor(f"output.{one}", TensorProto.FLOAT, shape) for one in ("keys", "values")]
    graph = helper.make_graph(nodes, "decode", inputs, outputs, constants)
    graph.value_info.append(tensor("column", TensorProto.INT64, ["tokens", 1]))
    for one in () if cached else ("keys", "values"):
        graph.value_info.append(tensor(f"empty.{one}", TensorProto.FLOAT, cache))
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return ir.from_proto(proto)


def session(model: ir.Model) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # TensorScatter warns wherever it has to copy
    return onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)


def feeds(tokens: int, start: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(tokens)
    cache, new = (2, HEADS, ROOM, WIDTH), (2, HEADS, tokens, WIDTH)
    given = {f"input.{one}": rng.standard_normal(cache, np.float32) for one in ("keys", "values")}
    given |= {f"new.{one}": rng.standard_normal(new, np.float32) for one in ("keys", "values")}
    return given | {"start": np.array(start), "count": np.array(tokens)}


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(("opset", "operator"), [(20, "ScatterND"), (24, "TensorScatter")])
def test_a_cache_is_written_without_being_turned(opset: int, operator: str, cached: bool) -> None:
    """Any number of tokens at any place; TensorRT wants TensorScatter's cache to be an input."""
    before, after = decode(opset, cached=cached), decode(opset, cached=cached)
    assert write_rows(after) == 2
    onnx.checker.check_model(ir.to_proto(after), full_check=True)
    operators = [node.op_type for node in after.graph]
    assert "Transpose" not in operators
    assert operators.count(operator if cached else "ScatterND") == 2
    assert operators.count("Concat") == (3 if "ScatterND" in operators else 0)  # once for both
    raw, made = session(before), session(after)
    for tokens, start in ((1, 0), (1, ROOM - 1), (4, 3), (ROOM, 0)):
        given = feeds(tokens, start)
        for one, other in zip(raw.run(None, given), made.run(None, given), strict=True):
            np.testing.assert_array_equal(one, other)
    names = {f"output.{one}": f"input.{one}" for one in ("keys", "values")}
    with open_model(ir.to_proto(after)) as opened:
        assert opened.aliased == (names if opset == 24 and cached else {})


@pytest.mark.parametrize("opset", [20, 24])
def test_one_buffer_is_input_and_output(opset: int) -> None:
    model = decode(opset)
    write_rows(model)
    running, given = session(model), feeds(2, 4)
    expected = running.run(None, given)
    binding = running.io_binding()
    held = {name: onnxruntime.OrtValue.ortvalue_from_numpy(one) for name, one in given.items()}
    for name, value in held.items():
        binding.bind_ortvalue_input(name, value)
    for name in ("keys", "values"):
        binding.bind_ortvalue_output(f"output.{name}", held[f"input.{name}"])
    running.run_with_iobinding(binding)
    for name, one in zip(("keys", "values"), expected, strict=True):
        np.testing.assert_array_equal(held[f"input.{name}"].numpy(), one)


def test_what_is_no_write_into_a_cache_stays() -> None:
    model = decode(20, back=(1, 0, 2, 3))
    text = ir.to_proto(model).SerializeToString()
    assert write_rows(model) == 0
    assert ir.to_proto(model).SerializeToString() == text
