"""Transformers and autoencoders of images, video and sound of ``diffusers``."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tests.tools.corpus.packages.table import Made, Model

_TEXT = {"encoder_hidden_states": (2, 6, 32)}
_VIDEO = {"hidden_states": (2, 8, 3, 8, 8)}
_HEADS = {"num_attention_heads": 2, "attention_head_dim": 32}

# Class: (configuration, sizes of float inputs, other inputs).
_MODELS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]], dict[str, Any]]] = {
    "StableAudio3DiTModel": (
        {
            "io_channels": 8,
            "embed_dim": 64,
            "depth": 2,
            "num_heads": 2,
            "cond_token_dim": 32,
            "global_cond_dim": 32,
            "local_add_cond_dim": 4,
            "timestep_features_dim": 16,
            "num_memory_tokens": 2,
        },
        {"hidden_states": (2, 8, 12), "global_hidden_states": (2, 32), **_TEXT},
        {"timestep": [0.3, 0.6]},
    ),
    "CosmosTransformer3DModel": (
        {
            **_HEADS,
            "in_channels": 8,
            "out_channels": 8,
            "num_layers": 2,
            "text_embed_dim": 32,
            "adaln_lora_dim": 8,
            "max_size": (4, 16, 16),
            "extra_pos_embed_type": None,
            "concat_padding_mask": False,
        },
        {**_VIDEO, **_TEXT},
        {"timestep": [0.3, 0.6]},
    ),
    "MochiTransformer3DModel": (
        {
            **_HEADS,
            "num_layers": 2,
            "pooled_projection_dim": 32,
            "in_channels": 8,
            "text_embed_dim": 32,
            "time_embed_dim": 16,
            "max_sequence_length": 6,
        },
        {**_VIDEO, **_TEXT},
        {"timestep": [300, 600], "encoder_attention_mask": torch.ones(2, 6, dtype=torch.bool)},
    ),
    "SanaVideoTransformer3DModel": (
        {
            **_HEADS,
            "in_channels": 8,
            "out_channels": 8,
            "num_layers": 2,
            "num_cross_attention_heads": 2,
            "cross_attention_head_dim": 32,
            "cross_attention_dim": 64,
            "caption_channels": 32,
            "sample_size": 8,
        },
        {**_VIDEO, **_TEXT},
        {"timestep": [300, 600]},
    ),
    "SanaTransformer2DModel": (
        {
            **_HEADS,
            "in_channels": 8,
            "out_channels": 8,
            "num_layers": 2,
            "num_cross_attention_heads": 2,
            "cross_attention_head_dim": 32,
            "cross_attention_dim": 64,
            "caption_channels": 32,
            "sample_size": 8,
            "qk_norm": "rms_norm_across_heads",
        },
        {"hidden_states": (2, 8, 8, 8), **_TEXT},
        {"timestep": [300, 600]},
    ),
    "FluxTransformer2DModel": (
        {
            **_HEADS,
            "in_channels": 8,
            "num_layers": 1,
            "num_single_layers": 1,
            "joint_attention_dim": 32,
            "pooled_projection_dim": 32,
            "axes_dims_rope": (8, 12, 12),
        },
        {"hidden_states": (2, 16, 8), "pooled_projections": (2, 32), **_TEXT},
        {"timestep": [0.3, 0.6], "img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(6, 3)},
    ),
    "SD3Transformer2DModel": (
        {
            **_HEADS,
            "sample_size": 8,
            "in_channels": 8,
            "out_channels": 8,
            "num_layers": 2,
            "joint_attention_dim": 32,
            "caption_projection_dim": 64,
            "pooled_projection_dim": 32,
            "pos_embed_max_size": 8,
            "qk_norm": "rms_norm",
        },
        {"hidden_states": (2, 8, 8, 8), "pooled_projections": (2, 32), **_TEXT},
        {"timestep": [300, 600]},
    ),
    "LTXVideoTransformer3DModel": (
        {
            **_HEADS,
            "in_channels": 8,
            "out_channels": 8,
            "cross_attention_dim": 64,
            "num_layers": 2,
            "caption_channels": 32,
        },
        {"hidden_states": (2, 24, 8), **_TEXT},
        {
            "timestep": [300, 600],
            "encoder_attention_mask": torch.ones(2, 6),
            "num_frames": 2,
            "height": 4,
            "width": 3,
        },
    ),
    "HunyuanVideoTransformer3DModel": (
        {
            **_HEADS,
            "in_channels": 8,
            "out_channels": 8,
            "num_layers": 1,
            "num_single_layers": 1,
            "num_refiner_layers": 1,
            "text_embed_dim": 32,
            "pooled_projection_dim": 32,
            "rope_axes_dim": (8, 12, 12),
        },
        {**_VIDEO, "pooled_projections": (2, 32), **_TEXT},
        {
            "timestep": [300, 600],
            "guidance": [1.0, 2.0],
            "encoder_attention_mask": torch.ones(2, 6, dtype=torch.bool),
        },
    ),
    "WanTransformer3DModel": (
        {
            **_HEADS,
            "in_channels": 8,
            "out_channels": 8,
            "text_dim": 32,
            "freq_dim": 16,
            "ffn_dim": 96,
            "num_layers": 2,
            "rope_max_seq_len": 16,
        },
        {**_VIDEO, **_TEXT},
        {"timestep": [300, 600]},
    ),
    "Lumina2Transformer2DModel": (
        {
            "sample_size": 8,
            "in_channels": 8,
            "hidden_size": 96,
            "num_layers": 1,
            "num_refiner_layers": 1,
            "num_attention_heads": 4,
            "num_kv_heads": 2,
            "multiple_of": 16,
            "axes_dim_rope": (8, 8, 8),
            "axes_lens": (32, 16, 16),
            "cap_feat_dim": 32,
        },
        {"hidden_states": (2, 8, 8, 8), **_TEXT},
        {"timestep": [0.3, 0.6], "encoder_attention_mask": torch.ones(2, 6, dtype=torch.bool)},
    ),
    "PRXTransformer2DModel": (
        {
            "in_channels": 8,
            "context_in_dim": 32,
            "hidden_size": 64,
            "num_heads": 2,
            "depth": 2,
            "axes_dim": [16, 16],
        },
        {"hidden_states": (2, 8, 8, 8), **_TEXT},
        {"timestep": [0.3, 0.6]},
    ),
    "AutoencoderKLWan": (
        {
            "base_dim": 16,
            "z_dim": 4,
            "dim_mult": [1, 2],
            "num_res_blocks": 1,
            "temperal_downsample": [False],
            "latents_mean": [0.0] * 4,
            "latents_std": [1.0] * 4,
        },
        {"sample": (1, 3, 1, 16, 16)},
        {},
    ),
    "AutoencoderDC": (
        {
            "latent_channels": 8,
            "attention_head_dim": 8,
            "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "encoder_block_out_channels": (16, 32),
            "decoder_block_out_channels": (16, 32),
            "encoder_layers_per_block": (1, 1),
            "decoder_layers_per_block": (1, 1),
            "encoder_qkv_multiscales": ((), (5,)),
            "decoder_qkv_multiscales": ((), (5,)),
        },
        {"sample": (1, 3, 16, 16)},
        {},
    ),
    "AutoencoderKLLTXVideo": (
        {
            "latent_channels": 8,
            "block_out_channels": (16, 32),
            "down_block_types": ("LTXVideoDownBlock3D",) * 2,
            "decoder_block_out_channels": (16, 32),
            "layers_per_block": (1, 1, 1),
            "decoder_layers_per_block": (1, 1, 1),
            "spatio_temporal_scaling": (True, False),
            "decoder_spatio_temporal_scaling": (True, False),
            "decoder_inject_noise": (False,) * 3,
            "downsample_type": ("conv", "conv"),
            "upsample_residual": (False, False),
            "upsample_factor": (1, 1),
            "patch_size": 2,
        },
        {"sample": (1, 3, 3, 16, 16)},
        {},
    ),
}


def models() -> tuple[Model, ...]:
    return tuple(
        # The positions that Flux takes have no batch.
        Model(name, functools.partial(_make, name), dynamic=() if "Flux" in name else (0,))
        for name in _MODELS
    )


def _make(name: str) -> Made:
    import diffusers

    settings, sizes, others = _MODELS[name]
    diffusers.logging.set_verbosity_error()
    model = getattr(diffusers, name)(**settings)
    inputs: dict[str, Any] = {n: torch.randn(size) for n, size in sizes.items()}
    inputs |= {n: torch.tensor(v) if isinstance(v, list) else v for n, v in others.items()}
    return model, inputs
