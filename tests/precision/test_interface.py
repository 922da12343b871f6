"""``optimize --dtype`` as users call it: types, inputs, masks, refusals, reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import rmsnorm_export as rx
from rmsnorm_export.cli.main import main
from rmsnorm_export.records import from_json
from rmsnorm_export.runtime.session import open_session, run_session
from tests.precision.networks import (
    ROWS,
    converted,
    kept,
    network,
    operators,
    parsed,
    run,
    step_by_step,
    types_of,
    weight,
    x_of,
)


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
    assert (half.other, half.other_kept) == ("bfloat16", len(brain.kept))
    assert (brain.other, brain.other_kept) == ("float16", len(half.kept))
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
        assert not precision.problem
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


def test_an_embedding_that_a_converter_clipped_is_no_mask() -> None:
    """Its largest element is the end of the type, as a mask's; what is made of it overflows."""
    table = weight(8, ROWS).astype(np.float16)
    table[3, 5] = 65504
    body = "e = Gather (table, ids) s = Mul (e, four) n = Div (s, many) y = MatMul (n, w)"
    own = {"table": table, "four": np.float16(4), "many": np.float16(4096)}
    own["w"] = weight(ROWS, ROWS).astype(np.float16)
    model = parsed(body, f"(int64[n] ids) => (float16[n, {ROWS}] y)", own)
    new, precision, content = converted(model, inputs=[{"ids": np.arange(8)}])
    assert {one.tensor for one in precision.kept if one.kind == "range"} == {"s"}
    assert types_of(new)["s"] == "FLOAT"
    assert np.isfinite(step_by_step(content, {"ids": np.arange(8)})[0]).all()


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


def test_a_model_that_random_inputs_do_not_fit_asks_for_others() -> None:
    """As an encoder of images does, whose grid says how many patches there are."""
    body = "t = Reshape (x, grid) y = MatMul (t, w)"
    signature = f"(float[n, {ROWS}] x, int64[2] grid) => (float[a, b] y)"
    model, feeds = parsed(body, signature, {"w": weight(ROWS, ROWS)}), x_of(3, ROWS)
    with pytest.raises(rx.InputError, match="Random inputs do not fit the model") as raised:
        rx.optimize(model, dtype="f16")
    assert "--inputs" in raised.value.fix
    fitting = feeds | {"grid": np.array([3, ROWS])}
    assert rx.optimize(model, dtype="f16", inputs=[fitting]).report.precision.compared


def test_a_runtime_that_lacks_the_type_is_said() -> None:
    with pytest.raises(rx.InputError, match="lacks bfloat16") as told:
        rx.optimize(network(), dtype="bf16", runtime="onnxruntime")
    assert "of bfloat16" in told.value.found
    assert rx.optimize(network(), dtype="bf16", runtime="onnxruntime-gpu").report.precision
    assert rx.optimize(network(), dtype="f16", runtime="onnxruntime").report.precision


@pytest.mark.parametrize("operator", ["ReduceL2", "ReduceSumSquare"])
def test_squares_inside_an_operator_count(operator: str) -> None:
    body = f"a = MatMul (x, w) r = {operator} <axes = [-1]> (a) d = Div (a, r) y = MatMul (d, w)"
    for size, there in ((1.0, []), (1e2, [operator])):
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
        assert types_of(new)["w"] == ("FLOAT16" if half_io else "FLOAT")
        x = x_of(2, ROWS)["x"].astype(np.float16 if half_io else np.float32)
        off = run(content, {"x": x})[0] - run(model, x_of(2, ROWS))[0]
        assert np.abs(off).max() < 1e-2


def test_proofs_are_of_the_norms_alone() -> None:
    report = rx.optimize(network(), dtype="f16", prove=True).report
    assert all(
        site.proof and site.proof.passed and site.dtype == "float32" for site in report.fused
    )
    assert "output differs by at most" in report.precision.compared
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
