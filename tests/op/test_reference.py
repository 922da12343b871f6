"""The references against PyTorch, the properties of the paper, odd sizes and special values."""

import numpy as np
import pytest
import torch

from rmsnorm_export.op.dtypes import numpy_dtype, type_name
from rmsnorm_export.op.reference import reference_exact, reference_float64
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, NormSpec
from rmsnorm_export.torch.operator.eager import forward
from rmsnorm_export.torch.operator.plan import make_plan
from tests.op.norm_models import Case, reference, steps
from tests.op.torch_arrays import to_numpy, to_torch

SIZES = (1, 3, 111, 199, 4104)
EPSILON = 1e-6


def _inverse(h):
    return torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPSILON)


def _llama(x, w):
    h = x.float()
    return w * (h * _inverse(h)).to(x.dtype)


def _gemma(x, w):
    h = x.float()
    return (h * _inverse(h) * (1.0 + w.float())).to(x.dtype)


def _outside(x, w):
    h = x.float()
    return w * (h / (h.pow(2).mean(-1, keepdim=True).sqrt() + EPSILON)).to(x.dtype)


def _normalize(x, w):
    v = torch.nn.functional.normalize(x.float(), dim=-1, eps=EPSILON * x.shape[-1] ** 0.5)
    return (v * x.shape[-1] ** 0.5).to(x.dtype) * w


def _builtin(x, w):
    return torch.nn.functional.rms_norm(x, w.shape, w, EPSILON)


TORCH = {
    "llama": (_llama, {}),
    "gemma": (_gemma, {"scale_before_cast": True, "scale_offset": 1.0}),
    "rstd": (lambda x, w: x * _inverse(x.float()).to(x.dtype) * w, {"round_rstd": True}),
    "outside": (_outside, {"epsilon_outside": True}),
    "torch.nn.functional.normalize": (_normalize, {"epsilon_clamp": True}),
    "offset in T": (lambda x, w: _llama(x, 1 + w), {"scale_offset": 1.0}),
    "torch.nn.functional.rms_norm": (_builtin, {"scale_before_cast": True}),
    "residual": (_llama, {"kind": "SkipRMSNorm"}),
    "several axes": (_builtin, {"axis": -2, "scale_before_cast": True}),
}


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT], ids=type_name)
@pytest.mark.parametrize("name", TORCH)
def test_exact_reference_agrees_with_torch(name, dtype, n):
    """PyTorch sums in another order and multiplies by rsqrt instead of dividing.

    float32: a sum of n squares in any order is within n * 2**-24 relative, half of that after the
    root, and rsqrt, product and gain add a few roundings. Half types: that difference moves a
    rounding to T across a midpoint now and then, by one step; the product with the gain may turn
    one step of the normalised value into two. Another order of rounding changes over 15 %.
    """
    compute, attributes = TORCH[name]
    case = Case(NormSpec(epsilon=EPSILON, **attributes), dtype, dtype, shape=(2, 8, n))
    operands = case.operands()
    tensors = {name: to_torch(array) for name, array in operands.items()}
    total = tensors["x"] + tensors.get("residual", 0)
    y, *sums = reference(case, operands)
    assert y.dtype == numpy_dtype(dtype)
    expected, count = to_numpy(compute(total, tensors["scale"])), tensors["scale"].numel()
    if dtype == FLOAT:
        np.testing.assert_allclose(y, expected, rtol=(count / 2 + 8) * 2.0**-24, atol=0)
    else:
        distance = steps(y, expected)
        assert distance.max() <= 2
        assert (distance > 0).mean() <= 0.05
    assert all(steps(value, to_numpy(total)).max() == 0 for value in sums)


# Rounding.


def test_float64_reference_rounds_nothing_and_exact_reference_stays_close():
    case = Case(NormSpec(), FLOAT16, FLOAT, FLOAT, shape=(7, 111))
    operands = case.operands()
    plain, (rounded,) = reference_float64(case.spec, **operands), reference(case, operands)
    wide = {name: array.astype(np.float64) for name, array in operands.items()}
    np.testing.assert_array_equal(plain, reference_float64(case.spec, **wide))
    # Cast, gain, product, bias and their operands: five roundings of 2**-11 at magnitude <= 8.
    assert 0 < np.abs(plain - rounded.astype(np.float64)).max() < 5 * 8 * 2.0**-11


def test_scale_of_another_type_is_cast_to_the_type_of_the_product():
    x = np.ones((1, 2), np.float16)
    scale = np.array([1 + 2.0**-12, 1 + 2.0**-11 + 2.0**-13], np.float32)
    after = reference_exact(NormSpec(epsilon=0.0), x, scale)
    np.testing.assert_array_equal(after, np.array([[1, 1 + 2.0**-10]], np.float16))
    # The offset is added to the scale in float32, or to the scale rounded to float16.
    tiny = np.array([2.0**-12, 2.0**-11 + 2.0**-22], np.float32)
    late = NormSpec(epsilon=0.0, scale_before_cast=True, scale_offset=1.0)
    before = reference_exact(late, x, tiny)
    np.testing.assert_array_equal(before, np.array([[1, 1 + 2.0**-10]], np.float16))
    after = reference_exact(NormSpec(epsilon=0.0, scale_offset=1.0), x, tiny)
    np.testing.assert_array_equal(after, np.array([[1, 1]], np.float16))


def test_half_stash_overflows_like_a_runtime():
    x = np.array([[300.0, 1.0], [200.0, 200.0]], np.float16)
    half = reference_exact(NormSpec(stash_type=FLOAT16), x)
    np.testing.assert_array_equal(half, np.array([[0, 0], [1, 1]], np.float16))
    wide = reference_exact(NormSpec(), x)
    assert wide[0, 0] > 1.4


def test_an_infinite_length_is_one_or_the_largest_number():
    x = np.array([[60000, 60000, 0]], np.float16)
    for unit_length, expected in ((1, 0.0), (2, 60000 / 65504)):
        spec = NormSpec(stash_type=FLOAT16, unit_length=unit_length, epsilon=0.0)
        for y in (
            reference_exact(spec, x),
            forward(make_plan(spec, torch.float16), to_torch(x))[0],
        ):
            np.testing.assert_array_equal(y, np.array([[expected, expected, 0]], np.float16))


def test_epsilon_is_a_float32_attribute_unless_used_in_float64():
    x = np.full((1, 1), 2.0**-60)
    for stash, epsilon in ((DOUBLE, 1e-6), (FLOAT, float(np.float32(1e-6)))):
        got = reference_exact(NormSpec(epsilon=1e-6, stash_type=stash), x)
        expected = x / np.sqrt(epsilon)
        np.testing.assert_allclose(got, expected, rtol=2.0**-23 if stash == FLOAT else 2.0**-51)


def test_float64_sum_is_correctly_rounded():
    """1 and a million squares of 2**-27: a naive sum would lose every one of them."""
    x = np.full((1, 2**20), 2.0**-27)
    x[0, 0] = 1.0
    got = reference_exact(NormSpec(epsilon=0.0, stash_type=DOUBLE), x)
    mean = (1 + (2**20 - 1) * 2.0**-54) / 2**20
    assert abs(got[0, 0] * np.sqrt(mean) - 1) <= 2.0**-52


# Special values.


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT, DOUBLE], ids=type_name)
@pytest.mark.parametrize("attributes", [{}, {"scale_before_cast": True}, {"round_rstd": True}])
def test_zero_infinite_and_nan_rows(dtype, attributes):
    stored, nan, inf = numpy_dtype(dtype), np.nan, np.inf
    x = np.array([[0, 0, 0], [inf, 1, 2], [-inf, inf, 2], [nan, 1, 2]]).astype(stored)
    y = reference_exact(NormSpec(**attributes), x, np.ones(3, stored)).astype(np.float64)
    expected = [[0, 0, 0], [nan, 0, 0], [nan, nan, 0], [nan, nan, nan]]
    np.testing.assert_array_equal(y, expected)
    without = reference_exact(NormSpec(epsilon=0.0, **attributes), x[:1])
    assert np.isnan(without.astype(np.float64)).all()
