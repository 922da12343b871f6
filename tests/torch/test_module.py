"""RMSNorm, the module: variants, parameters, state dicts, errors, and transformers' own classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rmsnorm_export.torch as rt
from rmsnorm_export.errors import UsageError
from tests.op.norm_models import steps
from tests.op.torch_arrays import to_numpy

N = 111
HALF = (torch.float16, torch.bfloat16)
GATED = {"kind": "GatedRMSNorm"}
CLASSES = [
    ("llama", "LlamaRMSNorm", (N,), {}),
    ("t5", "T5LayerNorm", (N,), {}),
    ("gemma", "GemmaRMSNorm", (N,), {"scale_before_cast": True, "scale_offset": 1.0}),
    ("olmo2", "Olmo2RMSNorm", (N,), {"scale_before_cast": True}),
    ("gpt_oss", "GptOssRMSNorm", (N,), {"scale_before_cast": True}),
    ("llama4", "Llama4TextL2Norm", (), {"scale_before_cast": True}),
    ("deepseek_v4", "DeepseekV4UnweightedRMSNorm", (), {"round_rstd": True}),
    ("qwen3_next", "Qwen3NextRMSNorm", (N,), {"scale_before_cast": True, "scale_offset": 1.0}),
    ("qwen3_next", "Qwen3NextRMSNormGated", (N,), GATED),
    ("mamba2", "MambaRMSNormGated", (N, 37), {**GATED, "gate_first": True, "group_size": 37}),
    ("bamba", "BambaRMSNormGated", (N, N), {**GATED, "gate_first": True}),
]


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize(
    ("family", "name", "arguments", "attributes"), CLASSES, ids=[name for _, name, *_ in CLASSES]
)
def test_agrees_with_the_class_of_transformers(family, name, arguments, attributes, dtype):
    """Its state dict loads and the outputs agree; how accurate they are, test_parity.py holds.

    PyTorch multiplies by rsqrt instead of dividing and sums in another order: n / 2 + 8 roundings
    of float32, and in a half type now and then the other neighbour.
    """
    module = pytest.importorskip(f"transformers.models.{family}.modeling_{family}")
    torch.manual_seed(1)
    theirs = getattr(module, name)(*arguments, eps=1e-6)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    weighted = bool(theirs.state_dict())
    ours = rt.RMSNorm(N, 1e-6, weight=weighted, **attributes)
    ours.load_state_dict(theirs.state_dict())
    theirs, ours = theirs.to(dtype), ours.to(dtype)
    x = torch.randn(64, 3, N).to(dtype)
    inputs = (x, torch.randn(64, 3, N).to(dtype)) if "kind" in attributes else (x,)
    with torch.no_grad():
        expected, got = theirs(*inputs), ours(*inputs)
    assert got.dtype == expected.dtype == dtype
    right, value = to_numpy(expected), to_numpy(got)
    if dtype == torch.float32:
        bound = (N / 2 + 8) * 2.0**-24
        np.testing.assert_allclose(value, right, rtol=bound, atol=bound * 2.0**-10)
    else:
        distance = steps(value, right)
        assert distance.max() <= 2
        assert (distance > 0).mean() <= 0.05


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
    ({"normalized_shape": 6, "partial_size": 7}, (), "partial_size is larger than the row"),
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
