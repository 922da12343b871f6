"""Models in float32 for ``bench.half``: as they are, and with a residual stream beyond float16.

Random weights in the code of transformers and diffusers, and one trained model, each one graph of
``torch.onnx.export`` without a cache. The stream grows by a power of two in the weights that write
to it, which the norms that read it take out again: what the model computes stays.
"""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import torch
import transformers

from toolbox.corpus.arch_table import COMMON
from toolbox.corpus.exporters import Example, Export, cached
from toolbox.trained import trained_model

LARGEST = 65504.0
ROWS, TRAINED = 4, "SmolLM2-135M"
_TEXT = Path(__file__).resolve().parents[1] / "docs" / "tutorials" / "decoder.md"
_SIZES = {
    **COMMON, "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "head_dim": 32,
    "num_hidden_layers": 4,
}  # fmt: skip
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 64}
_LATENT = {
    **_EXPERTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "q_lora_rank": 32, "kv_lora_rank": 48, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32,
    "v_head_dim": 32, "num_key_value_heads": 4,
}  # fmt: skip
_MAMBA = {"num_heads": 8, "head_dim": 32, "state_size": 32, "n_groups": 2, "chunk_size": 8}
_GPT = {"n_embd": 128, "n_layer": 4, "n_head": 4, "n_inner": 256, "n_positions": 64}
_T5 = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 4, "num_heads": 4}
_WHISPER = {
    "d_model": 128, "encoder_layers": 4, "encoder_attention_heads": 4, "encoder_ffn_dim": 256,
    "num_mel_bins": 16, "max_source_positions": 24,
}  # fmt: skip
_DIFFUSION = {
    "sample_size": 8, "patch_size": 2, "in_channels": 4, "out_channels": 4, "num_layers": 4,
    "attention_head_dim": 32, "num_attention_heads": 4, "joint_attention_dim": 64,
    "caption_projection_dim": 128, "pooled_projection_dim": 64, "pos_embed_max_size": 8,
}  # fmt: skip
_PLAIN = {"attn_implementation": "eager", "experts_implementation": "batched_mm"}
"""What can be exported: no loop over the experts in use."""


@dataclasses.dataclass(frozen=True)
class Model:
    """A model, and what its residual stream is the sum of.

    Attributes:
        writes: parameters of all that writes to the stream.
        settings: of its configuration.
        kind: class of transformers or diffusers.
        start: a module that gets the stream where its first values are no product of weights.
    """

    writes: str
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    kind: str = "AutoModelForCausalLM"
    start: str = ""


_LLAMA = r"embed_tokens.weight|o_proj|down_proj"
MODELS = {
    "llama": Model(_LLAMA),
    "qwen3_moe": Model(_LLAMA, _EXPERTS),
    "gemma3_text": Model(r"embed_tokens.weight|post_(attention|feedforward)_layernorm"),
    "granite": Model(_LLAMA, {"residual_multiplier": 0.5, "embedding_multiplier": 4.0}),
    "deepseek_v3": Model(_LLAMA, _LATENT),
    "gpt2": Model(r"wte|wpe|c_proj", _GPT),
    "t5": Model(r"shared|embed_tokens|\.o\.|\.wo\.", _T5, "T5EncoderModel"),
    "sd3": Model(
        r"pos_embed|context_embedder|to_(add_)?out|\.net\.2", _DIFFUSION, "SD3Transformer2DModel"
    ),
    "vit": Model(
        r"^embeddings|attention\.(output\.dense|o_proj)|layer\.\d+\.output|mlp\.fc2",
        {"image_size": 32, "patch_size": 8}, "ViTModel",
    ),
    "whisper": Model(r"out_proj|fc2", _WHISPER, "WhisperEncoder", start="layers.0"),
    "mamba2": Model(r"embeddings|out_proj", _MAMBA),
    TRAINED: Model(_LLAMA),
}  # fmt: skip


def export(name: str, scaled: bool) -> Export:
    """Return the ONNX file of a model of ``MODELS``, with ``ROWS`` example rows."""
    depends = f"{COMMON} {Path(__file__).read_text(encoding='utf-8')}"
    attempts = [("dynamo18", (0, 1)), ("dynamo18", (0,))]
    fixed = name in ("whisper", "sd3", "vit", "mamba2")
    key = f"{name}-{'scaled' if scaled else 'plain'}"
    return cached("half", key, depends, lambda: make(name, scaled), attempts[fixed:])


def make(name: str, scaled: bool) -> Example:
    """Return a model, its example inputs, and 0, since its norms are not counted."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model, inputs = _trained() if name == TRAINED else _random(name)
    whole = _FirstOutput(model.eval(), tuple(inputs))
    if scaled:
        _scale(whole, MODELS[name], inputs)
    return whole, inputs, 0


class _FirstOutput(torch.nn.Module):
    """A model as a function with one tensor as its result."""

    def __init__(self, model: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, a: torch.Tensor, b: Any = None, c: Any = None, d: Any = None) -> torch.Tensor:
        outputs = self.model(**dict(zip(self.names, (a, b, c, d), strict=False)))
        result: torch.Tensor = outputs[0]
        return result


def _random(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    model, rows = MODELS[name], ROWS
    if model.kind.startswith("SD3"):
        import diffusers

        return getattr(diffusers, model.kind)(**model.settings), {
            "hidden_states": torch.randn(rows, 4, 8, 8),
            "encoder_hidden_states": torch.randn(rows, 7, 64),
            "pooled_projections": torch.randn(rows, 64),
            "timestep": torch.tensor([999.0, 700.0, 300.0, 20.0]),
        }
    config = transformers.AutoConfig.for_model(name, **{**_SIZES, **model.settings})
    if name == "whisper":
        from transformers.models.whisper.modeling_whisper import WhisperEncoder

        return WhisperEncoder(config), {"input_features": torch.randn(rows, 16, 48)}
    cls = getattr(transformers, model.kind)
    module = (
        cls(config) if model.kind != "AutoModelForCausalLM" else cls.from_config(config, **_PLAIN)
    )
    if name == "vit":
        return module, {"pixel_values": torch.randn(rows, 3, 32, 32)}
    return module, {"input_ids": torch.randint(3, 512, (rows, 16))}


def _trained() -> tuple[Any, dict[str, torch.Tensor]]:
    if (source := trained_model()) is None:
        raise ImportError("the trained model is missing")
    model = transformers.AutoModelForCausalLM.from_pretrained(source, use_cache=False)
    head = model.lm_head.weight.detach().clone()  # apart from the embedding, which is scaled
    model.lm_head.weight = torch.nn.Parameter(head)
    ids = transformers.AutoTokenizer.from_pretrained(source)(_TEXT.read_text(encoding="utf-8"))
    return model, {"input_ids": torch.tensor(ids["input_ids"][: ROWS * 64]).reshape(ROWS, 64)}


def _scale(whole: Any, model: Model, inputs: dict[str, torch.Tensor]) -> None:
    """Scale the stream, so that its largest value is one to two times the largest of float16."""
    factor = 2.0 ** (1 + math.floor(math.log2(LARGEST / _largest(whole, inputs))))
    written = [*whole.model.named_parameters(), *whole.model.named_buffers()]
    with torch.no_grad():
        for name, tensor in written:
            if re.search(model.writes, name):
                plus = float("norm" in name)  # such a norm multiplies by 1 + weight
                tensor.copy_((tensor + plus) * factor - plus)
    if model.start:
        first = whole.model.get_submodule(model.start)
        first.register_forward_pre_hook(lambda _, args: (args[0] * factor, *args[1:]))


def _largest(whole: Any, inputs: dict[str, torch.Tensor]) -> float:
    """Return the largest magnitude of what the layers give."""
    seen = []

    def see(_module: Any, _args: Any, outputs: Any) -> None:
        tensors = outputs if isinstance(outputs, tuple) else (outputs,)
        seen.extend(float(one.abs().max()) for one in tensors if torch.is_tensor(one))

    layers = next(one for one in whole.modules() if isinstance(one, torch.nn.ModuleList))
    hooks = [layer.register_forward_hook(see) for layer in layers]
    with torch.no_grad():
        whole(*inputs.values())
    for hook in hooks:
        hook.remove()
    return max(seen)
