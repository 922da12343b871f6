"""Rows with axes behind them: ``last_axis`` in the PyTorch operator."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rmsnorm_export.torch as rt
from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.reference import reference_exact
from rmsnorm_export.op.spec import DOUBLE, NormSpec

CHANNELS = {"axis": -3, "last_axis": -3}
X = torch.randn(2, 24, 3, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(24,), (24, 1, 1), (1, 24, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_the_operator_is_the_reference(dtype, shape):
    x, scale = X.to(dtype), torch.rand(shape).to(dtype)
    stash = {"stash_type": DOUBLE} if dtype == torch.float64 else {}
    y = rt.rms_norm(x, scale, scale, **CHANNELS, **stash)
    assert y.is_contiguous()
    want = reference_exact(NormSpec(**CHANNELS, **stash), x.numpy(), scale.numpy(), scale.numpy())
    # Beside the bias a sum near zero keeps the rounding of its terms, which are below 4.
    np.testing.assert_allclose(
        y.numpy().astype(np.float64), want.astype(np.float64), rtol=2 * torch.finfo(dtype).eps,
        atol=4 * torch.finfo(dtype).eps,
    )  # fmt: skip
    moved = rt.rms_norm(x.movedim(1, -1), scale.reshape(-1), scale.reshape(-1), **stash)
    assert torch.equal(y, moved.movedim(-1, 1))


def test_residual_and_gate():
    y, total = rt.skip_rms_norm(X, 2 * X, **CHANNELS)
    assert torch.equal(total, 3 * X)
    assert torch.equal(y, rt.rms_norm(3 * X, **CHANNELS))
    gated = rt.gated_rms_norm(X, X, **CHANNELS)
    moved = rt.gated_rms_norm(X.movedim(1, -1), X.movedim(1, -1)).movedim(-1, 1)
    assert torch.equal(gated, moved)


@pytest.mark.parametrize("attributes", [{}, {"epsilon_clamp": True, "epsilon": 0.5}])
def test_gradients(attributes):
    x = X[:, :4].double().requires_grad_()
    scale, gate = torch.rand(4, 1, 1).double().requires_grad_(), x.detach().clone().requires_grad_()
    options = {**CHANNELS, **attributes, "stash_type": DOUBLE}
    assert torch.autograd.gradcheck(lambda x, g: rt.rms_norm(x, g, **options), (x, scale))
    assert torch.autograd.gradcheck(
        lambda x, z, g: rt.gated_rms_norm(x, z, g, **options), (x, gate, scale)
    )


def test_meta_tensors_and_compilers():
    assert rt.rms_norm(X.to("meta"), **CHANNELS).shape == X.shape
    compiled = torch.compile(
        lambda x: rt.rms_norm(x, **CHANNELS), fullgraph=True, backend="aot_eager"
    )
    torch.testing.assert_close(compiled(X), rt.rms_norm(X, **CHANNELS), rtol=1e-6, atol=0)
    assert torch.equal(rt.rms_norm(X[:0], **CHANNELS), X[:0])


def test_a_scale_of_another_row_and_a_module_are_refused():
    with pytest.raises(UsageError, match="shape of the normalised axes"):
        rt.rms_norm(X, torch.ones(5), **CHANNELS)
    with pytest.raises(UsageError, match="normalises the last axes"):
        rt.RMSNorm.from_spec(NormSpec(**CHANNELS), (2, 3, 4))
