"""``rx.export`` on architectures of ``transformers``: every norm one node, straight from PyTorch.

Each is traced once in each type; the program is exported at two opsets.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("onnxscript", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("transformers", reason="pip install transformers")

import torch

from rmsnorm_export.proof.runtime import open_session, run_session
from rmsnorm_export.torch.export import export
from tests.corpus.architectures import architecture, count_norms

pytestmark = [pytest.mark.export, pytest.mark.slow]

# The path of one norm, without the wrapper of the corpus in front.
PATHS = {
    "llama": "model.layers.0.input_layernorm",
    "qwen3": "model.layers.1.self_attn.q_norm",
    "gemma3": "model.layers.0.pre_feedforward_layernorm",
    "mamba2": "backbone.layers.0.mixer.norm",
    "t5_encoder": "encoder.block.0.layer.0.layer_norm",
}
# Relative to the largest output; as tests/test_architectures.py.
TOLERANCE = {"float32": 1e-4, "float16": 1e-2}


@functools.cache
def traced(name, dtype):
    model, inputs = architecture(name).make(dtype)
    calls = sum(count_norms(model, inputs).values())
    with torch.no_grad():
        expected = model(*inputs).double().numpy()
        axes = dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC)
        program = torch.export.export(model, inputs, dynamic_shapes=(axes,))
    return program, inputs, calls, expected


CASES = [
    *((name, *case) for name in PATHS for case in (("float32", 18), ("float16", 23))),
    ("llama", "float32", 23),
    ("llama", "float16", 18),
]


@pytest.mark.parametrize(("name", "dtype", "opset"), CASES)
def test_every_norm_is_one_node(tmp_path, name, dtype, opset):
    program, inputs, calls, expected = traced(name, dtype)
    result = export(program, (), tmp_path / "m.onnx", opset=opset)
    sites = [*result.report.fused, *result.report.kept]
    assert [r for r in result.report.refused if r.kind == "norm"] == []
    assert len(sites) == calls
    paths = {site.module for site in sites}
    assert None not in paths
    assert f"model.{PATHS[name]}" in paths
    session = open_session(str(tmp_path / "m.onnx"), optimize=True)
    feed = {session.get_inputs()[0].name: inputs[0].numpy()}
    (found,) = run_session(session, feed).values()
    difference = np.abs(found.astype(np.float64) - expected).max()
    assert difference <= TOLERANCE[dtype] * np.abs(expected).max()
