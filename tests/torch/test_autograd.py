"""Gradients: of the eager definition in float64, of every attribute, first and second order."""

from __future__ import annotations

import pytest
import torch

import rmsnorm_export.torch as rt
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, NormSpec
from rmsnorm_export.torch.dtypes import TORCH_TYPES
from tests.sample import crossed
from tests.torch.norm_cases import FORMS, case_of, spec_of, tensors


def _leaves(spec: NormSpec, *parameters: int | None, n: int = 6) -> dict[str, torch.Tensor]:
    operands = tensors(case_of(spec, *parameters, shape=(2, 2, n)))
    return {name: value.requires_grad_() for name, value in operands.items()}


@crossed(3, form=[*FORMS], parameters=[(DOUBLE, None), (DOUBLE, DOUBLE), (None, None)])
def test_first_and_second_derivatives(form, parameters):
    if parameters[0] is None and "scale_offset" in FORMS[form]:
        parameters = (DOUBLE, DOUBLE)
    spec = spec_of(form, 6, stash_type=DOUBLE)
    leaves = _leaves(spec, DOUBLE, *parameters)

    def function(*values):
        return rt.call(spec, **dict(zip(leaves, values, strict=True)))

    assert torch.autograd.gradcheck(function, [*leaves.values()])
    assert torch.autograd.gradgradcheck(function, [*leaves.values()])


@pytest.mark.parametrize("n", [9, 111, 4104])
@pytest.mark.parametrize("dtype", [FLOAT, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("form", [form for form in FORMS if form != "odd offset"])
def test_gradients_in_every_type_are_as_accurate_as_the_type(form, dtype, n):
    """Each is computed in float32 and rounded once, to the type of its tensor: against float64."""
    spec = spec_of(form, n)
    leaves = _leaves(spec, dtype, dtype, FLOAT, n=n)
    wide = {name: value.detach().double().requires_grad_() for name, value in leaves.items()}
    if "residual" in leaves:  # the norm's input is the sum rounded to T: take the formula there
        total = (leaves["x"] + leaves["residual"]).detach().double() / 2
        wide |= {name: total.clone().requires_grad_() for name in ("x", "residual")}
    gradients = []
    for operands, stash in ((leaves, FLOAT), (wide, DOUBLE)):
        y = rt.call(spec_of(form, n, stash_type=stash), **operands)
        y = y[0] if isinstance(y, tuple) else y
        upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(n))
        upstream = upstream.to(TORCH_TYPES[dtype]).to(y.dtype)
        gradients.append(torch.autograd.grad(y, list(operands.values()), upstream))
    unit = {FLOAT: 2.0**-24, FLOAT16: 2.0**-11, BFLOAT16: 2.0**-8}
    for name, value, right in zip(leaves, *gradients, strict=True):
        assert (value.dtype, value.shape) == (leaves[name].dtype, leaves[name].shape)
        # Half an ulp of the result, and a few n * 2**-24 of the largest terms for the sums.
        own = unit[FLOAT if name == "bias" else dtype]
        slack = (n / 2 + 64) * 2.0**-24 * right.abs().max().item()
        error = (value.double() - right).abs()
        assert (error <= own * right.abs() + slack + 2.0**-25).all(), name


@pytest.mark.parametrize("form", ["plain", "outside", "clamp", "partial", "group", "skip"])
def test_a_row_of_zeros_has_the_gradient_of_the_limit(form):
    """Near zero the norm is a / sqrt(epsilon) (or a / epsilon), never NaN."""
    epsilon = 0.25
    spec = spec_of(form, 6, stash_type=DOUBLE, epsilon=epsilon)
    x = torch.zeros(1, 6, dtype=torch.float64, requires_grad=True)
    more = {"residual": torch.zeros_like(x)} if form == "skip" else {}
    y = rt.call(spec, x, **more)
    (gradient,) = torch.autograd.grad((y[0] if form == "skip" else y).sum(), x)
    slope = 1 / epsilon if form in ("outside", "clamp") else epsilon**-0.5
    torch.testing.assert_close(gradient, torch.full_like(x, slope), rtol=1e-14, atol=0)


@pytest.mark.parametrize("skip", [False, True])
def test_only_operands_are_saved(skip):
    """Memory between forward and backward: what was normalised, scale, and nothing computed."""
    saved = []
    x, residual = torch.randn(2, 8, 111, requires_grad=True).unbind()
    scale = torch.randn(111, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        total = rt.skip_rms_norm(x, residual, scale)[1] if skip else x
        _ = skip or rt.rms_norm(x, scale)
    assert {t.data_ptr() for t in saved} == {total.data_ptr(), scale.data_ptr()}


def test_gradients_of_a_half_stash_type_do_not_overflow():
    """They are computed in float32: a sum of 4096 products in float16 would be infinite."""
    x = (torch.randn(4, 4096) * 10).half().requires_grad_()
    scale = torch.full((4096,), 100.0).half().requires_grad_()
    y = rt.rms_norm(x, scale, stash_type=FLOAT16)
    for gradient in torch.autograd.grad(y, (x, scale), torch.full_like(y, 8.0)):
        assert torch.isfinite(gradient).all()
        assert gradient.abs().max() > 0
