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
