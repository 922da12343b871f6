"""``rx.export`` on whole architectures: every norm one node, straight from PyTorch.

Tiny configurations of ``transformers``, in half precision, the targets and opsets in turn; a Llama
in other types too. The diffusion transformer is an example of a pipeline (tests/deploy).
"""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("onnxscript", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("transformers", reason="pip install transformers")

import torch

from rmsnorm_export.runtime.session import open_session, run_session
from rmsnorm_export.torch.export.export import export
from tests.sample import sampled
from tests.tools.corpus.architectures import architecture, count_norms

pytestmark = [pytest.mark.export, pytest.mark.slow]

# fmt: off
NAMES = (
    "llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gemma4", "phi3",
    "olmo2", "glm4", "deepseek_v3", "mamba2", "t5_encoder", "nanochat", "aimv2_vision",
    "diffllama", "llama4", "gpt_oss", "granite", "smollm3", "exaone4", "minimax", "ernie4_5",
    "hunyuan",
)
# fmt: on
FORMS = ((18, "portable"), (23, "onnx"), (18, "ort"), (23, "portable"), (23, "ort"))
CASES = [
    *((name, "float16", *FORMS[i % len(FORMS)]) for i, name in enumerate(NAMES)),
    ("llama", "float32", 23, "portable"),
    ("llama", "bfloat16", 18, "portable"),
]
# One of each family: a decoder, a mixer with gates, an encoder, one of images.
QUICK = ("gemma", "mamba2", "t5_encoder", "aimv2_vision")
SAMPLE = {case for case in CASES if case[0] in QUICK}
# Symbolic in the batch alone: a second symbolic axis doubles what an export takes.
ONE_AXIS = ("gemma", "qwen3", "deepseek_v3", "mamba2")
# Relative to the largest output; as tests/test_architectures.py.
TOLERANCE = {"float32": 1e-4, "float16": 1e-2}

ANY = torch.export.Dim.DYNAMIC


def made(name: str, dtype: str) -> tuple[Any, ...]:
    """Module, inputs, what must be dynamic, and the result of PyTorch."""
    arch = architecture(name)
    model, inputs = arch.make(dtype)
    one = arch.kind == "pixels" or name in ONE_AXIS
    axes = ({0: ANY} if one else {0: ANY, 1: ANY},)
    with torch.no_grad():
        return model, inputs, axes, model(*inputs).double().numpy()


def norm_calls(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[int, Any]:
    """RMSNorm calls in one forward pass, and those of modules by their path.

    The first counts calls of the function ``rms_norm`` too.
    """
    by_class = count_norms(model, inputs)
    by_path: collections.Counter[str] = collections.Counter()
    handles = [
        module.register_forward_pre_hook(lambda *_, path=path: by_path.update([path]))
        for path, module in model.named_modules()
        if type(module).__name__ in by_class
    ]
    with torch.no_grad():
        model(*inputs)
    for handle in handles:
        handle.remove()
    return sum(by_class.values()), by_path


@sampled("name, dtype, opset, target", CASES, SAMPLE)
def test_every_norm_is_one_node(tmp_path, name, dtype, opset, target):
    model, inputs, axes, expected = made(name, dtype)
    calls, by_path = norm_calls(model, inputs)
    result = export(
        model, inputs, tmp_path / "m.onnx", opset=opset, target=target, dynamic_shapes=axes
    )
    sites = [*result.report.fused, *result.report.kept]
    assert result.report.unfused == ()
    assert len(sites) == calls > 0
    paths = collections.Counter(site.module for site in sites)
    modules = {path for path, _ in model.named_modules()}
    assert {path: paths[path] for path in by_path} == dict(by_path)
    assert set(paths) <= modules, "norms that are a function: the module that calls it"
    assert result.report.opset_after == opset
    if dtype == "bfloat16":
        return  # ONNX Runtime's CPU provider has few kernels for it
    session = open_session(str(tmp_path / "m.onnx"), optimize=True)
    feed = {a.name: x.numpy() for a, x in zip(session.get_inputs(), inputs, strict=True)}
    (found,) = run_session(session, feed).values()
    difference = np.abs(found.astype(np.float64) - expected).max()
    assert difference <= TOLERANCE[dtype] * np.abs(expected).max()
