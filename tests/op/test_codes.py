"""Codes with a scale for each row: the function body against the definition."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest

from rmsnorm_export.op.body import build_function
from rmsnorm_export.op.body_key import BodyKey
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.spec import CODE_TYPES, Quantize, scaled_by
from rmsnorm_export.runtime.session import run_session

PER_ROW: tuple[Quantize, ...] = ("int8_per_row", "fp8_per_row")


def reference_codes(y: Array, how: Quantize, step: float = 0.0) -> tuple[Array, ...]:
    """Codes of the norm ``y`` and, where they are not given, their scales: as in ``QUANTIZE``."""
    with np.errstate(all="ignore"):
        wide, name = y.astype(np.float32), how.partition("_")[0]
        largest = np.float32(CODE_TYPES[name][1])
        scales: tuple[Array, ...] = ()
        by: Any = np.float32(step)
        if scaled_by(how) == "row":
            by = np.abs(wide).max(axis=-1, keepdims=True) / largest
            by[by == 0] = 1
            scales = (by,)
        quotient = wide / by
        if name == "fp8":
            codes = np.clip(quotient, -448, 448).astype(ml_dtypes.float8_e4m3fn)
        else:  # of NaN 0 where the scale says so, else -128, as ONNX Runtime has it on x86
            of_nan = 0 if scales else -128
            whole = np.where(np.isnan(quotient), of_nan, np.clip(np.rint(quotient), -128, 127))
            codes = whole.astype(np.int8)
    return codes, *scales


def same(a: Array, b: Array) -> bool:
    """To the bit, but for the sign of NaN, which depends on the processor."""
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    if a.dtype.kind in "iu":
        return np.array_equal(a, b)
    nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    bits = f"u{a.itemsize}"
    return bool((nan | (a.view(bits) == b.view(bits))).all())


def at_every_place(n: int, dtype: Any = np.float32) -> Array:
    """Rows of numbers behind a 1, with one at each place in turn, or two, that are none."""
    x = np.random.default_rng(n).normal(0, 2, (4, n - 1, n)).astype(dtype)
    places = np.arange(1, n)
    for rows, number in zip(x, (np.nan, np.inf, -np.inf, np.nan), strict=True):
        rows[places - 1, places] = number
    x[3, :, n // 2] = np.inf
    x[..., 0] = 1
    return x


def body_model(how: Quantize, opset: int) -> bytes:
    """Of a norm that changes nothing but to divide by 1: partial_size 1, of 1."""
    key = BodyKey(has_scale=False, partial_size=1, quantize=how)
    function = ir.serde.serialize_function(build_function("Q", key, opset))
    output = "int8[] q" if "int8" in how else "float[] codes"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}, "rmsnorm_export" : 1]>'
        f" g (float[] x) => ({output}, float[] scales) {{"
        " q, scales = rmsnorm_export.Q <epsilon = 0.0> (x)  codes = Cast <to = 1> (q) }"
    )
    model.functions.append(function)
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("how", "opset"),
    [*((PER_ROW[0], opset) for opset in (13, 17, 19, 23)), (PER_ROW[1], 19), (PER_ROW[1], 23)],
)
def test_a_row_has_what_it_has_wherever_it_is(how: Quantize, opset: int) -> None:
    """ONNX Runtime's ReduceMax drops a NaN that is not the first of its row."""
    session = onnxruntime.InferenceSession(body_model(how, opset))
    for n in (2, 3, 9, 33):
        x = at_every_place(n)
        codes, scales = reference_codes(x, how)
        computed, own = run_session(session, {"x": x}).values()
        assert same(own, scales)
        assert same(computed, codes.astype(computed.dtype))
