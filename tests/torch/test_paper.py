"""What the paper says of RMSNorm: Zhang & Sennrich 2019, arXiv 1910.07467, sections 3, 4.1, 4.2.

In float64 with the paper's own form, that is without an epsilon and with a gain and a bias. The
linear layer in front has weight W; ``v = RMSNorm(W x) * g + b``.
"""

from __future__ import annotations

import math

import pytest
import torch

import rmsnorm_export.torch as rt
from rmsnorm_export.op.spec import DOUBLE

SIZES = (3, 111, 199, 4104)
FACTORS = (2.0**-20, 0.3, 3.0, 1e6)
TIGHT = 1e-12
"""Relative: float64 over rows of up to 4,104 elements, n * 2**-53 and some."""


def _paper(n: int, p: float | None = None) -> rt.RMSNorm:
    torch.manual_seed(n)
    norm = rt.RMSNorm(n, 0.0, bias=True, p=p, stash_type=DOUBLE, dtype=torch.float64)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    return norm


def _rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def _close(value: torch.Tensor, expected: torch.Tensor, tolerance: float = TIGHT) -> None:
    bound = tolerance * expected.abs().max().item()
    torch.testing.assert_close(value, expected, rtol=0, atol=bound)


@pytest.mark.parametrize("n", SIZES)
def test_equation_4(n):
    norm, a = _paper(n), _rows(5, n)
    rms = torch.sqrt((a * a).sum(-1, keepdim=True) / n)
    _close(norm(a), a / rms * norm.weight + norm.bias)


@pytest.mark.parametrize("p", [None, 0.0625])
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("n", SIZES)
def test_scaling_the_input_changes_nothing(n, factor, p):
    norm, a = _paper(n, p), _rows(5, n)
    _close(norm(factor * a), norm(a))
    _close(norm(-a) - norm.bias, norm.bias - norm(a))


def _gradients(norm: rt.RMSNorm, x: torch.Tensor, weight: torch.Tensor, upstream: torch.Tensor):
    """dL/dg, dL/db, dL/dW for L = sum(upstream * v)."""
    leaf = weight.clone().requires_grad_()
    loss = (norm(x @ leaf) * upstream).sum()
    return torch.autograd.grad(loss, (norm.weight, norm.bias, leaf))


@pytest.mark.parametrize("p", [None, 0.0625])
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("n", SIZES)
def test_gradients_of_a_scaled_input_or_weight(n, factor, p):
    """Equations 7 and 10: of a scaled x none changes; of c W that of W is divided by c, and the
    others stay (section 4.2)."""
    norm, x, weight, upstream = _paper(n, p), _rows(5, 17), _rows(17, n), _rows(5, n).flip(0)
    gain, bias, matrix = _gradients(norm, x, weight, upstream)
    for scaled, expected in (
        (_gradients(norm, factor * x, weight, upstream), (gain, bias, matrix)),
        (_gradients(norm, x, factor * weight, upstream), (gain, bias, matrix / factor)),
    ):
        for value, right in zip(scaled, expected, strict=True):
            _close(value, right, 1e-11)


@pytest.mark.parametrize("n", SIZES)
def test_gradient_of_the_input_is_the_matrix_of_the_paper(n):
    """Equation 9: R = (I - a a^T / (n RMS^2)) / RMS, and it is orthogonal to a."""
    n = min(n, 199)
    norm, a, upstream = _paper(n), _rows(1, n)[0], _rows(3, n)[2]
    leaf = a.clone().requires_grad_()
    (got,) = torch.autograd.grad((norm(leaf) * upstream).sum(), leaf)
    rms = a.square().mean().sqrt()
    matrix = (torch.eye(n, dtype=torch.float64) - torch.outer(a, a) / (n * rms**2)) / rms
    _close(got, matrix @ (norm.weight.detach() * upstream))
    assert abs(got @ a) <= TIGHT * got.norm() * a.norm()


@pytest.mark.parametrize("n", [*SIZES, 512])
def test_partial_norm_takes_the_first_6_25_percent(n):
    """Section 3.2: RMS of the first k = ceil(n * p) elements, every element divided by it."""
    norm, a = _paper(n, 0.0625), _rows(5, n)
    k = math.ceil(n / 16)
    rms = a[:, :k].square().mean(-1, keepdim=True).sqrt()
    _close(norm(a), a / rms * norm.weight + norm.bias)
    beyond = a.clone()
    beyond[:, k:] = beyond[:, k:].flip(-1)
    _close(norm(beyond)[:, :k], norm(a)[:, :k])
    estimate = (rms / a.square().mean(-1, keepdim=True).sqrt()).mean()
    # Independent elements: the estimate scatters by about 1 / sqrt(2 k) around 1.
    assert abs(estimate - 1) < 5 / math.sqrt(2 * k)
