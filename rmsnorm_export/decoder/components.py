"""The graphs of a generative model, each with what transformers' exporter recorded of it."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from rmsnorm_export.decoder.bundle import state_name, states_of
from rmsnorm_export.decoder.caches import (
    CachePart,
    cache_in,
    cache_parts,
    own_tokens_alone,
    whole_caches,
)
from rmsnorm_export.decoder.encoders import Stages, encoder_calls, replaced
from rmsnorm_export.decoder.guards import lengths_of
from rmsnorm_export.decoder.inputs import TEXT, chunk_size, greedy, positions_of, written_name
from rmsnorm_export.decoder.release import other_release
from rmsnorm_export.decoder.short import fill_states
from rmsnorm_export.errors import Error, InputError, UsageError
from rmsnorm_export.printable import first_line
from rmsnorm_export.system.packages import TRANSFORMERS, require_package
from rmsnorm_export.torch.export.apart import begin_trace
from rmsnorm_export.torch.export.clean import tidy
from rmsnorm_export.torch.export.convert import EXPORTING, inference, tell
from rmsnorm_export.torch.export.failure import CONTROL_FLOW, collected

if TYPE_CHECKING:
    from rmsnorm_export.decoder.options import GenerationOptions


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Component:
    """One graph of a generative model.

    Attributes:
        name: ``prefill``, ``decode``, or that of an encoder.
        model: the graph, every norm spelled out; its weights are the module's.
        metadata: ``ExportMetadata`` of transformers: what its runner needs to call the graph.
        caches: paths of the keys and values among its inputs.
        lengths: the fewest and the most tokens of a prompt; None: any number, or unknown.
    """

    name: str
    model: ir.Model
    metadata: Any
    caches: Mapping[str, CachePart]
    lengths: tuple[int, int] | None


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
    if options.static_cache is not None:
        _check_cache(model, inputs, options.static_cache)
    settings = greedy(model, options.static_cache)
    components: list[Component] = []
    tell(options.progress, EXPORTING)
    with collected() as lines, inference(model), whole_caches(static=True), own_types_of_caches():
        with _refusals("generate", model):
            stages = _stages(model, inputs, settings, options)
        traces = {name: _begin(name, *stage, options) for name, stage in stages.items()}
        for name, answer in traces.items():
            tell(options.progress, EXPORTING, name)
            components.append(answer())
    return components, "\n".join(lines)


@contextlib.contextmanager
def _refusals(name: str, module: torch.nn.Module) -> Iterator[None]:
    """Turn what the exporter raises of a part of a model into an error of this package.

    Raises:
        InputError: it raised something else than such an error.
    """
    try:
        yield
    except Exception as error:
        cause = error if isinstance(error, Error) else error.__cause__ or error
        if isinstance(cause, Error):  # which the exporter may have taken for one of the model
            raise cause  # noqa: B904
        raise InputError(
            f"{type(module).__name__} cannot be exported for generation.",
            found=f"{name}: {type(cause).__name__}: {first_line(cause)}",
            fix=_fix(cause, module),
        ) from error


def _fix(cause: BaseException, module: torch.nn.Module) -> str:
    if fix := other_release():
        return fix
    if CONTROL_FLOW.match(type(cause).__name__):
        if any(one.dtype in (torch.float16, torch.bfloat16) for one in module.parameters()):
            return "try --dtype f32: some, as BART, branch on values in half precision alone"
        return "no branch on the values of tensors can be exported: --debug shows where it is"
    return (
        "check that model.generate() runs on inputs of these shapes (--shapes); --part "
        "language-model omits images and sound; --debug prints the traceback"
    )


def _stages(
    model: Any, inputs: Mapping[str, Any], settings: Any, options: GenerationOptions
) -> Stages:
    """Return what is traced: the parts of a model that ``generate`` calls, and their inputs."""
    from transformers.exporters.utils import decompose_prefill_decode
    from transformers.exporters.utils import get_leaf_tensors as leaves

    with encoder_calls(model) as encoders:
        how = {"generation_config": settings, "multi_token_decode": options.multi_token}
        calls = decompose_prefill_decode(model, dict(inputs), **how)
    _, begun = calls["prefill"]
    # One whose inputs go to forward, too, runs there.
    stages = {name: one for name, one in encoders.items() if not one[1].keys() <= begun.keys()}
    if options.multi_token:
        if stages or inputs.keys() & begun.keys() - TEXT:
            raise UsageError(
                "A model with an encoder has no decode of several tokens.",
                found=f"{type(model).__name__} as one graph: --multi-token, or --names",
                fix="omit it: encoder, prefill and decode are written; or --part language-model",
            )
        _, later = calls["decode"]
        if missing := leaves(begun).keys() - leaves(later).keys():
            raise UsageError(
                "A prompt of this model takes more than the tokens after it: no graph is both.",
                found=f"{', '.join(sorted(missing))} of {type(model).__name__}",
                fix="omit --multi-token, and --names; prefill and decode are written",
            )
        del calls["prefill"]  # decode is that, too, with an empty cache
        if chunk_size(model):
            calls["decode"] = _second_turn(model, inputs, later, settings)
    return {**stages, **calls}


def _second_turn(
    model: Any, inputs: Mapping[str, Any], later: Mapping[str, Any], settings: Any
) -> tuple[Any, Any]:
    """Return what is traced for a text after a text: the same one once more.

    The exporter takes two tokens, which is one chunk of a scan: the graph would take no more.

    Args:
        model, inputs: of ``generate``.
        later: what the model takes after the first text, with its cache.
        settings: of the generation.
    """
    from transformers.exporters.utils import decompose_prefill_decode

    ids, mask, cache = inputs["input_ids"], inputs["attention_mask"], cache_in(later)
    twice = {name: value for name, value in later.items() if value is cache}
    twice |= {"input_ids": torch.cat([ids, ids], dim=1)}
    twice |= {"attention_mask": torch.cat([mask, torch.ones_like(mask)], dim=1)}
    second: tuple[Any, Any]
    second = decompose_prefill_decode(model, twice, generation_config=settings)["prefill"]
    return second


def _begin(
    name: str, module: Any, feeds: dict[str, Any], options: GenerationOptions
) -> Callable[[], Component]:
    """Begin the trace of a component, and return what waits for it.

    Raises:
        InputError: it cannot be exported, or its inputs, or what becomes of its cache, are not
            understood; raised by what is returned.
    """

    def trace() -> tuple[ir.Model, tuple[Any, ...]]:
        with collected() as lines, _refusals(name, module):
            one = _component(name, module, feeds, options)
        return one.model, (one.metadata, one.caches, one.lengths, lines)

    wait = begin_trace(module, trace)

    def answer() -> Component:
        model, (metadata, caches, lengths, lines) = wait()
        print("\n".join(lines))  # to be collected here, too
        return Component(name, model, metadata, caches, lengths)

    return answer


def _component(
    name: str, module: Any, feeds: dict[str, Any], options: GenerationOptions
) -> Component:
    """Return one component.

    Raises:
        InputError: its inputs, or what becomes of its cache, are not understood.
    """
    from transformers.exporters.configs import OnnxConfig
    from transformers.exporters.exporter_onnx import OnnxExporter
    from transformers.exporters.utils import get_leaf_tensors

    config: Any = OnnxConfig(
        dynamic="image_sizes" not in feeds,  # whose values the exporter makes constants
        optimize=False,
        opset_version=options.opset,
        dynamic_shapes=None,
    )
    exporter: Any = OnnxExporter()  # type: ignore[no-untyped-call]
    caches = cache_parts(feeds)
    lengths, export = None, torch.onnx.export

    def looked_at(program: Any, *args: Any, **how: Any) -> Any:
        nonlocal lengths
        lengths = lengths_of(program, feeds)
        return export(program, *args, **how)

    size = options.static_cache if name == "prefill" else None
    attends = own_tokens_alone(module, size) if size else contextlib.nullcontext()
    with replaced(torch.onnx, "export", looked_at), attends:
        model, metadata = exporter.export_program(module, feeds, config=config)
    if options.multi_token and lengths is not None and not lengths[0] <= 1 < lengths[1]:
        raise InputError(
            "One graph cannot take both a prompt of this model and the tokens after it.",
            found=f"{name} takes {lengths[0]} to {lengths[1]} tokens, of a loop that was traced",
            fix="omit --multi-token, and --names; prefill and decode are written",
        )
    metadata.export_config = {
        **json.loads(config.to_json_string()),
        "multi_token_decode": options.multi_token,
        "static_cache": options.static_cache,
    }
    if lengths == (1, options.static_cache):
        lengths = None  # as many as the cache holds
    tidy(model)
    if name == "prefill":
        fill_states(model)
    states = states_of(model.graph)
    inputs = {state_name(str(value.name)): str(value.name) for value in model.graph.inputs}
    growing = {path for path, part in caches.items() if not part.cross} & inputs.keys()
    strange = {path for path in growing if not states.get(inputs[path])}
    strange |= inputs.keys() - get_leaf_tensors(feeds).keys()
    if strange or (name == "decode" and not states):
        raise InputError(
            "What the graph of this model keeps between two tokens is not understood.",
            found=f"{name}: {', '.join(sorted(strange)) or 'no input is followed by an output'}",
            fix=f"install {TRANSFORMERS}; without --task the model is exported without cache",
        )
    return Component(name, model, metadata, caches, lengths)


def check_generative(model: Any) -> None:
    """Refuse what is no model of transformers, or one that cannot generate.

    Raises:
        InputError: it is not.
    """
    require_package("transformers.exporters.metadata", "Exporting a cache", TRANSFORMERS)
    if not hasattr(model, "set_attn_implementation") or not model.can_generate():
        raise InputError(
            "Only a model of transformers that generates is exported for generation.",
            found=f"{type(model).__module__}.{type(model).__qualname__}",
            fix="give a model of from_pretrained, or as SOURCE its folder, config.json or factory, "
            "with a head of a language model (LlamaForCausalLM); or omit --task",
        )


def _check_cache(model: Any, inputs: Mapping[str, Any], size: int) -> None:
    """Check the size of a static cache.

    Raises:
        UsageError: it is longer than the model's positions, or too short for the inputs.
    """
    tokens = inputs.get(written_name(model))
    least = 2 if tokens is None else tokens.shape[1] + 2
    most = positions_of(model) or size
    if not least <= size <= most:
        raise UsageError(
            "The cache does not fit the model or the text that it is traced with.",
            found=f"{size} tokens",
            fix=f"use --static-cache {least} to {most} (the text and two tokens, "
            "max_position_embeddings)",
        )


def own_types_of_caches() -> AbstractContextManager[None]:
    """Caches go into a trace as the step before gave them.

    The exporter gives every input the type of the weights. Mamba holds its states in float32 beside
    weights of half precision, so that decode would not take what prefill gives.
    """
    utils: Any = importlib.import_module("transformers.exporters.utils")
    cast = utils.cast_leaf_tensors

    def keeping(inputs: Mapping[str, Any], **how: Any) -> dict[str, Any]:
        plain = torch.Tensor, Mapping, list, tuple
        return {
            name: cast(value, **how) if isinstance(value, plain) else value
            for name, value in inputs.items()
        }

    return replaced(utils, "cast_leaf_tensors", keeping)
