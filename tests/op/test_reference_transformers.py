"""The exact reference against the norm classes of ``transformers`` themselves."""

import importlib

import pytest
import torch
from norm_models import Case, reference
from torch_arrays import assert_close, to_numpy, to_torch

from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.spec import BFLOAT16, FLOAT, FLOAT16, NormSpec

N = 111
GATED = {"kind": "GatedRMSNorm"}
CLASSES = [
    ("llama", "LlamaRMSNorm", (N,), {}),
    ("t5", "T5LayerNorm", (N,), {}),
    ("gemma", "GemmaRMSNorm", (N,), {"scale_before_cast": True, "scale_offset": 1.0}),
    ("deepseek_v4", "DeepseekV4UnweightedRMSNorm", (), {"round_rstd": True}),
    ("qwen3_next", "Qwen3NextRMSNormGated", (N,), GATED),
    ("mamba2", "MambaRMSNormGated", (N, 37), {**GATED, "gate_first": True, "group_size": 37}),
]


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT], ids=type_name)
@pytest.mark.parametrize(
    ("family", "name", "arguments", "attributes"), CLASSES, ids=[name for _, name, *_ in CLASSES]
)
def test_agrees_with_the_class(family, name, arguments, attributes, dtype):
    module = pytest.importorskip(f"transformers.models.{family}.modeling_{family}")
    norm = getattr(importlib.import_module(module.__name__), name)(*arguments, eps=1e-6)
    weighted = bool(list(norm.parameters()))
    spec = NormSpec(epsilon=1e-6, **attributes)
    case = Case(spec, dtype, dtype if weighted else None, shape=(4, 8, N))
    operands = case.operands()
    if weighted:
        norm.weight = torch.nn.Parameter(to_torch(operands["scale"]))
    inputs = [to_torch(operands[key]) for key in ("x", "gate") if key in operands]
    expected = to_numpy(norm(*inputs))
    assert_close(reference(case, operands)[0], expected, dtype, N)
