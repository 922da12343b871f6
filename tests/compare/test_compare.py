"""Whole models: what passes, what fails and why, and what cannot be compared."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from proof.sites import GEMMA, LLAMA, source

from rmsnorm_export import Verification, verify
from rmsnorm_export.errors import ExitCode, InputError, UsageError, VerificationError
from rmsnorm_export.op.spec import BFLOAT16, FLOAT16
from rmsnorm_export.records import from_json, to_json

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


def decoder(rows: int = 3, factor: float = 1.0) -> ir.Model:
    """Ids into a short table, a mask as long as cache and sequence together, a half input."""
    model = ir.from_onnx_text(DECODER)
    table = factor * np.random.default_rng(0).standard_normal((rows, 8)).astype(np.float32)
    # As the exporters name it; the text form has no expressions.
    model.graph.inputs[1].shape = ir.Shape(["batch", "past + sequence"])
    missing = next(v for node in model.graph for v in node.inputs if v.name == "table")
    missing.const_value = ir.tensor(table, name="table")
    model.graph.register_initializer(missing)
    return model


def parsed(body: str, kind: str = "float") -> onnx.ModelProto:
    """A model from ``x`` to ``y`` of one type."""
    return onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18]> g ({kind}[n, 4] x) => ({kind}[n, m] y)'
        f" {{ {body} }}"
    )


@pytest.mark.parametrize("form", ["path", "text", "memory"])
@pytest.mark.parametrize(("dtype", "body"), [(1, CHAIN), (FLOAT16, LLAMA), (BFLOAT16, GEMMA)])
def test_a_right_rewrite_passes(dtype: int, body: str, form: str, tmp_path: Path) -> None:
    a, b = source(body, dtype=dtype), source(FUSED, dtype=dtype)
    paths = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for model, path in zip((a, b), paths, strict=True):
        ir.save(model, path)
    pair = {"path": paths, "text": [*map(str, paths)], "memory": [a, ir.to_proto(b)]}[form]
    outcome = verify(*pair)
    assert outcome.passed, outcome.reason
    assert (outcome.reason, outcome.source) == ("", "random, seed 0")
    assert [output.name for output in outcome.outputs] == ["y"]
    assert outcome.outputs[0].metrics.dtype == str(ir.DataType(dtype).numpy())
    assert outcome.inputs[0].endswith("[2, 3, 96]")
    assert outcome.runtime.startswith("onnxruntime ")


def test_bounds() -> None:
    a = source("  y = Mul (x, w)")
    b = source("  c = Constant <value_float = 0.00001> ()\n  p = Mul (x, w)\n  y = Add (p, c)")
    cases: list[tuple[dict[str, Any], bool]] = [
        ({}, True),
        ({"rtol": 1e-7}, False),
        ({"rtol": 0.0, "atol": 9e-6}, False),
        ({"rtol": 0.0, "atol": 2e-5}, True),
    ]
    for options, passed in cases:
        assert verify(a, b, **options).passed == passed, options
    assert verify(a, b, atol=2e-5).outputs[0].bound_abs == 2e-5
    root = source("  y = Sqrt (x)"), source("  p = Abs (x)\n  y = Sqrt (p)")
    for pair, words in (((a, source("  y = Mul (x, x)")), "y: largest difference"),
                        (root, "NaN or infinities")):  # fmt: skip
        wrong = verify(*pair)
        assert (wrong.passed, wrong.verdict) == (False, "differ")
        assert words in wrong.reason
    with pytest.raises(UsageError, match="random inputs"):
        verify(a, a, inputs={}, shapes={"x": [1]})
    for bad in ({"rtol": -1.0}, {"atol": float("nan")}, {"rtol": float("inf")}):
        with pytest.raises(UsageError):  # a bound that nothing exceeds is no bound
            verify(a, a, **bad)


def test_random_inputs_fit_a_decoder() -> None:
    outcome = verify(decoder(), decoder())
    assert outcome.passed, outcome.reason
    assert outcome.inputs == (
        "ids int64 [2, 3]",
        "mask int64 [2, 8]",
        "past_key float32 [2, 2, 5, 4]",
        "shift float16 [2, 3]",
    )
    assert [output.metrics.dtype for output in outcome.outputs] == ["float32", "float32", "int64"]
    wrong = verify(decoder(), decoder(factor=0.0))
    assert {output.name for output in wrong.outputs if not output.passed} >= {"hidden", "key"}
    given = verify(decoder(), decoder(), shapes={"past_key": [1, 2, 0, 4]})
    assert given.passed
    assert "mask int64 [1, 2]" in given.inputs


def test_given_inputs(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    arrays: dict[str, Any] = {
        "x": rng.standard_normal((1, 1, 96)).astype(np.float32),
        "w": np.ones(96, np.float32),
    }
    path = tmp_path / "inputs.npz"
    np.savez(path, **arrays)
    for inputs, origin in ((arrays, "given arrays"), (str(path), str(path))):
        outcome = verify(source(CHAIN), source(FUSED), inputs=inputs)
        assert outcome.passed
        assert (outcome.inputs[0], outcome.source) == ("x float32 [1, 1, 96]", origin)
    half = {name: array.astype(ml_dtypes.bfloat16) for name, array in arrays.items()}
    np.savez(path, x=half["x"], w=half["w"].view(np.uint16))  # as bits, in either form
    model = source(GEMMA, dtype=BFLOAT16)
    assert verify(model, model, inputs=path).passed


@pytest.mark.parametrize(
    "change",
    [
        {"w": None},
        {"extra": np.ones(3)},
        {"x": np.ones((1, 1, 96))},
        {"x": np.ones((1, 1, 95), np.float32)},
        {"x": np.ones((1, 96), np.float32)},
    ],
)
def test_inputs_that_do_not_fit(change: dict[str, Any]) -> None:
    arrays = {"x": np.ones((1, 1, 96), np.float32), "w": np.ones(96, np.float32)} | change
    arrays = {name: array for name, array in arrays.items() if array is not None}
    with pytest.raises(InputError) as caught:
        verify(source(CHAIN), source(CHAIN), inputs=arrays)
    assert next(iter(change)) in f"{caught.value.found} {caught.value.fix}"


def test_unreadable_inputs(tmp_path: Path) -> None:
    model = source(CHAIN)
    single, pickled, broken = (tmp_path / name for name in ("s.npy", "objects.npz", "broken.npz"))
    np.save(single, np.ones(3))
    np.savez(pickled, x=np.array([{}], dtype=object))
    broken.write_bytes(b"PK\x03\x04 no archive")
    for path in (tmp_path / "missing.npz", single, pickled, broken, tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            verify(model, model, inputs=path)


def test_models_with_other_interfaces() -> None:
    a = source(CHAIN)
    cases = [
        (a, source("  z = Mul (x, w)", outputs=("z",)), "lacks outputs"),
        (a, source("  y = Mul (x, h)", inputs=("x", "h")), "takes another input"),
        (a, source("  i = Constant <value_ints = [0]> ()\n  y = Gather (x, i)"), "types or shapes"),
        (parsed("y = Neg (x)", "int64"), parsed("y = Neg (x)", "int32"), "takes another input"),
    ]
    for first, second, words in cases:
        with pytest.raises(VerificationError, match=words):
            verify(first, second)
    # An input that a rewrite made superfluous may go.
    assert verify(source("  y = Abs (x)"), source("  y = Abs (x)", inputs=("x",))).passed


def test_external_data(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    ir.save(decoder(rows=300), path, external_data="weights.bin")
    loaded = ir.load(path)
    assert isinstance(loaded.graph.initializers["table"].const_value, ir.ExternalTensor)
    assert verify(path, loaded).passed
    with pytest.raises(InputError, match="does not know its folder"):
        verify(path, onnx.load(path, load_external_data=False))


def divided(names: Iterable[str]) -> onnx.ModelProto:
    """``y = x / x`` for each input: NaN for zeros."""
    inputs = ", ".join(f"float[n, 3] {name}" for name in names)
    outputs = ", ".join(f"float[n, 3] {name}_y" for name in names)
    nodes = " ".join(f"{name}_y = Div ({name}, {name})" for name in names)
    head = '<ir_version: 9, opset_import: ["" : 17]>'
    return onnx.parser.parse_model(f"{head} g ({inputs}) => ({outputs}) {{ {nodes} }}")


ZEROS, ONES, EMPTY = (np.full((n, 3), value, np.float32) for n, value in ((2, 0), (2, 1), (0, 0)))


@pytest.mark.parametrize(
    ("arrays", "passed", "words"),
    [
        ({"a": ZEROS, "b": ONES}, False, "a_y: no finite number"),
        ({"a": np.eye(2, 3, dtype=np.float32)}, True, ""),  # one finite number is evidence
        ({"a": EMPTY}, False, "no element"),
        ({"a": EMPTY, "b": ONES}, True, ""),  # an empty cache beside what has elements
    ],
)
def test_what_holds_nothing_to_compare_is_no_pass(
    arrays: dict[str, np.ndarray], passed: bool, words: str
) -> None:
    model = divided(arrays)
    outcome = verify(model, model, inputs=arrays)
    assert outcome.passed == passed
    assert words in outcome.reason
    assert outcome.verdict == ("agree" if passed else "not compared")
    assert outcome.first_difference is None


@pytest.mark.parametrize(
    ("kind", "operator"),
    [
        ("double", "Det"),  # ONNX Runtime has it in float32 alone
        ("float", "their.own.Bend"),
    ],
)
def test_what_cannot_be_run_here_neither_agrees_nor_differs(kind: str, operator: str) -> None:
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 22, "their.own" : 1]>
        g ({kind}[2, 2] x) => ({kind} y) {{ y = {operator} (x) }}"""
    )
    outcome = verify(proto, proto)
    assert (outcome.passed, outcome.verdict, outcome.outputs) == (False, "not run", ())
    assert operator.rpartition(".")[2] in outcome.not_run
    error = outcome.error()
    assert error is not None
    assert error.exit_code == ExitCode.NOT_RUN == 7
    assert from_json(to_json(outcome), Verification) == outcome
    assert "could NOT BE RUN here" in outcome.to_text()


def test_a_mask_beside_them_does_not_allow_every_number() -> None:
    """One ten-thousandth of the lowest number of the type is more than all else ever differs by."""

    def masked(factor: float) -> onnx.ModelProto:
        return parsed(
            f"""k = Constant <value = float {{{factor}}}> ()
            zero = Constant <value = float {{0.0}}> ()
            lowest = Constant <value = float {{-3.4028235e38}}> ()
            last = Constant <value_ints = [-1]> ()
            v = Mul (x, k)
            none = Mul (x, zero)
            column = ReduceSum (none, last)
            mask = Add (column, lowest)
            y = Concat <axis = 1> (mask, v)"""
        )

    same = verify(masked(2.0), masked(2.0))
    assert same.passed
    assert same.outputs[0].bound_abs < 1e-2
    outcome = verify(masked(2.0), masked(3.0))
    assert not outcome.passed
    assert outcome.outputs[0].metrics.max_abs > 0.1
    error = outcome.error()
    assert error is not None
    assert error.exit_code == ExitCode.VERIFICATION
