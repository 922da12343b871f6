"""RMSNorm, the module: parameters, state dicts, errors.

That its variants compute what the classes of ``transformers`` do, test_parity_rounding.py holds.
"""

from __future__ import annotations

import pytest
import torch

import rmsnorm_export.torch as rt
from rmsnorm_export.errors import UsageError

N = 111


@pytest.mark.parametrize("shape", [N, (5, 7)])
def test_the_state_dict_of_torch_loads(shape):
    theirs = torch.nn.RMSNorm(shape, eps=1e-6)
    torch.nn.init.normal_(theirs.weight)
    ours = rt.RMSNorm(shape, 1e-6, scale_before_cast=True)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(4, *theirs.normalized_shape)
    torch.testing.assert_close(ours(x), theirs(x), rtol=N * 2.0**-24, atol=1e-9)


def test_parameters_start_as_a_gain_of_one():
    module = rt.RMSNorm(7, bias=True, scale_offset=1, dtype=torch.bfloat16)
    zeros = torch.zeros(7, dtype=torch.bfloat16)
    assert set(module.state_dict()) == {"weight", "bias"}
    assert torch.equal(module.weight, zeros)
    assert torch.equal(module.bias, zeros)
    assert torch.equal(rt.RMSNorm((2, 3)).weight, torch.ones(2, 3))
    assert not rt.RMSNorm(7, weight=False).state_dict()
    assert rt.RMSNorm(7, device="meta").weight.device.type == "meta"
    assert repr(module) == "RMSNorm((7,), epsilon=1e-05, scale_offset=1.0, bias=True)"


X = torch.randn(2, 6)
REJECTED = [
    ({"normalized_shape": 6, "partial_size": 7}, (), "partial_size does not fit"),
    ({"normalized_shape": (2, 3), "group_size": 3}, (), "need axis = -1"),
    ({"normalized_shape": 6, "weight": False, "scale_offset": 1.0}, (), "without a scale"),
    ({"normalized_shape": 6, "epsilno": 1.0}, (), "epsilno"),
    ({"normalized_shape": 5}, (X,), "normalised shape"),
    ({"normalized_shape": 6, "weight": False}, (X[:, :5],), "normalised shape"),
    ({"normalized_shape": 6}, (X, X), "takes 1 tensors"),
    ({"normalized_shape": 6, "kind": "SkipRMSNorm"}, (X,), "takes 2 tensors"),
]


@pytest.mark.parametrize(("arguments", "inputs", "message"), REJECTED)
def test_what_does_not_fit_is_rejected(arguments, inputs, message):
    with pytest.raises(UsageError, match=message) as caught:
        rt.RMSNorm(**arguments)(*inputs)
    assert caught.value.found
    assert caught.value.fix
