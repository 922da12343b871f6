"""Gradients: the paper's, for every variant, first and second order; eager, saved memory, types."""

from __future__ import annotations

import pytest
import torch

import rmsnorm_export.torch as rt
from rmsnorm_export.op.dtypes import round_to
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, NormSpec
from rmsnorm_export.torch.operator.plan import make_plan
from tests.sample import crossed
from tests.torch.norm_cases import FORMS, Case, spec_of, tensors, torch_type

OPS = torch.ops.rmsnorm_export
NAMES = ("x", "residual", "gate", "scale", "bias")


def _operands(spec: NormSpec, n: int, *, scale: bool = True, bias: bool = False):
    case = Case(spec, DOUBLE, DOUBLE if scale else None, DOUBLE if bias else None)
    return tensors(case, (2, 2, n), exact=False)


def _function(spec: NormSpec, names: list[str]):
    return lambda *values: rt.call(spec, **dict(zip(names, values, strict=True)))


@crossed(3, form=[*FORMS], parameters=[(True, False), (True, True), (False, False)])
def test_first_and_second_derivatives(form, parameters):
    scale, bias = parameters
    if not scale and "scale_offset" in FORMS[form]:
        scale = bias = True
    spec = spec_of(form, 6, stash_type=DOUBLE)
    operands = _operands(spec, 6, scale=scale, bias=bias)
    values = [value.requires_grad_() for value in operands.values()]
    function = _function(spec, list(operands))
    assert torch.autograd.gradcheck(function, values)
    assert torch.autograd.gradgradcheck(function, values)


@pytest.mark.parametrize("form", FORMS)
def test_each_operand_alone(form):
    """The gradient of one operand does not need those of the others."""
    spec = spec_of(form, 6, stash_type=DOUBLE)
    operands = _operands(spec, 6, bias=True)
    for chosen in operands:
        leaves = {name: value.detach().clone() for name, value in operands.items()}
        leaves[chosen].requires_grad_()
        function = lambda value, leaves=leaves, chosen=chosen: rt.call(  # noqa: E731
            spec, **{**leaves, chosen: value}
        )
        assert torch.autograd.gradcheck(function, [leaves[chosen]])


def _by_autograd(spec, operands, upstream, offset):
    """Gradients of the plain formula in float64, taken by PyTorch."""
    leaves = {name: value.detach().double().requires_grad_() for name, value in operands.items()}
    row = leaves["x"] + leaves["residual"] if "residual" in leaves else leaves["x"]
    activation = None
    if "gate" in leaves:
        activation = torch.sigmoid(leaves["gate"])
        if spec.activation == "silu":
            activation = leaves["gate"] * activation
    if spec.gate_first:
        row = row * activation
    shape = row.shape
    if spec.group_size:
        row = row.unflatten(-1, (-1, spec.group_size))
    part = row[..., : spec.partial_size or None]
    mean = part.square().mean(list(range(spec.axis, 0)), keepdim=True)
    outside = spec.epsilon if spec.epsilon_outside else 0
    rms = torch.sqrt(mean + spec.epsilon - outside) + outside
    if spec.epsilon_clamp:
        rms = mean.sqrt().clamp_min(spec.epsilon)
    y = (row / rms).reshape(shape) * (offset + leaves["scale"]) + leaves["bias"]
    if activation is not None and not spec.gate_first:
        y = y * activation
    return torch.autograd.grad(y, list(leaves.values()), upstream.double())


@pytest.mark.parametrize("n", [9, 111, 4104])
@pytest.mark.parametrize("dtype", [FLOAT, FLOAT16, BFLOAT16])
@pytest.mark.parametrize("form", FORMS)
def test_gradients_in_every_type_are_as_accurate_as_the_type(form, dtype, n):
    """Each gradient is computed in float32 and rounded once, to the type of its tensor."""
    spec = spec_of(form, n)
    operands = tensors(Case(spec, dtype, dtype, FLOAT), (2, 3, n), exact=False)
    leaves = {name: value.requires_grad_() for name, value in operands.items()}
    y = rt.call(spec, **leaves)
    y = y[0] if isinstance(y, tuple) else y
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(n)).to(y.dtype)
    got = torch.autograd.grad(y, list(leaves.values()), upstream)
    offset = float(round_to(spec.scale_offset, dtype))
    expected = _by_autograd(spec, operands, upstream, offset)
    if "residual" in leaves:
        # The norm's input is the sum rounded to T; take the formula there.
        total = (leaves["x"] + leaves["residual"]).detach().double() / 2
        halves = {**operands, "x": total, "residual": total}
        expected = _by_autograd(spec, halves, upstream, offset)
    unit = {FLOAT: 2.0**-24, FLOAT16: 2.0**-11, BFLOAT16: 2.0**-8}
    for name, value, right in zip(leaves, got, expected, strict=True):
        assert value.dtype == leaves[name].dtype
        assert value.shape == leaves[name].shape
        # Half an ulp of the result, and a few n * 2**-24 of the largest terms for the sums.
        own = unit[FLOAT if name == "bias" else dtype]
        slack = (n / 2 + 64) * 2.0**-24 * right.abs().max().item()
        error = (value.double() - right).abs()
        assert (error <= own * right.abs() + slack + 2.0**-25).all(), name


@pytest.mark.parametrize("form", ["plain", "outside", "partial", "grouped", "skip", "gated"])
def test_a_row_of_zeros_has_the_gradient_of_the_limit(form):
    """Near zero the norm is a / sqrt(epsilon) (or a / epsilon outside), never NaN."""
    epsilon = 0.25
    spec = spec_of(form, 6, stash_type=DOUBLE, epsilon=epsilon)
    x = torch.zeros(1, 6, dtype=torch.float64, requires_grad=True)
    given = {"residual": torch.zeros_like(x)} if form == "skip" else {}
    given |= {"gate": torch.full_like(x, 2.0)} if form == "gated" else {}
    y = rt.call(spec, x, **given)
    (gradient,) = torch.autograd.grad((y[0] if form == "skip" else y).sum(), x)
    slope = 1 / epsilon if form == "outside" else epsilon**-0.5
    slope *= 2 / (1 + torch.exp(torch.tensor(-2.0, dtype=torch.float64))) if form == "gated" else 1
    torch.testing.assert_close(gradient, torch.full_like(x, float(slope)), rtol=1e-14, atol=0)


def test_only_operands_are_saved():
    """Memory between forward and backward: x, scale, and nothing that was computed."""
    saved = []
    x = torch.randn(8, 111, requires_grad=True)
    scale = torch.randn(111, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        rt.rms_norm(x, scale)
    assert {t.data_ptr() for t in saved} == {x.data_ptr(), scale.data_ptr()}
    saved.clear()
    residual = torch.randn(8, 111, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        _, total = rt.skip_rms_norm(x, residual, scale)
    assert {t.data_ptr() for t in saved} == {total.data_ptr(), scale.data_ptr()}


def test_the_residual_sum_passes_its_gradient_on():
    """Both outputs of skip_rms_norm, one of them, or the other."""
    x, residual, up_y, up_sum = torch.randn(4, 3, 7, dtype=torch.float64)
    for use_y, use_sum in ((1, 1), (1, 0), (0, 1)):
        leaves = [x.clone().requires_grad_(), residual.clone().requires_grad_()]
        y, total = rt.skip_rms_norm(*leaves, stash_type=DOUBLE)
        loss = (y * up_y).sum() * use_y if use_y else 0
        loss = loss + ((total * up_sum).sum() if use_sum else 0)
        got = torch.autograd.grad(loss, leaves)
        total = (x + residual).requires_grad_()
        y = torch.nn.functional.rms_norm(total, (7,), None, 1e-5)
        expected = torch.autograd.grad((y * up_y).sum(), total)[0] * use_y + up_sum * use_sum
        for gradient in got:
            torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


def test_gradients_of_a_half_stash_type_do_not_overflow():
    """They are computed in float32: a sum of 4096 products in float16 would be infinite."""
    x = (torch.randn(4, 4096) * 10).half().requires_grad_()
    scale = torch.full((4096,), 100.0).half().requires_grad_()
    assert make_plan(NormSpec(stash_type=FLOAT16), torch.float16).wide == torch.float32
    y = rt.rms_norm(x, scale, stash_type=FLOAT16)
    upstream = torch.full_like(y, 8.0)
    for gradient in torch.autograd.grad(y, (x, scale), upstream):
        assert torch.isfinite(gradient).all()
        assert gradient.abs().max() > 0


def test_under_autocast_gradients_have_the_type_of_their_tensor():
    x = torch.randn(4, 7, requires_grad=True)
    linear = torch.nn.Linear(7, 7)
    scale = torch.ones(7, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = rt.rms_norm(linear(x), scale)
    assert y.dtype == torch.bfloat16
    y.float().square().sum().backward()
    assert x.grad.dtype == scale.grad.dtype == torch_type(FLOAT)


def test_no_gradient_without_need():
    x = torch.randn(2, 7)
    assert not rt.rms_norm(x, torch.ones(7)).requires_grad
    x.requires_grad_()
    with torch.no_grad():
        assert not rt.rms_norm(x).requires_grad
    assert rt.rms_norm(x).requires_grad
