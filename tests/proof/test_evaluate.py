"""The NumPy evaluators: declared types against ONNX Runtime, float64 against the mathematics."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from proof.sites import LLAMA, source
from rmsnorm_export.errors import InputError
from rmsnorm_export.op.dtypes import numpy_dtype
from rmsnorm_export.op.reference import reference_exact
from rmsnorm_export.op.spec import BFLOAT16, FLOAT16, NormSpec
from rmsnorm_export.proof.evaluate import run_float64, run_numpy
from rmsnorm_export.runtime.session import NoKernelError, run_onnxruntime
from tests.tools.tables import table

ONE_EACH: dict[str, str] = table(__file__)
EXTRA = ", int64[1] i0 = {0}, int64[1] n = {96}, int64[2] turned = {1, 0}"
EXTRA += ", int64[4] quads = {0, 0, -1, 4}"


@pytest.mark.parametrize("name", ONE_EACH)
def test_operators_agree_with_onnxruntime(name: str) -> None:
    model = source("  " + ONE_EACH[name], extra=EXTRA)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 3, 96)), rng.uniform(0.5, 2, 96)
    feeds = {"x": x.astype(np.float32), "w": w.astype(np.float32)}
    expected = run_onnxruntime(model, feeds)["y"]
    output = run_numpy(model, feeds)["y"]
    assert output.dtype == expected.dtype
    # Sigmoid apart (an approximation there), a few units of roundoff.
    np.testing.assert_allclose(output, expected, rtol=5e-6 if name == "Sigmoid" else 1e-6)
    wide = run_float64(model, feeds).outputs["y"]
    assert wide.dtype == np.float64
    np.testing.assert_allclose(output, wide, rtol=1e-6)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
@pytest.mark.parametrize("name", ["Max", "Reshape", "Transpose", "Concat"])
def test_what_moves_or_chooses_elements_rounds_nothing(name: str, dtype: int) -> None:
    model, rng = source("  " + ONE_EACH[name], extra=EXTRA, dtype=dtype), np.random.default_rng(3)
    kind = numpy_dtype(dtype)
    feeds = {"x": rng.standard_normal((2, 3, 96)).astype(kind), "w": np.ones(96, kind)}
    output = run_numpy(model, feeds)["y"]
    assert output.dtype == kind
    np.testing.assert_array_equal(output.astype(np.float64), run_float64(model, feeds).outputs["y"])


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
@pytest.mark.parametrize("n", [1, 96, 199])
def test_every_declared_rounding_is_there(dtype: int, n: int) -> None:
    model = source(LLAMA, dtype=dtype, n=n)
    rng, kind = np.random.default_rng(1), numpy_dtype(dtype)
    x, w = rng.standard_normal((4, 3, n)).astype(kind), rng.uniform(0.5, 2, n).astype(kind)
    expected = reference_exact(NormSpec(epsilon=1e-6), x, w)
    np.testing.assert_array_equal(run_numpy(model, {"x": x, "w": w})["y"], expected)


def test_a_mean_exists_where_the_sum_is_beyond_the_type() -> None:
    x, w = np.full((1, 1, 96), 1e19, np.float32), np.ones(96, np.float32)
    expected = reference_exact(NormSpec(epsilon=1e-6), x, w)
    assert np.all(expected == 1)
    np.testing.assert_array_equal(run_numpy(source(LLAMA), {"x": x, "w": w})["y"], expected)


def test_onnxruntime_has_no_bfloat16_chain_but_runs_the_fused_node() -> None:
    bfloat16 = ml_dtypes.bfloat16
    feeds = {"x": np.ones((2, 3, 96), bfloat16), "w": np.full(96, 1.5, bfloat16)}
    with pytest.raises(NoKernelError):
        run_onnxruntime(source(LLAMA, dtype=BFLOAT16), feeds)
    fused = source("  y = SimplifiedLayerNormalization (x, w)", dtype=BFLOAT16)
    output = run_onnxruntime(fused, feeds)["y"]
    assert output.dtype == bfloat16
    assert np.all(output == bfloat16(1.5))
    np.testing.assert_array_equal(output, run_numpy(fused, feeds)["y"])


def test_float64_rounds_nothing_but_constants() -> None:
    rng = np.random.default_rng(2)
    x, w = 300 * rng.standard_normal((2, 96)), rng.standard_normal(96)
    output = run_float64(source(LLAMA, dtype=FLOAT16), {"x": x, "w": w}).outputs["y"]
    root = np.sqrt(np.mean(x * x, -1, keepdims=True) + float(np.float32(1e-6)))
    np.testing.assert_allclose(output, x / root * w, rtol=1e-14)
    body = "  wide = Constant <value_float = 0.000001> ()\n  small = Cast <to = 10> (wide)\n"
    body += "  like = CastLike (wide, x)\n  s = Add (x, small)\n  y = Add (s, like)"
    zeros = {"x": np.zeros((1, 1, 96), np.float16), "w": np.zeros(96, np.float16)}
    result = run_float64(source(body, dtype=FLOAT16), zeros)
    np.testing.assert_array_equal(result.outputs["y"], 2 * float(np.float16(1e-6)))
    assert {str(constant.dtype) for constant in result.constants} == {"float16"}


def test_functions_see_the_attributes_of_their_caller() -> None:
    """Of another opset than the model, and with an output that the caller omits."""
    text = """<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
    main (float[4] x) => (float[4] y) { t = local.Shift <by = 2.5> (x)
      y = local.Shift (t) }
    <domain: "local", opset_import: ["" : 17]>
    Shift <by: float = 1.0> (x) => (y, z) {
      z = Abs (x)
      c = Constant <value_float: float = @by> ()
      y = Add (x, c)
    }"""
    output = run_numpy(ir.from_onnx_text(text), {"x": np.zeros(4, np.float32)})["y"]
    assert output.tolist() == [3.5] * 4


def test_an_output_that_is_omitted_does_not_move_those_after_it() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]> main (float[2, 4] x, float[4] w) => '
        "(float[2, 4] y, float[2, 1] inverse) { y, mean, inverse = LayerNormalization (x, w) }"
    )
    model.graph.node[0].output[1] = ""
    rng = np.random.default_rng(3)
    feeds = {"x": rng.standard_normal((2, 4)), "w": rng.standard_normal(4)}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    computed, expected = (run(ir.from_proto(model), feeds) for run in (run_numpy, run_onnxruntime))
    for name, array in expected.items():
        np.testing.assert_allclose(computed[name], array, rtol=1e-5)


@pytest.mark.parametrize(
    ("body", "message"),
    [("  y = Neg (x, w)", "cannot be evaluated"), ("  y = NoSuchOperator (x)", "NoSuchOperator"),
     ("  g = Constant <value_ints = [7, -1]> ()\n  y = Reshape (x, g)", "Reshape")],
)  # fmt: skip
def test_what_cannot_be_evaluated_is_said(body: str, message: str) -> None:
    feeds = {"x": np.zeros((2, 1, 96), np.float32), "w": np.zeros(96, np.float32)}
    with pytest.raises(InputError, match=message):
        run_numpy(source(body), feeds)


def test_loops_in_loops_are_bounded_without_elements() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        g (float[0] x) => (float[0] y) {
          n = Constant <value_int = 4000> () t = Constant <value = bool {1}> ()
          y = Loop (n, t, x) <body = outer (int64 i, bool c, float[0] s) => (bool c2, float[0] r) {
            c2 = Identity (c)
            r = Loop (n, t, s) <body = inner (int64 j, bool d, float[0] u) => (bool d2, float[0] v)
              { d2 = Identity (d) v = Identity (u) }>
          }>
        }""")
    with pytest.raises(InputError, match="more than a proof computes"):
        run_float64(ir.from_proto(model), {"x": np.ones(0)}, most=1 << 20)
