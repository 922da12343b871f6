"""The graphs of a generative model, each with what transformers' exporter recorded of it."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import json
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from rmsnorm_export.errors import Error, InputError, UsageError
from rmsnorm_export.printable import first_line
from rmsnorm_export.system.packages import require_package
from rmsnorm_export.torch.export.chatter import collected
from rmsnorm_export.torch.export.clean import tidy
from rmsnorm_export.torch.export.trace import EXPORTING, inference, tell
from rmsnorm_export.torch.generation.caches import CachePart, cache_parts

if TYPE_CHECKING:
    from rmsnorm_export.torch_options import GenerationOptions


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Component:
    """One graph of a generative model.

    Attributes:
        name: ``prefill``, ``decode``, or what the exporter calls it.
        model: the graph, every norm spelled out; its weights are the module's.
        metadata: ``ExportMetadata`` of transformers: what its runner needs to call the graph.
        caches: paths of the keys and values among its inputs.
    """

    name: str
    model: ir.Model
    metadata: Any
    caches: Mapping[str, CachePart]


def trace_components(
    model: Any, inputs: Mapping[str, Any], options: GenerationOptions
) -> tuple[list[Component], str]:
    """Return the components of a model that generates, as ``transformers.exporters`` splits it.

    The exporter's own optimizer is omitted for `tidy`, which changes no number.

    Args:
        model: of transformers; left as it is.
        inputs: of ``model.generate``.
        options: of the export.

    Returns:
        The components in the order in which they run, and what was printed and warned of.

    Raises:
        InputError: the model cannot generate, or cannot be exported.
        UsageError: the cache is longer than the model's positions.
        BackendMissingError: transformers is not installed, or has no exporters.
    """
    require_package("transformers.exporters", "Exporting a cache", "transformers>=5.20")
    from transformers.exporters.configs import OnnxConfig
    from transformers.exporters.exporter_onnx import OnnxExporter
    from transformers.exporters.utils import decompose_for_generation

    settings = _generation_config(model, inputs, options)
    config: Any = OnnxConfig(
        dynamic=True, optimize=False, opset_version=options.opset, dynamic_shapes=None
    )
    recorded = {
        **json.loads(config.to_json_string()),
        "multi_token_decode": options.multi_token,
        "static_cache": options.static_cache,
    }
    components: list[Component] = []
    name = "generate"
    tell(options.progress, EXPORTING)
    with collected() as lines, inference(model), whole_static_caches(), own_types_of_caches():
        try:
            exporter: Any = OnnxExporter()  # type: ignore[no-untyped-call]
            with _encoder_calls(model) as encoder:
                stages = decompose_for_generation(
                    model,
                    dict(inputs),
                    generation_config=settings,
                    multi_token_decode=options.multi_token,
                )
            if options.multi_token:  # it is the prefill, too, with an empty cache
                stages.pop("prefill", None)
            stages = {**encoder, **stages}
            _check_whole(model, stages)
            for name, (module, feeds) in stages.items():
                caches = cache_parts(feeds)
                program, metadata = exporter.export_program(module, feeds, config=config)
                metadata.export_config = dict(recorded)
                components.append(Component(name, program, metadata, caches))
        except Error:
            raise
        except Exception as error:
            cause = error.__cause__ or error
            raise InputError(
                f"{type(model).__name__} cannot be exported for generation.",
                found=f"{name}: {type(cause).__name__}: {first_line(cause)}",
                fix="check that model.generate() runs on inputs of these shapes (--shapes); "
                "--debug prints the traceback; without --task the model is exported without cache",
            ) from error
        for component in components:
            tidy(component.model)
    return components, "\n".join(lines)


def check_generative(model: Any) -> None:
    """Refuse what is no model of transformers, or one that cannot generate.

    Raises:
        InputError: it is not.
    """
    if not hasattr(model, "set_attn_implementation") or not model.can_generate():
        raise InputError(
            "Only a model of transformers that generates is exported for generation.",
            found=f"{type(model).__module__}.{type(model).__qualname__}",
            fix="give a model of from_pretrained, or as SOURCE its folder, config.json or factory, "
            "with a head of a language model (LlamaForCausalLM); or omit --task",
        )


def _generation_config(model: Any, inputs: Mapping[str, Any], options: GenerationOptions) -> Any:
    """Return how ``model.generate`` is run to see its caches.

    Raises:
        UsageError: the cache is longer than the model's positions, or too short for the inputs.
    """
    if model.config.is_encoder_decoder and options.multi_token:
        raise UsageError(
            "An encoder-decoder has no decode of several tokens.",
            found="--multi-token or --names optimum",
            fix="omit it: encoder, prefill and decode are written",
        )
    config = copy.deepcopy(model.generation_config)
    config.do_sample, config.num_beams, config.use_cache = False, 1, True
    if (size := options.static_cache) is not None:
        tokens = inputs.get(written_name(model))
        least = 2 if tokens is None else tokens.shape[1] + 2
        most = getattr(model.config.get_text_config(), "max_position_embeddings", None) or size
        if not least <= size <= most:
            raise UsageError(
                "The cache does not fit the model or the text that it is traced with.",
                found=f"{size} tokens",
                fix=f"use --static-cache {least} to {most} (the text and two tokens, "
                "max_position_embeddings)",
            )
        config.cache_implementation, config.max_cache_len = "static", size
    return config


def _check_whole(model: Any, stages: Collection[str]) -> None:
    """Refuse a model that sees or hears without its encoder among its components.

    Raises:
        InputError: ``generate`` of transformers 5.23 runs it before ``forward``,
            where its exporter does not find it.
    """
    if "language_model" in stages and not any(name.endswith("_encoder") for name in stages):
        raise InputError(
            "The encoder of this model's images or sound would be missing.",
            found=f"{type(model).__name__}: transformers' exporter gives {', '.join(stages)}",
            fix="export its language model alone, or another release of transformers may find it",
        )


@contextlib.contextmanager
def _encoder_calls(model: Any) -> Iterator[dict[str, tuple[Any, dict[str, Any]]]]:
    """Catch the encoder of an encoder-decoder and its inputs, which the exporter omits.

    It gives the components that begin with the encoder's result.
    """
    stages: dict[str, tuple[Any, dict[str, Any]]] = {}
    if not model.config.is_encoder_decoder:
        yield stages
        return

    def keep(module: Any, _: Any, feeds: dict[str, Any]) -> None:
        taken = inspect.signature(module.forward).parameters
        stages["encoder"] = (
            module,
            {
                name: value
                for name, value in feeds.items()
                if name in taken and isinstance(value, torch.Tensor)
            },
        )

    handle = model.get_encoder().register_forward_pre_hook(keep, with_kwargs=True)
    try:
        yield stages
    finally:
        handle.remove()


def written_name(model: Any) -> str:
    """Return the input of ``generate`` with the tokens that the model continues."""
    return "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"


@contextlib.contextmanager
def whole_static_caches() -> Iterator[None]:
    """Static caches hold every token in layers with a window, too; the mask keeps to the window.

    transformers' own layers hold the window alone and, once it is full, move along it: which of the
    two happens is decided in Python, so that a traced step would do for ever what it did once.
    """
    from transformers import cache_utils

    layers = getattr(cache_utils, "STATIC_LAYER_TYPE_MAPPING", {})
    whole = {"sliding_attention": "full_attention", "chunked_attention": "full_attention"}
    whole["hybrid_sliding"] = "hybrid"
    before = dict(layers)
    layers.update({name: before[other] for name, other in whole.items() if name in before})
    try:
        yield
    finally:
        layers.update(before)


@contextlib.contextmanager
def own_types_of_caches() -> Iterator[None]:
    """Caches go into a trace as the step before gave them.

    The exporter gives every input the type of the weights. Mamba holds its states in float32 beside
    weights of half precision, so that decode would not take what prefill gives.
    """
    from transformers import exporters

    utils: Any = exporters.utils
    cast = utils.cast_leaf_tensors

    def keeping(inputs: Mapping[str, Any], **how: Any) -> dict[str, Any]:
        plain = torch.Tensor, Mapping, list, tuple
        return {
            name: cast(value, **how) if isinstance(value, plain) else value
            for name, value in inputs.items()
        }

    utils.cast_leaf_tensors = keeping
    try:
        yield
    finally:
        utils.cast_leaf_tensors = cast


def sample_inputs(model: Any, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs of ``generate``, with an attention mask that pads on the left.

    A mask of ones alone is dropped while tracing, and the graph would take no padded batch. A scan
    in chunks is traced with several of them, or the graph would take no more than one. An
    encoder-decoder begins with two tokens: with its start alone, the length of its cache would be
    fixed.

    Args:
        model: of transformers.
        feeds: inputs by name; ``input_ids`` of shape [batch, sequence] are drawn with the
            seed 0 where there are none.
    """
    inputs = dict(feeds)
    if "input_ids" not in inputs and model.main_input_name == "input_ids":
        limit = model.get_input_embeddings().num_embeddings
        generator = torch.Generator().manual_seed(0)
        chunks = (getattr(model.config, name, 0) for name in ("chunk_size", "mamba_chunk_size"))
        length = max([5, *(2 * chunk + 1 for chunk in chunks if chunk)])
        inputs["input_ids"] = torch.randint(0, limit, (2, length), generator=generator)
    ids = inputs.get("input_ids")
    if ids is not None and "attention_mask" not in inputs:
        mask = torch.ones_like(ids)
        mask[0, 0] = 0
        inputs["attention_mask"] = mask
    if ids is not None and model.config.is_encoder_decoder and "decoder_input_ids" not in inputs:
        start = model.generation_config.decoder_start_token_id
        start = model.generation_config.bos_token_id if start is None else start
        begin = torch.full((len(ids), 1), 0 if start is None else start, dtype=ids.dtype)
        inputs["decoder_input_ids"] = torch.cat([begin, ids[:, -1:]], dim=1)
    return inputs
