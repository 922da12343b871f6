"""Whole models: what passes, what fails and why, and what cannot be compared."""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from proof.sites import GEMMA, LLAMA, source

from rmsnorm_export import Verification, verify
from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.compare.verify import compare_recorded
from rmsnorm_export.errors import (
    BackendMissingError,
    ExitCode,
    InputError,
    UsageError,
    VerificationError,
)
from rmsnorm_export.op.spec import BFLOAT16, FLOAT16
from rmsnorm_export.records import from_json, to_json
from rmsnorm_export.show import to_text

CHAIN = "{core}\n  y = Mul (v, w)"
FUSED = "  y = SimplifiedLayerNormalization <epsilon = 0.000001> (x, w)"

DECODER = """<ir_version: 10, opset_import: ["" : 18]>
decoder (int64[batch, sequence] ids, int64[batch, whole] mask,
         float[batch, 2, past, 4] past_key, float16[batch, sequence] shift)
  => (float[batch, sequence, 8] hidden, float[batch, 2, total, 4] key, int64[batch, sequence] top)
{
  hidden_0 = Gather (table, ids)
  shift_0 = Cast <to = 1> (shift)
  last = Constant <value_ints = [-1]> ()
  shift_1 = Unsqueeze (shift_0, last)
  hidden = Add (hidden_0, shift_1)
  shape = Constant <value_ints = [0, 0, 2, 4]> ()
  heads = Reshape (hidden, shape)
  new_key = Transpose <perm = [0, 2, 1, 3]> (heads)
  all_keys = Concat <axis = 2> (past_key, new_key)
  seen = Cast <to = 1> (mask)
  one = Constant <value_ints = [1]> ()
  seen_1 = Unsqueeze (seen, one)
  seen_2 = Unsqueeze (seen_1, last)
  key = Mul (all_keys, seen_2)
  top = ArgMax <axis = -1, keepdims = 0> (hidden)
}"""


def decoder(rows: int = 3) -> ir.Model:
    """Ids into a short table, a mask as long as cache and sequence together, a half input."""
    model = ir.from_onnx_text(DECODER)
    table = np.random.default_rng(0).standard_normal((rows, 8)).astype(np.float32)
    # As the exporters name it; the text form has no expressions.
    model.graph.inputs[1].shape = ir.Shape(["batch", "past + sequence"])
    missing = next(v for node in model.graph for v in node.inputs if v.name == "table")
    missing.const_value = ir.tensor(table, name="table")
    model.graph.register_initializer(missing)
    return model


def save(model: ir.Model, path: Path) -> Path:
    ir.save(model, path)
    return path


def test_a_right_rewrite_passes(tmp_path: Path) -> None:
    a, b = source(CHAIN), source(FUSED)
    result = verify(save(a, tmp_path / "a.onnx"), str(save(b, tmp_path / "b.onnx")))
    assert result.passed, result.reason
    assert result.reason == ""
    assert [output.name for output in result.outputs] == ["y"]
    assert result.outputs[0].metrics.max_ulp < 50
    assert result.optimized == (False, True)
    assert result.inputs == ("x float32 [2, 3, 96]", "w float32 [96]")
    assert result.source == "random, seed 0"
    assert result.runtime.startswith("onnxruntime ")


@pytest.mark.parametrize(("dtype", "body"), [(FLOAT16, LLAMA), (BFLOAT16, GEMMA)])
def test_half_models_in_memory(dtype: int, body: str) -> None:
    a, b = source(body, dtype=dtype), source(FUSED, dtype=dtype)
    result = verify(a, ir.to_proto(b))
    assert result.passed, result.reason
    assert result.outputs[0].metrics.dtype == str(ir.DataType(dtype).numpy())


def test_a_wrong_rewrite_fails_with_its_bound() -> None:
    a, b = source(CHAIN), source(CHAIN.replace("(v, w)", "(v, v)"))
    result = verify(a, b)
    assert not result.passed
    assert not result.outputs[0].passed
    assert "y: largest difference" in result.reason
    assert "allowed" in result.reason


def test_bounds() -> None:
    a = source("  y = Mul (x, w)")
    b = source("  c = Constant <value_float = 0.00001> ()\n  p = Mul (x, w)\n  y = Add (p, c)")
    assert verify(a, b).passed
    assert not verify(a, b, rtol=1e-7).passed
    assert not verify(a, b, rtol=0.0, atol=9e-6).passed
    assert verify(a, b, rtol=0.0, atol=2e-5).passed
    assert verify(a, b, atol=2e-5).outputs[0].bound_abs == 2e-5
    tight = verify(a, b, max_ulp=10)
    assert not tight.passed
    assert "10 allowed" in tight.reason
    assert tight.outputs[0].bound_ulp == 10
    assert verify(a, a, rtol=0.0, max_ulp=0, optimize_b=False).passed


def test_random_inputs_fit_a_decoder() -> None:
    model = decoder()
    result = verify(model, model)
    assert result.passed, result.reason
    assert result.inputs == (
        "ids int64 [2, 3]",
        "mask int64 [2, 8]",
        "past_key float32 [2, 2, 5, 4]",
        "shift float16 [2, 3]",
    )
    assert [output.metrics.dtype for output in result.outputs] == ["float32", "float32", "int64"]
    other = decoder()
    other.graph.initializers["table"].const_value = ir.tensor(np.zeros((3, 8), np.float32))
    wrong = verify(model, other)
    assert {output.name for output in wrong.outputs if not output.passed} >= {"hidden", "key"}


def test_shapes_override_and_carry_over() -> None:
    model = decoder()
    result = verify(model, model, shapes={"past_key": [1, 2, 0, 4]})
    assert result.passed
    assert "mask int64 [1, 2]" in result.inputs
    with pytest.raises(UsageError, match="nonsense"):
        verify(model, model, shapes={"nonsense": [1]})
    with pytest.raises(UsageError, match="does not fit"):
        verify(model, model, shapes={"ids": [1, 2, 3]})


def test_given_inputs(tmp_path: Path) -> None:
    a, b = source(CHAIN), source(FUSED)
    rng = np.random.default_rng(5)
    arrays = {
        "x": rng.standard_normal((1, 1, 96)).astype(np.float32),
        "w": np.ones(96, np.float32),
    }
    path = tmp_path / "inputs.npz"
    np.savez(path, **arrays)
    for inputs in (arrays, path, str(path)):
        result = verify(a, b, inputs=inputs)
        assert result.passed
        assert result.inputs[0] == "x float32 [1, 1, 96]"
    assert result.source == str(path)


def test_bfloat16_inputs_from_a_file(tmp_path: Path) -> None:
    a = source(GEMMA, dtype=BFLOAT16)
    arrays = {
        "x": np.ones((1, 2, 96), ml_dtypes.bfloat16),
        "w": np.full(96, 2, ml_dtypes.bfloat16),
    }
    path = tmp_path / "inputs.npz"
    np.savez(path, x=arrays["x"], w=arrays["w"].view(np.uint16))
    assert verify(a, a, inputs=path).passed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": None}, "found: 'x'"),
        ({"extra": np.ones(3)}, "found: 'extra', 'w', 'x'"),
        ({"x": np.ones((1, 1, 96))}, "'x' is float64 .* takes 'x' float32"),
        ({"x": np.ones((1, 1, 95), np.float32)}, "'x' is float32 \\[1, 1, 95\\]"),
        ({"x": np.ones((1, 96), np.float32)}, "'x' is float32 \\[1, 96\\]"),
    ],
)
def test_inputs_that_do_not_fit(change: dict, message: str) -> None:
    arrays = {"x": np.ones((1, 1, 96), np.float32), "w": np.ones(96, np.float32)} | change
    arrays = {name: array for name, array in arrays.items() if array is not None}
    with pytest.raises(InputError, match=message):
        verify(source(CHAIN), source(CHAIN), inputs=arrays)


def test_unreadable_inputs(tmp_path: Path) -> None:
    model = source(CHAIN)
    single, pickled = tmp_path / "single.npy", tmp_path / "objects.npz"
    np.save(single, np.ones(3))
    np.savez(pickled, x=np.array([{}], dtype=object))
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"PK\x03\x04 no archive")
    for path in (tmp_path / "missing.npz", single, pickled, broken, tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            verify(model, model, inputs=path)


def test_models_with_other_interfaces() -> None:
    a = source(CHAIN)
    with pytest.raises(VerificationError, match="lacks outputs"):
        verify(a, source("  z = Mul (x, w)", outputs=("z",)))
    with pytest.raises(VerificationError, match="inputs that the first one lacks"):
        verify(a, source("  y = Mul (x, h)", inputs=("x", "h")))
    with pytest.raises(VerificationError, match="different types or shapes"):
        verify(a, source("  i = Constant <value_ints = [0]> ()\n  y = Gather (x, i)"))
    # An input that a rewrite made superfluous may go.
    assert verify(source("  y = Abs (x)"), source("  y = Abs (x)", inputs=("x",))).passed


def test_nan_in_different_places() -> None:
    a, b = source("  y = Sqrt (x)"), source("  p = Abs (x)\n  y = Sqrt (p)")
    result = verify(a, b)
    assert not result.passed
    assert "NaN or infinities" in result.reason


def test_models_that_cannot_be_read(tmp_path: Path) -> None:
    good = save(source(CHAIN), tmp_path / "good.onnx")
    empty, garbage = tmp_path / "empty.onnx", tmp_path / "garbage.onnx"
    empty.write_bytes(b"")
    garbage.write_bytes(b"\xff" * 200)
    for bad in (tmp_path / "missing.onnx", empty, garbage, tmp_path):
        for pair in ((bad, good), (good, bad)):
            with pytest.raises(InputError, match=r"The (model file|file is not|model is a folder)"):
                verify(*pair)


def test_a_model_that_onnxruntime_rejects(tmp_path: Path) -> None:
    path = save(source("  y = NoSuchOperator (x)"), tmp_path / "odd.onnx")
    with pytest.raises(VerificationError, match=r"does not load the model: .*odd\.onnx"):
        verify(path, path)


def test_external_data(tmp_path: Path) -> None:
    model = decoder(rows=300)
    path = tmp_path / "model.onnx"
    ir.save(model, path, external_data="weights.bin")
    loaded = ir.load(path)
    assert isinstance(loaded.graph.initializers["table"].const_value, ir.ExternalTensor)
    assert verify(path, loaded).passed
    with pytest.raises(InputError, match="does not know its folder"):
        verify(path, onnx.load(path, load_external_data=False))


def test_bad_options() -> None:
    model = source(CHAIN)
    with pytest.raises(UsageError, match="rtol"):
        verify(model, model, rtol=-1.0)
    with pytest.raises(UsageError, match="atol"):
        verify(model, model, atol=float("nan"))
    with pytest.raises(UsageError, match="together"):
        verify(model, model, inputs={}, shapes={"x": [1]})


def test_without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(BackendMissingError, match="pip install"):
        verify(source(CHAIN), source(CHAIN))


def _divided(shapes: dict[str, list[int]]) -> onnx.ModelProto:
    """``y = x / x`` for each input: NaN for zeros."""
    graph = helper.make_graph(
        [helper.make_node("Div", [name, name], [f"{name}_y"]) for name in shapes],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()],
        [helper.make_tensor_value_info(f"{n}_y", TensorProto.FLOAT, s) for n, s in shapes.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _zeros(shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def test_two_models_that_agree_on_nan_only_are_no_pass() -> None:
    shapes = {"a": [2, 3], "b": [2, 3]}
    model = _divided(shapes)
    feeds = _zeros(shapes) | {"b": np.ones([2, 3], np.float32)}
    result = verify(model, model, inputs=feeds)
    assert [output.passed for output in result.outputs] == [False, True]
    assert not result.passed
    assert "a_y: no finite number" in result.reason
    assert result.first_difference is None


def test_a_single_finite_number_is_evidence() -> None:
    shapes = {"a": [2, 3]}
    feeds = _zeros(shapes)
    feeds["a"][0, 0] = 1
    assert verify(_divided(shapes), _divided(shapes), inputs=feeds).passed


def test_a_comparison_of_nothing_is_no_pass() -> None:
    shapes = {"a": [0, 3]}
    result = verify(_divided(shapes), _divided(shapes), inputs=_zeros(shapes))
    assert not result.passed
    assert "no element" in result.reason
    # Beside an output that has elements, an empty one, such as an empty cache, is in order.
    shapes |= {"b": [2, 3]}
    feeds = _zeros(shapes) | {"b": np.ones([2, 3], np.float32)}
    assert verify(_divided(shapes), _divided(shapes), inputs=feeds).passed


def bent(operator: str, domain: str, element_type: int) -> onnx.ModelProto:
    """A model of one square operator on [2, 2]."""
    node = helper.make_node(operator, ["x"], ["y"], domain=domain)
    x = helper.make_tensor_value_info("x", element_type, [2, 2])
    y = helper.make_tensor_value_info("y", element_type, None)
    graph = helper.make_graph([node], "g", [x], [y])
    opsets = [helper.make_opsetid("", 22), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize(
    ("operator", "domain", "element_type", "says"),
    [
        ("Det", "", TensorProto.DOUBLE, "Det"),  # ONNX Runtime has it in float32 alone
        ("Bend", "their.own", TensorProto.FLOAT, "their.own:Bend"),
    ],
)
def test_what_cannot_be_run_here_neither_agrees_nor_differs(
    operator: str, domain: str, element_type: int, says: str
) -> None:
    proto = bent(operator, domain, element_type)
    outcome = verify(proto, proto)
    assert (outcome.passed, outcome.verdict, outcome.outputs) == (False, "not run", ())
    assert says in outcome.not_run
    error = outcome.error()
    assert error is not None
    assert error.exit_code == ExitCode.NOT_RUN == 7
    assert from_json(to_json(outcome), Verification) == outcome
    text = to_text(outcome)
    assert text.startswith("the models could NOT BE RUN here: ")
    assert says in text


def masked(factor: float) -> onnx.ModelProto:
    """[mask, x * factor]: the lowest number of the type beside numbers of a few units."""
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]> g (float[n, 4] x) => (float[n, 5] y) {{
          k = Constant <value = float {{{factor}}}> ()
          zero = Constant <value = float {{0.0}}> ()
          lowest = Constant <value = float {{-3.4028235e38}}> ()
          last = Constant <value_ints = [-1]> ()
          v = Mul (x, k)
          none = Mul (x, zero)
          column = ReduceSum (none, last)
          mask = Add (column, lowest)
          y = Concat <axis = 1> (mask, v)
        }}"""
    )


def test_a_mask_beside_them_does_not_allow_every_number() -> None:
    """One ten-thousandth of the lowest number of the type is more than all else ever differs by."""
    same = verify(masked(2.0), masked(2.0))
    assert same.passed
    assert same.outputs[0].bound_abs < 1e-2
    outcome = verify(masked(2.0), masked(3.0))
    assert not outcome.passed
    assert outcome.outputs[0].metrics.max_abs > 0.1


@pytest.mark.parametrize("name", ["rtol", "atol", "max_ulp"])
def test_a_bound_that_nothing_exceeds_is_no_bound(name: str) -> None:
    model = source("  y = Abs (x)")
    with pytest.raises(UsageError, match="Expected float"):
        verify(model, model, **{name: float("inf")})


def test_a_comparison_without_calls_is_no_pass(tmp_path: Path) -> None:
    """What PyTorch computed is gone, say: then nothing is known of the file."""
    path = save(source("  y = Abs (x)"), tmp_path / "m.onnx")
    outcome = compare_recorded(path, lambda _: [], VerifyOptions(), runtime="PyTorch", source="-")
    assert (outcome.passed, outcome.verdict) == (False, "not compared")
    assert "no output" in outcome.reason
    error = outcome.error()
    assert error is not None
    assert error.exit_code == ExitCode.VERIFICATION
