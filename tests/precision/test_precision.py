"""``optimize --dtype``: half precision, float32 where it is needed, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import rmsnorm_export as rx
from rmsnorm_export.cli.main import main
from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.precision.result import Kept, Precision
from rmsnorm_export.records import from_json
from rmsnorm_export.runtime.session import load_session, open_session, run_session

ROWS = 16
TARGETS = ("portable", "onnx", "ort", "plain")
NORM = """
  P_square = Mul (P_in, P_in)
  P_mean = ReduceMean <axes = [-1]> (P_square)
  P_sum = Add (P_mean, least)
  P_root = Sqrt (P_sum)
  P_normed = Div (P_in, P_root)
  P_out = Mul (P_normed, scale)
"""


def parsed(body: str, io: str, weights: Mapping[str, Any], opset: int = 17) -> onnx.ModelProto:
    """A model with these stored tensors; ``io`` are its inputs and outputs."""
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : {opset}]> g {io} {{ {body} }}'
    )
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


def norm(name: str, source: str) -> str:
    return NORM.replace("P_in", source).replace("P_", f"{name}_")


def weight(*shape: int, seed: int = 0, size: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * size / np.sqrt(shape[0])).astype(np.float32)


def network(stream: float = 1.0) -> onnx.ModelProto:
    """Two residual blocks with norms and attention; ``stream`` scales what is added first."""
    body = f"""
      h0 = Add (x, first)
      {norm("a", "h0")}
      q = MatMul (a_out, wq)
      k = Transpose <perm = [1, 0]> (a_out)
      scores = MatMul (q, k)
      p = Softmax (scores)
      v = MatMul (p, a_out)
      o = MatMul (v, wo)
      big = Mul (o, stream)
      h1 = Add (h0, big)
      {norm("b", "h1")}
      u = MatMul (b_out, wu)
      h2 = Add (h1, u)
      {norm("c", "h2")}
      y = MatMul (c_out, wy)
    """
    own = {"first": weight(1, ROWS), "stream": np.float32(stream), "least": np.float32(1e-6)}
    own |= {f"w{name}": weight(ROWS, ROWS, seed=i) for i, name in enumerate("qouy")}
    own["scale"] = np.linspace(0.5, 1.5, ROWS, dtype=np.float32)
    return parsed(body, f"(float[n, {ROWS}] x) => (float[n, {ROWS}] y)", own)


def converted(model: onnx.ModelProto, **options: Any) -> tuple[ir.Model, Precision, bytes]:
    """The new model, what is told of it, and its bytes."""
    result = rx.optimize(model, **{"dtype": "f16", **options})
    precision = result.report.precision
    assert precision is not None
    assert precision.compared
    return result.model, precision, result.to_bytes()


def run(model: bytes | onnx.ModelProto, feeds: Mapping[str, Any], *, optimize: bool = True) -> Any:
    content = model if isinstance(model, bytes) else model.SerializeToString()
    return load_session(content, optimize=optimize).run(None, dict(feeds))


def x_of(*shape: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(7).standard_normal(shape).astype(np.float32)}


def step_by_step(content: bytes, feeds: Mapping[str, Any]) -> Any:
    """The outputs where each result is rounded, as ONNX Runtime's CPU provider does not."""
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(onnx.load_from_string(content)).run(None, dict(feeds))


def share_off(model: onnx.ModelProto, content: bytes, feeds: Mapping[str, Any]) -> float:
    """The largest difference of the outputs, which are finite, as a share of the largest."""
    shares, source = [], run(model, feeds)
    pairs = [(source, run(content, feeds, optimize=optimize)) for optimize in (False, True)]
    if b"SimplifiedLayerNormalization" not in content:  # which the reference lacks
        pairs.append((step_by_step(model.SerializeToString(), feeds), step_by_step(content, feeds)))
    for expected, outputs in pairs:
        for before, after in zip(expected, outputs, strict=True):
            assert np.isfinite(after).all()
            off = np.abs(before.astype(np.float64) - after.astype(np.float64)).max()
            shares.append(off / np.abs(before).max())
    return float(max(shares))


def types_of(model: ir.Model) -> dict[str, str]:
    """The element type of each stored tensor and each value with a type, by name."""
    values = (v for g in all_graphs(model) for v in (*g.initializers.values(), *_made(g)))
    return {str(v.name): "" if v.dtype is None else v.dtype.name for v in values}


def _made(graph: Any) -> list[ir.Value]:
    return [*graph.inputs, *(value for node in graph for value in node.outputs)]


def kept(precision: Precision, kind: str) -> dict[str, Kept]:
    return {one.node or one.op: one for one in precision.kept if one.kind == kind}


def operators(kept_nodes: Mapping[str, Kept]) -> list[str]:
    return sorted(one.op for one in kept_nodes.values())


@pytest.mark.parametrize("target", TARGETS)
def test_all_but_the_softmax_is_half_where_nothing_overflows(target: str) -> None:
    model = network()
    new, precision, content = converted(model, target=target)
    assert share_off(model, content, x_of(3, ROWS)) < 2e-3
    assert precision.products == 6
    assert precision.products_kept == 0
    assert operators(kept(precision, "rule")) == ["Softmax"]
    assert not kept(precision, "range") or target == "plain"  # which has the squares by themselves
    types = types_of(new)
    assert {types[f"w{name}"] for name in "qouy"} == {"FLOAT16"}
    assert (types["x"], types["y"]) == ("FLOAT", "FLOAT")
    assert precision.bytes_after < 0.6 * precision.bytes_before
    assert "of 7 rows" in precision.compared or "rows keep" in precision.compared


@pytest.mark.parametrize("target", TARGETS)
def test_a_stream_is_float32_from_the_first_sum_that_overflows(target: str) -> None:
    model = network(stream=3e4)
    new, precision, content = converted(model, target=target)
    assert share_off(model, content, x_of(3, ROWS)) < 2e-3
    types = types_of(new)
    assert {types[f"w{name}"] for name in "qouy"} == {"FLOAT16"}
    assert precision.products_kept == 0
    wide = {one.tensor: one for one in kept(precision, "range").values()}
    assert wide["big"].size > precision.limit / precision.margin
    assert {one.tensor for one in precision.kept} & {"h0", "a_out", "u", "c_out"} == set()
    if target != "plain":  # where squares and roots are float32, and h0 between them
        assert types["h0"] == "FLOAT16"


def one_sum() -> onnx.ModelProto:
    """A residual sum that is 60,000 times the input, and its norm."""
    body = f"""
      h = MatMul (x, wh)
      big = Mul (h, stream)
      sum = Add (big, h)
      {norm("a", "sum")}
      y = MatMul (a_out, wy)
    """
    own = {"stream": np.float32(6e4), "least": np.float32(1e-6), "scale": np.ones(ROWS, np.float32)}
    own |= {"wh": weight(ROWS, ROWS), "wy": weight(ROWS, ROWS, seed=1)}
    return parsed(body, f"(float[n, {ROWS}] x) => (float[n, {ROWS}] y)", own)


def test_the_sum_overflows_where_the_given_inputs_do_not_show_it() -> None:
    """Or the tests above show nothing; and the largest of several inputs counts."""
    small, feeds = {"x": np.full((1, ROWS), 1e-2, np.float32)}, x_of(3, ROWS)
    _, precision, content = converted(one_sum(), inputs=[small])
    assert not np.isfinite(step_by_step(content, feeds)[0]).all()
    assert (precision.runs, precision.inputs) == (1, "given arrays")
    _, precision, content = converted(one_sum(), inputs=[small, feeds, small])
    assert share_off(one_sum(), content, feeds) < 2e-3
    assert precision.runs == 3
    _, precision, _ = converted(one_sum())
    assert "random" in precision.inputs


def test_weights_that_several_read_are_stored_once() -> None:
    """A tied embedding; a number that both types read is stored in both."""
    body = """
      e = Gather (table, ids)
      t = Transpose <perm = [1, 0]> (table)
      s = MatMul (e, t)
      doubled = Mul (s, two)
      p = Softmax (doubled)
      halved = Div (p, two)
      c = Cos (angle)
      turned = Mul (c, two)
      o = Add (halved, turned)
      y = MatMul (o, table)
    """
    own = {"table": weight(20, ROWS), "two": np.float32(2), "angle": np.float32(0.5)}
    model = parsed(body, f"(int64[n] ids) => (float[n, {ROWS}] y)", own)
    new, _, content = converted(model)
    assert share_off(model, content, {"ids": np.arange(5)}) < 2e-3
    stored = new.graph.initializers
    assert stored["table"].dtype == ir.DataType.FLOAT16
    assert [name for name in stored if name.startswith("table")] == ["table"]
    casts = [node for node in new.graph if node.op_type == "Cast"]
    assert not any("table" in (node.inputs[0].name or "") for node in casts)


def test_a_weight_beyond_the_type_stays_float32_with_what_reads_it() -> None:
    large = weight(ROWS, ROWS)
    large[3, 5] = 70_000
    body = "a = MatMul (x, large) b = Tanh (a) y = MatMul (b, w)"
    own = {"large": large, "w": weight(ROWS, ROWS, seed=1)}
    model = parsed(body, f"(float[n, {ROWS}] x) => (float[n, {ROWS}] y)", own)
    feeds = x_of(2, ROWS)
    feeds["x"][:, 3] = 0.01
    new, precision, content = converted(model, inputs=[feeds])
    assert share_off(model, content, feeds) < 2e-3
    types = types_of(new)
    assert (types["large"], types["w"]) == ("FLOAT", "FLOAT16")
    assert (precision.products, precision.products_kept) == (2, 1)
    (one,) = (k for k in precision.kept if k.op == "MatMul")
    assert (one.kind, one.tensor, one.size) == ("range", "large", 70_000)


def test_an_epsilon_that_float16_loses_stays_float32() -> None:
    """Where a norm is none of ours, here LayerNorm by nodes: a row of zeros is no NaN."""
    body = """
      h = MatMul (x, w)
      m = ReduceMean <axes = [-1]> (h)
      d = Sub (h, m)
      s = Mul (d, d)
      v = ReduceMean <axes = [-1]> (s)
      e = Add (v, least)
      r = Sqrt (e)
      n = Div (d, r)
      y = MatMul (n, w)
    """
    own = {"w": weight(ROWS, ROWS), "least": np.float32(1e-9)}
    model = parsed(body, f"(float[n, {ROWS}] x) => (float[n, {ROWS}] y)", own)
    _, precision, content = converted(model)
    assert operators(kept(precision, "range")) == ["Add", "Div", "Sqrt"]
    feeds = x_of(3, ROWS)
    feeds["x"][1] = 0
    assert share_off(model, content, feeds) < 5e-3


@pytest.mark.parametrize("kind", ["Cos", "Cast"])
def test_angles_and_indices_are_computed_in_float32(kind: str) -> None:
    """2,049 is no number of float16, and the cosine of 2,048 another one."""
    table = weight(3000, ROWS)
    end = {
        "Cos": "c = Cos (far) g = Mul (e, c)",
        "Cast": "i = Cast <to = 7> (far) g = Gather (table, i)",
    }
    body = f"""
      e = Gather (table, ids)
      f = Cast <to = 1> (ids)
      column = Unsqueeze (f, last)
      far = {"Identity (column)" if kind == "Cos" else "Identity (f)"}
      {end[kind]}
      y = MatMul (g, w)
    """
    own = {"table": table, "w": weight(ROWS, ROWS, seed=1), "last": np.array([1])}
    model = parsed(body, f"(int64[n] ids) => (float[n, {ROWS}] y)", own)
    new, precision, content = converted(model, inputs=[{"ids": np.arange(3)}])
    assert share_off(model, content, {"ids": np.arange(2040, 2060)}) < 2e-3
    assert types_of(new)["far"] == "FLOAT"
    assert precision.products_kept == 0


BODIES = {
    "If": """
      c = Constant <value_int = 1> ()
      on = Cast <to = 9> (c)
      h = If (on) <then_branch = one () => (float[n, 16] a) { a = MatMul (x, w) },
                   else_branch = two () => (float[n, 16] b) { b = Identity (x) }>
      s = Mul (h, stream)
      y = Softmax (s)""",
    "Loop": """
      n = Constant <value_int = 3> ()
      on = Constant <value_int = 1> ()
      yes = Cast <to = 9> (on)
      h, all = Loop (n, yes, x) <body = round (int64 i, bool go, float[n, 16] before)
        => (bool stay, float[n, 16] after, float[n, 16] each) {
          stay = Identity (go) t = MatMul (before, w) each = Mul (t, stream)
          m = Abs (each) end = ReduceMax <axes = [-1]> (m) after = Div (each, end) }>
      z = Slice (all, zero, one)
      q = Squeeze (z, zero)
      sizes = Abs (q)
      most = ReduceMax <axes = [-1]> (sizes)
      d = Div (q, most)
      y = Add (h, d)""",
    "Scan": """
      h, rows = Scan <num_scan_inputs = 1, body = row (float[16] total, float[16] r)
        => (float[16] next, float[16] out) { next = Add (total, r) out = Mul (next, stream) }>
        (first, x)
      l = MatMul (rows, w)
      y = Softmax (l)""",
}


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("stream", [1.0, 3e4])
def test_bodies_are_converted_and_kept_as_the_graph_is(kind: str, stream: float) -> None:
    own = {"w": weight(ROWS, ROWS), "stream": np.float32(stream), "first": weight(1, ROWS)[0]}
    own |= {"zero": np.array([0]), "one": np.array([1])}
    model = parsed(BODIES[kind], f"(float[n, {ROWS}] x) => (float[n, {ROWS}] y)", own)
    feeds = x_of(3, ROWS)
    new, precision, content = converted(model, inputs=[feeds])
    assert share_off(model, content, feeds) < 2e-3
    types = types_of(new)
    assert types["w"] == "FLOAT16" or (kind == "Scan" and stream > 1)
    large = {"If": "s", "Loop": "each", "Scan": "out"}[kind]
    assert types[large] == ("FLOAT" if stream > 1 else "FLOAT16")
    assert ("range" in {one.kind for one in precision.kept}) == (stream > 1)


def test_functions_of_others_are_converted_by_their_calls() -> None:
    """One call overflows, the other does not."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17, "own" : 1]>
        g (float[n, 16] x) => (float[n, 16] y) {
          a = own.scaled (x, w, small) b = own.scaled (a, w, large)
          p = Softmax (b) y = MatMul (p, w) }
        <domain: "own", opset_import: ["" : 17]> scaled (x, w, s) => (z) {
          t = MatMul (x, w) z = Mul (t, s) }"""
    )
    for name, array in {"w": weight(ROWS, ROWS), "small": 1.0, "large": 5e4}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.float32(array), name))
    new, precision, content = converted(model)
    assert not new.functions
    assert share_off(model, content, x_of(3, ROWS)) < 2e-2
    assert operators(kept(precision, "range")) == ["Mul"]
    assert precision.products_kept == 0


@pytest.mark.parametrize("half_io", [False, True])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_the_interface_keeps_its_types_unless_asked(dtype: str, *, half_io: bool) -> None:
    own = {"f16": "FLOAT16", "bf16": "BFLOAT16"}[dtype]
    new, precision, content = converted(network(), dtype=dtype, half_io=half_io)
    types = types_of(new)
    assert {types["wq"], types["wy"]} == {own}
    assert {types["x"], types["y"]} == ({own} if half_io else {"FLOAT"})
    assert [value.name for value in (*new.graph.inputs, *new.graph.outputs)] == ["x", "y"]
    ends = [node for node in new.graph if node.op_type == "Cast"]
    assert precision.casts == len(ends) == (2 if half_io else 4)  # two around the softmax
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    if dtype == "f16":
        feeds = {"x": x_of(3, ROWS)["x"].astype(np.float16 if half_io else np.float32)}
        before = run(network(), x_of(3, ROWS))[0]
        after = run(content, feeds)[0]
        assert after.dtype == feeds["x"].dtype
        assert np.abs(before - after.astype(np.float32)).max() < 5e-3 * np.abs(before).max()


def test_bfloat16_holds_what_float16_does_not() -> None:
    """And rounds more: the difference is measured, value by value."""
    _, half, _ = converted(network(stream=3e4))
    _, brain, content = converted(network(stream=3e4), dtype="bf16")
    assert not kept(brain, "range")
    assert half.other == f"bfloat16: {len(brain.kept)}"
    assert brain.other == f"float16: {len(half.kept)}"
    stored = {one.name: one for one in onnx.load_from_string(content).graph.initializer}
    bits = np.frombuffer(stored["wq"].raw_data, np.uint16).view(ml_dtypes.bfloat16)
    assert (bits == weight(ROWS, ROWS).astype(ml_dtypes.bfloat16).reshape(-1)).all()
    off = [float(one.compared.split("at most ")[1].split()[0]) for one in (half, brain)]
    assert 1e-5 < off[0] < off[1] / 2 < 0.05


def test_the_lowest_number_of_a_mask_is_no_number_of_bfloat16_either() -> None:
    body = "s = MatMul (x, w) m = Where (on, s, low) p = Softmax (m) y = MatMul (p, w)"
    low = np.float32(np.finfo(np.float32).min)
    own = {"w": weight(ROWS, ROWS), "low": low, "on": np.zeros((1, ROWS), bool)}
    model = parsed(body, f"(float[n, {ROWS}] x) => (float[n, {ROWS}] y)", own)
    for dtype in ("f16", "bf16"):  # every number is masked, and NaN where that is an infinity
        new, precision, _ = converted(model, dtype=dtype)
        assert types_of(new)["m"] == "FLOAT"
        assert "not finite" not in precision.compared
        assert precision.products_kept == 0


def half_of(model: onnx.ModelProto, dtype: Any = np.float16) -> onnx.ModelProto:
    """The model with every float in float16, as a converter without ranges leaves it."""
    copy, element = onnx.ModelProto.FromString(model.SerializeToString()), 10
    if dtype is ml_dtypes.bfloat16:
        element = 16
    for value in (*copy.graph.input, *copy.graph.output):
        value.type.tensor_type.elem_type = element
    for tensor in copy.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32:
            tensor.CopyFrom(numpy_helper.from_array(array.astype(dtype), tensor.name))
    return copy


def test_the_stretch_of_a_float16_model_that_overflows_becomes_float32() -> None:
    model, feeds = half_of(network(stream=3e4)), {"x": x_of(3, ROWS)["x"].astype(np.float16)}
    assert not np.isfinite(step_by_step(model.SerializeToString(), feeds)[0]).all()
    new, precision, content = converted(model)
    assert {one.tensor for one in precision.kept if one.kind == "range"} <= {"big", "h1", "h2"}
    assert {one.kind for one in precision.kept} <= {"range", "between"}  # the softmax stays
    assert types_of(new)["wq"] == types_of(new)["x"] == "FLOAT16"
    assert precision.other == ""
    before = run(network(stream=3e4), x_of(3, ROWS))[0]
    for after in (run(content, feeds)[0], step_by_step(content, feeds)[0]):
        assert after.dtype == np.float16
        assert np.abs(before - after.astype(np.float32)).max() < 5e-3 * np.abs(before).max()


def test_what_needs_no_conversion_or_cannot_have_one_is_said() -> None:
    with pytest.raises(rx.InputError, match="float16 already, and no value overflows"):
        rx.optimize(half_of(network()), dtype="f16")
    with pytest.raises(rx.InputError, match="holds float16 already"):
        rx.optimize(half_of(network()), dtype="bf16")
    with pytest.raises(rx.InputError, match="holds bfloat16 already"):
        rx.optimize(half_of(network(), ml_dtypes.bfloat16), dtype="f16")
    ids = parsed("y = Add (x, x)", "(int64[n] x) => (int64[n] y)", {})
    with pytest.raises(rx.InputError, match="nothing to convert"):
        rx.optimize(ids, dtype="f16")
    with pytest.raises(rx.InputError, match="inputs are not those"):
        rx.optimize(network(), dtype="f16", inputs=[{"z": np.zeros((1, ROWS), np.float32)}])
    with pytest.raises(rx.UsageError, match="for a conversion only"):
        rx.optimize(network(), half_io=True)
    with pytest.raises(rx.UsageError, match="random inputs"):
        rx.optimize(network(), dtype="f16", inputs=[x_of(1, ROWS)], dims="n=3")
    large = parsed("y = Mul (x, s)", "(float[n] x) => (float[n] y)", {"s": np.float32(6e4)})
    with pytest.raises(rx.InputError, match="does not fit float16") as told:
        rx.optimize(large, dtype="f16", half_io=True, inputs=[{"x": np.array([2], np.float32)}])
    assert "y reaches 1.2e+05" in told.value.found


def test_a_runtime_that_lacks_the_type_is_said() -> None:
    with pytest.raises(rx.InputError, match="lacks bfloat16") as told:
        rx.optimize(network(), dtype="bf16", runtime="onnxruntime")
    assert "of bfloat16" in told.value.found
    assert rx.optimize(network(), dtype="bf16", runtime="onnxruntime-gpu").report.precision
    assert rx.optimize(network(), dtype="f16", runtime="onnxruntime").report.precision


@pytest.mark.parametrize("operator", ["ReduceL2", "ReduceSumSquare"])
def test_squares_inside_an_operator_count(operator: str) -> None:
    body = f"a = MatMul (x, w) r = {operator} <axes = [-1]> (a) d = Div (a, r) y = MatMul (d, w)"
    for size, there in ((1.0, []), (1e3, [operator])):
        model = parsed(
            body, f"(float[n, {ROWS}] x) => (float[n, {ROWS}] y)", {"w": weight(ROWS, ROWS)}
        )
        feeds = {"x": x_of(2, ROWS)["x"] * np.float32(size)}
        _, precision, _ = converted(model, inputs=[feeds])
        squares = [one for one in precision.kept if one.reason.startswith("squares")]
        assert operators({one.node: one for one in squares}) == there


@pytest.mark.parametrize("operator", ["GroupQueryAttention", "MultiHeadAttention"])
def test_a_mask_of_an_attention_ends_where_the_type_does(operator: str) -> None:
    """It is no reason for a float32 attention."""
    heads = "num_heads = 2" + (", kv_num_heads = 2" if operator[0] == "G" else "")
    rest = "past, past, length, total, , , , bias" if operator[0] == "G" else ", , bias"
    outs = "a, k, v" if operator[0] == "G" else "a"
    body = f"""
      bias = Where (on, nought, low)
      q = MatMul (x, w)
      {outs} = com.microsoft.{operator} <{heads}> (q, q, q, {rest})
      y = MatMul (a, w)
    """
    own = {
        "w": weight(ROWS, ROWS),
        "nought": np.float32(0),
        "on": np.tri(3, dtype=bool)[None, None],
    }
    own |= {"low": np.float32(np.finfo(np.float32).min), "past": np.zeros((1, 2, 0, 8), np.float32)}
    own |= {"length": np.array([2], np.int32), "total": np.array(3, np.int32)}
    model = parsed(body, f"(float[1, 3, {ROWS}] x) => (float[1, 3, {ROWS}] y)", own)
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    if operator[0] == "M":
        del model.graph.initializer[-3:]
    new, precision, content = converted(model, target="ort")
    assert operator not in {one.op for one in precision.kept}
    (most,) = (node for node in new.graph if node.op_type == "Max")
    assert most.inputs[1].const_value.numpy() == -65504
    for optimize in (False, True):
        before, after = run(model, x_of(1, 3, ROWS))[0], run(content, x_of(1, 3, ROWS))[0]
        assert np.abs(before - after).max() < 5e-3 * np.abs(before).max(), optimize


def test_a_transpose_after_a_cast_does_not_end_the_runtime() -> None:
    """ONNX Runtime 1.31 ends by a signal at load, as after a norm."""
    body = "t = Transpose <perm = [1, 0, 2]> (x) y = MatMul (t, w)"
    model = parsed(
        body, f"(float[2, 3, {ROWS}] x) => (float[3, 2, {ROWS}] y)", {"w": weight(ROWS, ROWS)}
    )
    result = rx.optimize(model, dtype="f16")
    before = run(model, x_of(2, 3, ROWS))[0]
    session = open_session(result.to_bytes(), optimize=True)  # in a process of its own
    after = run_session(session, x_of(2, 3, ROWS))["y"]
    assert np.abs(before - after).max() < 5e-3 * np.abs(before).max()


def test_a_default_that_callers_may_replace_stays_one() -> None:
    io = f"(float[n, {ROWS}] x, float[{ROWS}, {ROWS}] w) => (float[n, {ROWS}] y)"
    model = parsed("y = MatMul (x, w)", io, {"w": weight(ROWS, ROWS)})
    for half_io in (False, True):
        new, _, content = converted(model, half_io=half_io)
        assert [value.name for value in new.graph.inputs] == ["x", "w"]
        assert new.graph.initializers["w"].dtype == (
            ir.DataType.FLOAT16 if half_io else ir.DataType.FLOAT
        )
        x = x_of(2, ROWS)["x"].astype(np.float16 if half_io else np.float32)
        off = run(content, {"x": x})[0] - run(model, x_of(2, ROWS))[0]
        assert np.abs(off).max() < 1e-2


def test_proofs_are_of_the_norms_alone() -> None:
    report = rx.optimize(network(), dtype="f16", prove=True).report
    assert all(
        site.proof and site.proof.passed and site.dtype == "float32" for site in report.fused
    )
    assert "differ from float32" in report.precision.compared
    assert "bit" not in str(report)


def test_the_report_names_what_stayed_and_why(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(network(stream=3e4), path)
    np.savez(tmp_path / "a.npz", **x_of(2, ROWS))
    np.savez(tmp_path / "b.npz", **x_of(4, ROWS))
    out, given = str(tmp_path / "o.onnx"), [f"--inputs={tmp_path / n}.npz" for n in "ab"]
    assert main(["optimize", str(path), "--dtype", "f16", *given, "-o", out]) == 0
    shown = capsys.readouterr().out
    told = "float16: |big reaches |a softmax|2 runs in float32|a.npz|6 of 6 rows|ends at 65504"
    for words in (*told.split("|"), "as bfloat16 1 node would stay float32"):
        assert words in shown, (words, shown)
    report = rx.optimize(path, dtype="f16").report
    assert from_json(report.to_json(), rx.Report).precision == report.precision
