"""What the paper says of RMSNorm: Zhang & Sennrich 2019, arXiv 1910.07467, sections 3 and 4.

In float64 with the paper's own form, that is without an epsilon and with a gain and a bias. That
the formula is computed to the bit, and its gradients, is held by test_ops.py and test_autograd.py.
"""

from __future__ import annotations

import math

import pytest
import torch

import rmsnorm_export.torch as rt
from rmsnorm_export.op.spec import DOUBLE

TIGHT = 1e-12
"""Relative: float64 over rows of up to 4,104 elements, n * 2**-53 and some."""


@pytest.mark.parametrize("p", [1, 0.0625])
@pytest.mark.parametrize("n", [3, 111, 199, 512, 4104])
def test_equation_4_its_invariance_and_the_partial_norm(n, p):
    """Section 3.2: RMS of the first k = ceil(n * p) elements, every element divided by it."""
    torch.manual_seed(n)
    k = math.ceil(n * p)
    size = k if p < 1 else 0
    norm = rt.RMSNorm(n, 0.0, bias=True, partial_size=size, stash_type=DOUBLE, dtype=torch.float64)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    a = torch.randn(5, n, dtype=torch.float64)
    rms = a[:, :k].square().mean(-1, keepdim=True).sqrt()
    expected = a / rms * norm.weight + norm.bias
    bound = TIGHT * expected.abs().max().item()
    for factor in (1.0, 2.0**-20, 0.3, 1e6):
        torch.testing.assert_close(norm(factor * a), expected, rtol=0, atol=bound)
    torch.testing.assert_close(norm(-a) - norm.bias, norm.bias - norm(a), rtol=0, atol=2 * bound)
