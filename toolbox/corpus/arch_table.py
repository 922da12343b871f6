"""Tiny configurations of whole architectures: what differs from the common one, and why it is here.

Each is as small as its code allows: two layers, width 64, four heads of 16, 101 tokens.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

COMMON: dict[str, Any] = {
    "vocab_size": 101, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "initializer_range": 0.1,  # activations around 1, so that epsilon is small beside them
    "use_cache": False, "tie_word_embeddings": False,
}  # fmt: skip

# Every token goes to every expert: where two of four are chosen, one rounding in a half type can
# choose another, and logits of two runtimes differ by as much as they are large.
_EXPERTS: dict[str, Any] = {
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 32,
}  # fmt: skip

_LATENT: dict[str, Any] = {
    **_EXPERTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "q_lora_rank": 16, "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16,
    "v_head_dim": 16, "num_key_value_heads": 4,
}  # fmt: skip

_LINEAR: dict[str, Any] = {
    **_EXPERTS, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "shared_expert_intermediate_size": 32,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip

_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_expand": 2, "mamba_d_state": 16,
    "mamba_n_groups": 2, "mamba_chunk_size": 8,
}  # fmt: skip

_FALCON_H1 = {
    **_MAMBA, "mamba_d_ssm": 128, "mamba_rms_norm": True, "mamba_norm_before_gate": True,
}  # fmt: skip
_MAMBA2 = {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 8}
_MUSE = {**_EXPERTS, "moe_hidden_size": 48}
_T5 = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4}
_AIMV2 = {"image_size": 16, "patch_size": 4, "num_channels": 3}
_GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 96}

_NEMOTRON: dict[str, Any] = {
    "hybrid_override_pattern": "M*-M", "num_hidden_layers": 4, "mamba_num_heads": 8,
    "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "chunk_size": 8,
}  # fmt: skip

_KIMI: dict[str, Any] = {
    **_LATENT, "num_attention_heads": 4, "layer_types": ["linear_attention", "full_attention"],
    "linear_num_heads": 4, "linear_head_dim": 16,
}  # fmt: skip

_GEMMA4: dict[str, Any] = {
    "vocab_size_per_layer_input": 101, "hidden_size_per_layer_input": 16, "global_head_dim": 16,
}  # fmt: skip

_DEEPSEEK_V4: dict[str, Any] = {
    **_EXPERTS, "q_lora_rank": 16, "o_lora_rank": 16, "index_n_heads": 4, "index_head_dim": 16,
}  # fmt: skip


_LARGEST = 2e7
"""Parameters of a model that is made on demand."""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One architecture.

    Attributes:
        model_type: as ``transformers`` calls it.
        why: what its norms show that others do not.
        settings: over ``COMMON``.
        model: class name in ``transformers``; "" for the causal language model of ``model_type``.
        kind: ``tokens`` (int64 [batch, sequence]) or ``pixels`` (float [batch, 3, 16, 16]).
    """

    model_type: str
    why: str
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    model: str = ""
    kind: Literal["tokens", "pixels"] = "tokens"

    @property
    def input(self) -> str:
        """Return the name of the input."""
        return "pixel_values" if self.kind == "pixels" else "input_ids"


def _size(entry: Entry) -> float:
    """Return the number of parameters; without end where the model is not made."""
    import torch
    import transformers

    try:
        config = transformers.AutoConfig.for_model(entry.model_type, **{**COMMON, **entry.settings})
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
    except Exception:  # each model refuses settings in its own way
        return math.inf
    return sum(parameter.numel() for parameter in model.parameters())


def _runs(entry: Entry) -> bool:
    """Return whether a model runs; some take settings that their code does nothing with."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(entry.model_type, **{**COMMON, **entry.settings})
    try:
        with torch.no_grad():
            transformers.AutoModelForCausalLM.from_config(config).eval()(torch.ones((2, 7)).long())
    except Exception:  # each model fails in its own way
        return False
    return True


class _Entries(dict[str, Entry]):
    """The entries below, and on demand one for any other causal language model."""

    def __missing__(self, model_type: str) -> Entry:
        """Return the smallest model of a type that runs, of those that the settings above can make.

        Raises:
            KeyError: it is no such type, or has its sizes elsewhere and is large.
        """
        entries = [Entry(model_type, "", more) for more in ({}, _EXPERTS, _LATENT, _LINEAR)]
        sizes = [_size(entry) for entry in entries]
        small = [i for i in sorted(range(4), key=sizes.__getitem__) if sizes[i] <= _LARGEST]
        if not small:
            raise KeyError(model_type)
        return entries[next((i for i in small if _runs(entries[i])), small[0])]


_TESTED: dict[str, Entry] = {
    "llama": Entry("llama", "the ordinary norm before attention, before the MLP and at the end"),
    "mixtral": Entry("mixtral", "norm in front of a router", _EXPERTS),
    "qwen3": Entry("qwen3", "norm of queries and keys, per head"),
    "qwen3_moe": Entry("qwen3_moe", "per head, with experts", _EXPERTS),
    "qwen3_next": Entry("qwen3_next", "unit offset, and gated after in linear attention", _LINEAR),
    "gemma": Entry("gemma", "unit offset, scale before cast"),
    "gemma2": Entry("gemma2", "four norms a layer, two of them after the block"),
    "gemma3": Entry("gemma3_text", "four norms a layer and norm of queries and keys"),
    "gemma4": Entry("gemma4_text", "weightless norm of values, Pow(-0.5)", _GEMMA4),
    "olmo2": Entry("olmo2", "norm after the block, norm over all heads together"),
    "glm4": Entry("glm4", "norms before and after each block"),
    "deepseek_v3": Entry("deepseek_v3", "norms of the compressed queries and keys", _LATENT),
    "cohere": Entry("cohere", "LayerNorm: nothing to find"),
    "gpt_oss": Entry("gpt_oss", "scale before cast", _EXPERTS),
    "exaone4": Entry("exaone4", "norm after the block, and per head"),
    "mamba2": Entry("mamba2", "gate before the norm", _MAMBA2),
    "bamba": Entry("bamba", "Mamba-2 and attention", {**_MAMBA, "attn_layer_indices": [1]}),
    "nemotron_h": Entry("nemotron_h", "grouped norm, gate before it", _NEMOTRON),
    "falcon_h1": Entry("falcon_h1", "grouped norm after which the gate comes", _FALCON_H1),
    "nanochat": Entry("nanochat", "every norm weightless"),
    "diffllama": Entry("diffllama", "torch.nn.RMSNorm without weight, over two heads"),
    "kimi_linear": Entry("kimi_linear", "sigmoid gate after the norm, in float32", _KIMI),
    "hunyuan": Entry("hunyuan_v1_dense", "norm of queries and keys after the rotary embedding"),
    "t5_encoder": Entry("t5", "rounds before it scales only in half types", _T5, "T5EncoderModel"),
    "aimv2_vision": Entry(
        "aimv2_vision_model", "a vision model", _AIMV2, "Aimv2VisionModel", kind="pixels"
    ),
    "imagegpt": Entry("imagegpt", "divides by the root, in the input type", _GPT, "ImageGPTModel"),
    "muse_spark": Entry("muse_spark_text", "row times 1 + w before the norm", _MUSE, "AutoModel"),
    "deepseek_v4": Entry("deepseek_v4", "weightless norm with 1 / RMS rounded", _DEEPSEEK_V4),
}
ENTRIES = _Entries(_TESTED)
