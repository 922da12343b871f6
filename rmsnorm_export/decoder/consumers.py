"""The files that optimum and onnxruntime-genai need in the folder of a decoder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx_ir as ir

from rmsnorm_export.decoder.buffers import in_one_buffer, read_in_its_sizes
from rmsnorm_export.decoder.bundle import companions, states_of
from rmsnorm_export.errors import UsageError

_SEARCH = (
    "do_sample", "early_stopping", "length_penalty", "no_repeat_ngram_size", "num_beams",
    "repetition_penalty", "temperature", "top_k", "top_p",
)  # fmt: skip
"""Settings of generation that transformers and onnxruntime-genai call alike."""

_KINDS = ("key", "value")

PADDED = "a sliding window counts the padding behind a row: use rows of one length"

_OWN_HEADS = (
    "arcee", "cohere", "gemma", "gemma3", "gemma3_text", "glm", "gpt_oss", "granite", "helium",
    "llama", "mistral", "nemotron", "qwen2", "qwen3", "qwen3_moe", "smollm3", "stablelm",
)  # fmt: skip
_OWN_WIDTHS = ("gemma", "gemma3", "gemma3_text", "gpt_oss", "nemotron")
"""Types of models of which optimum-onnx 0.1 reads the heads of keys, and their width, in the
config; of others it takes all heads, and ``hidden_size`` over them."""


def tokenizer_files(model: Any) -> dict[str, Path]:
    """Return what stands beside the weights of a model: tokenizer and chat template, by name.

    Of a model of a hub those that are on this machine; nothing is downloaded.

    Raises:
        InputError: one is a link out of the folder.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    name = str(model.name_or_path)
    if not os.path.isdir(name):
        try:
            name = snapshot_download(name, local_files_only=True)
        except (HFValidationError, LocalEntryNotFoundError):
            return {}
    return companions(Path(name))


def allow_empty_of_optimum(config: Any, model: ir.Model) -> None:
    """Let a graph take the empty cache that optimum-onnx begins with, in place.

    It makes it of the config, which is of text alone; of some models with other heads or widths. A
    runtime adds tokens to nothing whatever its sizes, so that those are left open that it would not
    give. Attention nodes check them, and read the cache in those of the model.
    """
    heads, width = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    heads = config.num_key_value_heads if config.model_type in _OWN_HEADS else heads
    width = config.head_dim if config.model_type in _OWN_WIDTHS else width
    states = states_of(model.graph)
    for value in model.graph.inputs:
        if value.name in states and value.shape is not None:
            rows, own_heads, past, own_width = value.shape
            if (own_heads, own_width) != (heads, width) or config.model_type == "deepseek_v3":
                read_in_its_sizes(model, [str(value.name)])
                value.shape = ir.Shape([rows, "heads", past, "width"])


def genai_config(model: Any, graph: ir.Graph) -> dict[str, Any]:
    """Return the content of ``genai_config.json`` for a decoder of one graph.

    Args:
        model: of transformers.
        graph: with the names of ``name_by_layer``.

    Raises:
        UsageError: keys and values of a layer have other sizes: it makes both alike.
    """
    text, settings = model.config.get_text_config(), model.generation_config
    inputs = {str(value.name): value for value in graph.inputs}
    keys = next(value for name, value in inputs.items() if name.endswith(".key"))
    assert keys.shape is not None  # name_dimensions gave it one
    for name, value in inputs.items():
        values = inputs.get(name.replace(".key", ".value"), value)
        if value.shape != values.shape:
            raise UsageError(
                "This model's cache cannot be held by genai.",
                found=f"{name} {value.shape}, {values.name} {values.shape}",
                fix="omit --names, or use --names optimum",
            )
    ends = _first(settings.eos_token_id, text.eos_token_id, [])
    every_end = ends if isinstance(ends, list) else [ends]
    length = text.max_position_embeddings
    names = {name: name for name in inputs if not name.startswith("past_key_values.")}
    decoder = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": "model.onnx",
        "head_size": keys.shape[3],
        "hidden_size": text.hidden_size,
        "inputs": names | {f"past_{k}_names": f"past_key_values.%d.{k}" for k in _KINDS},
        "outputs": {"logits": "logits"} | {f"present_{k}_names": f"present.%d.{k}" for k in _KINDS},
        "num_attention_heads": text.num_attention_heads,
        "num_hidden_layers": text.num_hidden_layers,
        "num_key_value_heads": keys.shape[1],
    }
    search = {name: getattr(settings, name, None) for name in _SEARCH}
    return {
        "model": {
            "bos_token_id": _first(settings.bos_token_id, text.bos_token_id, 0),
            "context_length": length,
            "decoder": decoder,
            "eos_token_id": every_end,
            "pad_token_id": _first(settings.pad_token_id, text.pad_token_id, *every_end, 0),
            "type": "decoder",
            "vocab_size": text.vocab_size,
        },
        "search": {
            **{name: value for name, value in search.items() if value is not None},
            "max_length": length,
            "past_present_share_buffer": in_one_buffer(graph),
        },
    }


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)
