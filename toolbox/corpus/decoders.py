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
_SCALED = {"query_pre_attn_scalar": 8}
_WINDOW = {"sliding_window": 8}  # fewer than are written
_MIXED = {**_WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_local_experts": 4, "num_experts": 4,
    "n_routed_experts": 4,
}  # fmt: skip
_SCAN = {
    "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
}  # fmt: skip
_LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "shared_expert_intermediate_size": 16,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
_SEQ2SEQ = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_EYE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 8, "patch_size": 4,
}  # fmt: skip
_SIGLIP = {"model_type": "siglip_vision_model", "projection_dim": 32, **_EYE}
_LLAMA = {"model_type": "llama", **_SIZES}
_ROTARY = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}}
_QWEN_EYE = {"depth": 2, "num_heads": 4, "hidden_size": 32, "patch_size": 4}
DECODERS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, tied": {"model_type": "llama", "tie_word_embeddings": True},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": _EXPERTS,
    "qwen3_next": {**_EXPERTS, **_LINEAR},
    "mistral": _WINDOW,
    "ministral": _MIXED,
    "gemma2": {**_SCALED, **_WINDOW},
    "gemma3_text": {**_SCALED, **_WINDOW},
    "gemma4_text": {**_WINDOW, "vocab_size_per_layer_input": 64},
    "phi3": {},
    "olmo2": {},
    "glm4": {},
    "glm4_moe": _EXPERTS,
    "granite": {},
    "smollm3": {},
    "gpt_oss": {**_MIXED, **_EXPERTS},
    "deepseek_v3": {
        **_EXPERTS, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8, "v_head_dim": 8,
    },
    "mamba2": {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 2, "chunk_size": 8},
    "bamba": {**_SCAN, "attn_layer_indices": [1]},
    "falcon_h1": {**_SCAN, "mamba_d_ssm": 64},
    "granitemoehybrid": {**_SCAN, **_EXPERTS, "layer_types": ["mamba", "attention"]},
    "jamba": {
        "num_experts": 4, "mamba_d_state": 8, "mamba_dt_rank": 4, "attn_layer_period": 2,
        "attn_layer_offset": 1, "use_mamba_kernels": False,
    },
    "nemotron_h": {
        "hybrid_override_pattern": "M*-M", "num_hidden_layers": 4, "mamba_num_heads": 8,
        "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2, "chunk_size": 8,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "t5": {
        "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2,
        "decoder_start_token_id": 0,
    },
    "bart": {**_SEQ2SEQ, "decoder_start_token_id": 2},
    "whisper": {
        **_SEQ2SEQ, "max_source_positions": 50, "num_mel_bins": 8, "decoder_start_token_id": 3,
    },
    "llava": {
        "vision_config": {"model_type": "clip_vision_model", **_EYE},
        "text_config": _LLAMA,
        "image_seq_length": 4,
    },
    "gemma3": {
        "vision_config": _SIGLIP,
        "text_config": {"model_type": "gemma3_text", **_SIZES, **_SCALED, **_WINDOW},
        "mm_tokens_per_image": 4,
    },
    "paligemma": {
        "vision_config": _SIGLIP,
        "text_config": {"model_type": "gemma", **_SIZES},
        "projection_dim": 32,
    },
    "smolvlm": {
        "vision_config": {"model_type": "smolvlm_vision", **_EYE},
        "text_config": _LLAMA,
        "scale_factor": 2,
    },
    "mistral3": {
        "vision_config": {"model_type": "pixtral", **_EYE},
        "text_config": {"model_type": "mistral", **_SIZES},
        "spatial_merge_size": 1,
    },
    "qwen2_vl": {
        "vision_config": {**_QWEN_EYE, "embed_dim": 32},
        "text_config": {**_SIZES, **_ROTARY},
    },
    "qwen2_5_vl": {
        "vision_config": {
            **_QWEN_EYE, "out_hidden_size": 32, "window_size": 16, "fullatt_block_indexes": [1],
            "intermediate_size": 48,
        },
        "text_config": {**_SIZES, **_ROTARY},
    },
    "qwen3_vl": {
        "vision_config": {
            **_QWEN_EYE, "out_hidden_size": 32, "intermediate_size": 48,
            "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
        },
        "text_config": {**_SIZES, **_ROTARY},
    },
}  # fmt: skip
"""By the name of the configuration: what is set beside the sizes that models of text share.

Attention that SDPA has not, numbers without end, states of several kinds, encoders of images and
sound."""


_MODELS = (
    transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    transformers.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
    transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
)


def decoder(kind: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """The model, always with the same weights.

    Args:
        kind: of `DECODERS`.
        dtype: of the weights.
        changes: of its configuration.
    """
    torch.manual_seed(5)
    settings = {"model_type": kind, **DECODERS[kind], **changes}
    shared = {"image_token_id": 63} if "vision_config" in settings else _SIZES
    config = transformers.AutoConfig.for_model(**{**shared, **settings})
    model = next(kinds[type(config)] for kinds in _MODELS if type(config) in kinds)
    return model(config).to(dtype).eval()
