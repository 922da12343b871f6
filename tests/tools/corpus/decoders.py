"""Tiny models that generate, with random weights: the architectures whose export is measured."""

from __future__ import annotations

from typing import Any

import torch
import transformers

_SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 64, "head_dim": 8,
    "pad_token_id": 0,
}  # fmt: skip
_WINDOW = {"query_pre_attn_scalar": 8, "sliding_window": 8}  # fewer than are written
DECODERS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "gemma2": {"query_pre_attn_scalar": 8},
    "gemma3_text": _WINDOW,
    "gemma4_text": {"sliding_window": 8},
    "phi3": {},
    "mistral": {"sliding_window": 8},
    "deepseek_v3": {
        "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
        "topk_group": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1,
        "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
    "mamba2": {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 2, "chunk_size": 8},
    "t5": {
        "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2,
        "decoder_start_token_id": 0,
    },
}  # fmt: skip
"""By the name of the configuration: what is set beside sizes that all share."""


def decoder(kind: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """The model, always with the same weights.

    Args:
        kind: of `DECODERS`.
        dtype: of the weights.
        changes: of its configuration.
    """
    torch.manual_seed(5)
    config = transformers.AutoConfig.for_model(kind, **{**_SIZES, **DECODERS[kind], **changes})
    seq2seq = config.is_encoder_decoder
    auto = transformers.AutoModelForSeq2SeqLM if seq2seq else transformers.AutoModelForCausalLM
    return auto.from_config(config).to(dtype).eval()


_EIGHT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
_EYE = {**_EIGHT, "image_size": 8, "patch_size": 4}
_SIGLIP = {"model_type": "siglip_vision_model", "projection_dim": 32, **_EYE}
_SCAN = {
    "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
}  # fmt: skip
_SEQ2SEQ = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 64,
}  # fmt: skip
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_local_experts": 4}
_MIXED = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
_QWEN2_VL = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}}
COMPOSED: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt_oss": ("GptOssForCausalLM", {**_SIZES, **_MIXED, **_EXPERTS}),
    "gemma2": ("Gemma2ForCausalLM", {**_SIZES, "query_pre_attn_scalar": 8, "sliding_window": 8}),
    "mamba2": ("Mamba2ForCausalLM", {**_SIZES, **DECODERS["mamba2"]}),
    "falcon_h1": ("FalconH1ForCausalLM", {**_SIZES, **_SCAN, "mamba_d_ssm": 64}),
    "bamba": ("BambaForCausalLM", {**_SIZES, **_SCAN, "attn_layer_indices": [1]}),
    "granitemoehybrid": (
        "GraniteMoeHybridForCausalLM",
        {**_SIZES, **_SCAN, **_EXPERTS, "layer_types": ["mamba", "attention"]},
    ),
    "glm4": ("Glm4ForCausalLM", _SIZES),
    "glm4_moe": (
        "Glm4MoeForCausalLM", {**_SIZES, **_EXPERTS, "n_routed_experts": 4},
    ),
    "lfm2": ("Lfm2ForCausalLM", {**_SIZES, "layer_types": ["conv", "full_attention"]}),
    "ministral": ("MinistralForCausalLM", {**_SIZES, **_MIXED}),
    "llama": ("LlamaForCausalLM", {**_SIZES, "tie_word_embeddings": True}),
    "bart": ("BartForConditionalGeneration", {**_SEQ2SEQ, "decoder_start_token_id": 2}),
    "whisper": (
        "WhisperForConditionalGeneration",
        {
            **_SEQ2SEQ, "max_source_positions": 50, "num_mel_bins": 8, "pad_token_id": 0,
            "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3,
        },
    ),
    "llava": (
        "LlavaForConditionalGeneration",
        {
            "vision_config": {"model_type": "clip_vision_model", **_EYE},
            "text_config": {"model_type": "llama", **_SIZES},
            "image_token_id": 63,
            "image_seq_length": 4,
        },
    ),
    "gemma3": (
        "Gemma3ForConditionalGeneration",
        {
            "vision_config": _SIGLIP,
            "text_config": {
                "model_type": "gemma3_text", **_SIZES, "query_pre_attn_scalar": 8,
                "sliding_window": 8,
            },
            "image_token_id": 63,
            "mm_tokens_per_image": 4,
        },
    ),
    "paligemma": (
        "PaliGemmaForConditionalGeneration",
        {
            "vision_config": _SIGLIP,
            "text_config": {"model_type": "gemma", **_SIZES},
            "image_token_id": 63,
            "projection_dim": 32,
        },
    ),
    "smolvlm": (
        "SmolVLMForConditionalGeneration",
        {
            "vision_config": {"model_type": "smolvlm_vision", **_EYE},
            "text_config": {"model_type": "llama", **_SIZES},
            "image_token_id": 63,
            "scale_factor": 2,
        },
    ),
    "mistral3": (
        "Mistral3ForConditionalGeneration",
        {
            "vision_config": {"model_type": "pixtral", **_EYE},
            "text_config": {"model_type": "mistral", **_SIZES},
            "image_token_id": 63,
            "spatial_merge_size": 1,
        },
    ),
    "qwen2_vl": (
        "Qwen2VLForConditionalGeneration",
        {
            "vision_config": {"depth": 1, "embed_dim": 32, "num_heads": 4, "hidden_size": 32},
            "text_config": {**_SIZES, **_QWEN2_VL},
            "image_token_id": 63,
        },
    ),
}  # fmt: skip
"""By the name of the configuration: the class that its folder names, and what is set.

Attention that SDPA has not, numbers without end, states of several kinds, encoders of images and
sound."""


def composed(kind: str) -> Any:
    """A model of `COMPOSED`, always with the same weights."""
    name, changes = COMPOSED[kind]
    torch.manual_seed(5)
    config = transformers.AutoConfig.for_model(kind, **changes)
    return getattr(transformers, name)(config).eval()
