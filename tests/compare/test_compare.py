"""Whole models: what passes, what fails and why, and what cannot be compared."""

from __future__ import annotations

import itertools
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
from rmsnorm_export.op.dtypes import numpy_dtype
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16
from rmsnorm_export.records import from_json, to_json
from rmsnorm_export.runtime.metrics import compare_arrays
from rmsnorm_export.show import headline_of
from tests.tools.tables import table

from .broken import fill

CHAIN = "{core}\n  y = Mul (v, w)"
FUSED = "  y = SimplifiedLayerNormalization <epsilon = 0.000001> (x, w)"

DECODER = table(__file__)["decoder"]


def decoder(factor: float = 1.0) -> ir.Model:
    """Ids into a short table, a mask as long as cache and sequence together."""
    model, rng = ir.from_onnx_text(DECODER), np.random.default_rng(0)
    # As the exporters name it; the text form has no expressions.
    model.graph.inputs[1].shape = ir.Shape(["batch", "past + sequence"])
    fill(model, {"table": factor * rng.standard_normal((3, 8)).astype(np.float32)})
    return model


def parsed(body: str, kind: str = "float") -> onnx.ModelProto:
    """A model from ``x`` to ``y`` of one type."""
    return onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18, "their.own" : 1]>'
        f" g ({kind}[n, 4] x) => ({kind}[n, m] y) {{ {body} }}"
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
    (output,) = outcome.outputs
    assert (output.name, output.metrics.dtype) == ("y", str(ir.DataType(dtype).numpy()))
    assert outcome.inputs[0].endswith("[2, 3, 96]")
    assert outcome.runtime.startswith("onnxruntime ")


def test_bounds() -> None:
    a = source("  y = Mul (x, w)")
    b = source("  c = Constant <value_float = 0.00001> ()\n  p = Mul (x, w)\n  y = Add (p, c)")
    for options, passed in (
        ({}, True),
        ({"rtol": 1e-7}, False),
        ({"rtol": 0.0, "atol": 9e-6}, False),
        ({"rtol": 0.0, "atol": 2e-5}, True),
    ):
        outcome = verify(a, b, **options)
        assert outcome.passed == passed, options
    assert outcome.outputs[0].bound_abs == 2e-5
    root = source("  y = Sqrt (x)"), source("  p = Abs (x)\n  y = Sqrt (p)")
    for pair, words in (((a, source("  y = Mul (x, x)")), "y: largest difference"),
                        (root, "NaN or infinities")):  # fmt: skip
        wrong = verify(*pair)
        assert (wrong.passed, wrong.verdict) == (False, "differ")
        assert words in wrong.reason
    for bad in ({"rtol": -1.0}, {"atol": float("nan")}, {"rtol": float("inf")}):
        with pytest.raises(UsageError):  # a bound that nothing exceeds is no bound
            verify(a, a, **bad)


def test_random_inputs_fit_a_decoder() -> None:
    outcome = verify(decoder(), decoder())
    assert outcome.passed, outcome.reason
    sizes = ("ids int64 [2, 3]", "mask int64 [2, 8]", "past_key float32 [2, 2, 5, 4]")
    assert outcome.inputs == sizes
    assert [output.metrics.dtype for output in outcome.outputs] == ["float32", "float32", "int64"]
    wrong = verify(decoder(), decoder(factor=0.0))
    assert {output.name for output in wrong.outputs if not output.passed} >= {"hidden", "key"}
    without_cache = verify(decoder(), decoder(), shapes={"past_key": [1, 2, 0, 4]})
    assert without_cache.passed
    assert "mask int64 [1, 2]" in without_cache.inputs


ARRAYS = {"x": np.random.default_rng(5).standard_normal((1, 1, 96)).astype(np.float32)}
ARRAYS["w"] = np.ones(96, np.float32)


GROUPED = """<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
grouped (float[b, s, 32] x, float[b, s, 16] k, float[b, s, 16] v, float[b, 2, p, 8] past_k,
         float[b, 2, p, 8] past_v, int32[b] seqlens, int32 total)
  => (float[b, s, 32] y, float[b, 2, t, 8] key, float[b, 2, t, 8] value) {
  q = Relu (x)
  y, key, value = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2>
    (q, k, v, past_k, past_v, seqlens, total)
}"""


@pytest.mark.parametrize(
    ("dims", "words"),
    [
        (None, "past_k float32 [1, 2, 5, 8]"),
        ("b=2 s=3 p=0", "past_k float32 [2, 2, 0, 8]"),
        ("b=2 s=1 p=6", "past_k float32 [2, 2, 6, 8]"),
    ],
)
def test_inputs_that_count_tokens_are_as_many_as_the_shapes_have(
    dims: str | None, words: str
) -> None:
    """ONNX Runtime refuses every other number, and most pairs of random ones."""
    outcome = verify(ir.from_onnx_text(GROUPED), ir.from_onnx_text(GROUPED), dims=dims)
    assert outcome.passed
    assert words in outcome.inputs


def test_what_the_first_model_takes_in_no_size_was_not_run() -> None:
    model = ir.from_onnx_text(GROUPED)
    with pytest.raises(VerificationError, match="batch_size must be 1") as caught:
        verify(model, model, dims="b=2 s=3 p=4")
    assert caught.value.exit_code == ExitCode.NOT_RUN


def test_given_inputs(tmp_path: Path) -> None:
    path = tmp_path / "inputs.npz"
    np.savez(path, **ARRAYS)
    for inputs, origin in ((ARRAYS, "given arrays"), (str(path), str(path))):
        outcome = verify(source(CHAIN), source(FUSED), inputs=inputs)
        assert outcome.passed
        assert (outcome.inputs[0], outcome.source) == ("x float32 [1, 1, 96]", origin)
    half = {name: array.astype(ml_dtypes.bfloat16) for name, array in ARRAYS.items()}
    np.savez(path, x=half["x"], w=half["w"].view(np.uint16))  # as bits, in either form
    model = source(GEMMA, dtype=BFLOAT16)
    assert verify(model, model, inputs=path).passed


def test_inputs_that_do_not_fit() -> None:
    x, w = ARRAYS.values()
    wrong = (x.astype(float), x[..., :95], x[0])  # type, size, rank
    cases = [({"x": x}, "w"), ({**ARRAYS, "extra": w}, "extra")]
    cases += [({"x": one, "w": w}, "x") for one in wrong]
    for arrays, name in cases:
        with pytest.raises(InputError) as caught:
            verify(source(CHAIN), source(CHAIN), inputs=arrays)
        assert name in f"{caught.value.found} {caught.value.fix}"
    scalar = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float x) => (float y) { y = Abs (x) }'
    )
    with pytest.raises(InputError) as caught:
        verify(scalar, scalar, inputs={"x": np.ones(3, np.float32)})
    assert caught.value.found == "'x' is float32 [3], the model takes 'x' float32 []"


def test_models_with_other_interfaces() -> None:
    a = source(CHAIN)
    for first, second, words in (
        (a, source("  z = Mul (x, w)", outputs=("z",)), "lacks outputs"),
        (a, source("  i = Constant <value_ints = [0]> ()\n  y = Gather (x, i)"), "types or shapes"),
    ):
        with pytest.raises(VerificationError, match=words):
            verify(first, second)
    for first, second, words in (
        (a, source("  y = Mul (x, h)", inputs=("x", "h")), "A has no such 'h' as B"),
        (parsed("y = Neg (x)", "int64"), parsed("y = Neg (x)", "int32"), "A has no such 'x' as B"),
    ):
        with pytest.raises(UsageError, match=words):
            verify(first, second)
    # An input that a rewrite made superfluous may go.
    assert verify(source("  y = Abs (x)"), source("  y = Abs (x)", inputs=("x",))).passed


DIVIDED = onnx.parser.parse_model(
    """<ir_version: 9, opset_import: ["" : 17]>
    g (float[n, 3] a, float[m, 3] b) => (float[n, 3] a_y, float[m, 3] b_y) {
      a_y = Div (a, a)  b_y = Div (b, b) }"""
)
ZEROS, ONES, EMPTY = (np.full((n, 3), value, np.float32) for n, value in ((2, 0), (2, 1), (0, 0)))


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (ZEROS, ONES, "a_y: no finite number"),
        (np.eye(2, 3, dtype=np.float32), ONES, ""),  # one finite number is evidence
        (EMPTY, EMPTY, "no element"),
        (EMPTY, ONES, ""),  # an empty cache beside what has elements
    ],
)
def test_what_holds_nothing_to_compare_is_no_pass(a: Any, b: Any, words: str) -> None:
    """The verdict counts what is no number, also where both models have it."""
    outcome = verify(DIVIDED, DIVIDED, inputs={"a": a, "b": b})
    nans = int((a == 0).sum())
    assert (outcome.outputs[0].nan, outcome.outputs[0].inf) == ((nans, nans), (0, 0))
    assert headline_of(outcome).endswith(f"; a_y: {nans} NaN" if nans else "within bounds")
    assert outcome.verdict == ("not compared" if words else "agree")
    assert (outcome.passed, outcome.first_difference) == (not words, None)
    assert words in outcome.reason


@pytest.mark.parametrize(
    ("kind", "node", "operator"),
    [
        ("double", "Det (x)", "Det"),  # ONNX Runtime has it in float32 alone
        ("bfloat16", "MatMul (x, x)", "MatMul"),
        ("float", "their.own.Bend (x)", "Bend"),
    ],
)
def test_what_cannot_be_run_neither_agrees_nor_differs(kind: str, node: str, operator: str) -> None:
    """Whichever of the two models it is."""
    odd, fine = parsed(f"y = {node}", kind), parsed("y = Neg (x)")
    for pair in ((odd, odd), (odd, fine), (fine, odd)):
        outcome = verify(*pair, shapes={"x": [4, 4]})
        assert (outcome.passed, outcome.verdict, outcome.outputs) == (False, "not run", ())
        assert operator in outcome.not_run
        assert outcome.error().exit_code == ExitCode.NOT_RUN == 7
        assert from_json(to_json(outcome), Verification) == outcome
        assert "could NOT BE RUN here" in outcome.to_text()


def test_infinities_are_counted_on_both_sides() -> None:
    x = np.array([[3e38, 1, 2, 3]], np.float32)
    twice = parsed("y = Add (x, x)")
    outcome = verify(twice, twice, inputs={"x": x})
    assert (outcome.verdict, outcome.outputs[0].inf) == ("agree", (1, 1))
    assert headline_of(outcome).endswith("; y: 1 infinite")
    assert from_json(outcome.to_json(), Verification) == outcome
    kept = verify(twice, parsed("y = Max (x, x)"), inputs={"x": x})
    assert headline_of(kept).endswith("; y: 1 and 0 infinite")
    assert "do NOT agree" in kept.to_text(verbose=1)


def test_a_mask_beside_them_does_not_allow_every_number() -> None:
    """One ten-thousandth of the lowest number of the type is more than all else ever differs by."""

    def masked(factor: float) -> onnx.ModelProto:
        return parsed(
            f"""k = Constant <value = float {{{factor}}}> ()
            lowest = Constant <value = float[1, 1] {{-3.4028235e38}}> ()
            v = Mul (x, k)
            y = Concat <axis = 1> (lowest, v)"""
        )

    one_row: Any = {"shapes": {"x": [1, 4]}}
    same = verify(masked(2.0), masked(2.0), **one_row)
    assert same.passed
    assert same.outputs[0].bound_abs < 1e-2
    outcome = verify(masked(2.0), masked(3.0), **one_row)
    assert not outcome.passed
    assert outcome.outputs[0].metrics.max_abs > 0.1
    assert outcome.error().exit_code == ExitCode.VERIFICATION


ROUGH = {FLOAT16: 1e-2, FLOAT: 1e-4, DOUBLE: 1e-9}


@pytest.mark.parametrize(("a", "b"), [*itertools.permutations(ROUGH, 2)])
def test_two_types_of_one_model_agree_and_of_another_differ(a: int, b: int) -> None:
    """The bound is that of the narrower type, and says so; a wrong epsilon is still seen."""
    first, second = (source(LLAMA, dtype=dtype) for dtype in (a, b))
    outcome = verify(first, second)
    assert outcome.passed, outcome.reason
    (output,) = outcome.outputs
    assert f"the narrower of {numpy_dtype(a)} and {numpy_dtype(b)}" in output.tolerance
    assert 0.3 < output.bound_abs / max(ROUGH[a], ROUGH[b]) < 10  # the largest element
    assert 0 < output.metrics.max_abs < output.bound_abs
    wrong = verify(first, source(LLAMA, dtype=b, epsilon=0.3))
    assert (wrong.verdict, wrong.first_difference.value) == ("differ", "a")


def test_the_reference_is_the_wider_one_whichever_side_it_is_on() -> None:
    wide = np.array([1.0, 1.0 + 2**-12, 3.0, 70000.0], np.float32)
    narrow = wide[:3].astype(np.float16)
    for a, b in ((narrow, wide[:3]), (wide[:3], narrow)):
        metrics = compare_arrays(a, b)
        assert (metrics.dtype, metrics.max_abs) == ("float16", 2**-12)
        assert metrics.max_ulp == 0.25  # of float16, whose gap at 1 is 2**-10
        assert (metrics.mismatch, metrics.nan_inf_agree) == (0.0, True)
    with np.errstate(over="ignore"):
        beyond = compare_arrays(wide.astype(np.float16), wide)
    assert (beyond.nan_inf_agree, beyond.max_ulp) == (False, np.inf)


def test_inputs_that_the_narrower_type_does_not_hold_are_no_pass() -> None:
    inputs = ARRAYS | {"x": np.full((1, 1, 96), 1e6, np.float32)}
    wide, narrow = (source(LLAMA, dtype=dtype) for dtype in (FLOAT, FLOAT16))
    assert verify(wide, wide, inputs=inputs).passed
    assert verify(wide, narrow, inputs=inputs).verdict == "differ"
