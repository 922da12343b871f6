"""A decoder as a folder of ONNX files that generate, with every RMSNorm as one node."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmsnorm_export.decoder.bundle import (
    GENAI_FILE,
    TOKENIZER,
    check_folder,
    copy_missing,
    write_json,
)
from rmsnorm_export.decoder.caches import whole_caches
from rmsnorm_export.decoder.components import Component, check_generative, trace_components
from rmsnorm_export.decoder.consumers import (
    PADDED,
    allow_empty_of_optimum,
    genai_config,
    tokenizer_files,
)
from rmsnorm_export.decoder.encoders import ONE_SIZE
from rmsnorm_export.decoder.finish import finish, with_weights_as_read
from rmsnorm_export.decoder.inputs import sample_inputs
from rmsnorm_export.decoder.names import OPTIMUM, States, called, name_by_layer, name_dimensions
from rmsnorm_export.decoder.options import GenerationOptions
from rmsnorm_export.decoder.release import naming_release
from rmsnorm_export.decoder.result import FolderResult, GenerationExport
from rmsnorm_export.decoder.rows import write_rows
from rmsnorm_export.decoder.text import text_for
from rmsnorm_export.decoder.tokens import Held
from rmsnorm_export.errors import UsageError
from rmsnorm_export.graph.load import no_gc
from rmsnorm_export.options import keywords, takes
from rmsnorm_export.rewrite.optimize import optimize_model
from rmsnorm_export.rewrite.options import OptimizeOptions, RewriteOptions
from rmsnorm_export.rewrite.result import Result
from rmsnorm_export.rewrite.runs import is_of_cpu
from rmsnorm_export.system.packages import TRANSFORMERS, untried
from rmsnorm_export.torch.export.convert import RECOGNISING, tell

if TYPE_CHECKING:
    import onnx_ir as ir


@takes(GenerationOptions)
def export_generation(
    model: Any, path: str | os.PathLike[str], options: GenerationOptions
) -> GenerationExport:
    """Export a model that generates, with its cache: as prefill and decode, or as one graph.

    transformers' exporter splits the model and traces its parts (``transformers.exporters``); the
    norms of each become one node, named after their modules. The folder is one that
    ``transformers.exporters.base.ExportedModel.from_pretrained`` loads: ``export.json``, the
    configs, and ``NAME.onnx`` with ``NAME.onnx.data`` for each component. Weights of several
    components are stored once, in the first one's data.

    Args:
        model: a model of transformers; left as it is.
        path: the folder to make, whole or not at all.

    Returns:
        What was written, with a report for each component.

    Raises:
        UsageError: an option cannot be used, or the folder exists and ``force`` is not given.
        InputError: the model cannot generate or be exported, or the folder cannot be written.
        BackendMissingError: PyTorch, onnxscript, or a transformers with exporters is missing.
    """
    check_folder(path, force=options.force)
    return make_decoder(model, options).save(path, force=options.force)


@naming_release()
def make_decoder(model: Any, options: GenerationOptions) -> FolderResult:
    """As `export_generation`, without writing anything."""
    start = time.perf_counter()
    check_generative(model)
    by_layer = options.names != "transformers"
    of_encoder = options.names == "optimum" and model.config.is_encoder_decoder
    if by_layer and options.static_cache is not None:
        raise UsageError(
            f"{options.names} cannot hold a cache of fixed size.",
            found=f"--names {options.names} with --static-cache {options.static_cache}",
            fix="omit one of them",
        )
    if of_encoder:  # before minutes of tracing
        called(model.main_input_name, OPTIMUM["encoder"][1], options.names)
    elif by_layer:
        options = dataclasses.replace(options, multi_token=True)
    shared = OptimizeOptions(**keywords(options, RewriteOptions))
    _check_type(model, shared)
    companions = tokenizer_files(model)
    text = text_for(shared, companions.get(TOKENIZER))
    caches_of_all_tokens = whole_caches(static=False) if by_layer else contextlib.nullcontext()
    with no_gc(), caches_of_all_tokens:
        inputs = sample_inputs(model, options.inputs or {}, part=options.part)
        components, log = trace_components(model, inputs, options)
    genai = options.names == "genai"
    results: dict[str, Result] = {}
    states: States = {}
    held = Held()
    caches = {path: part for one in components for path, part in one.caches.items()}
    for component in components:
        tell(options.progress, RECOGNISING, component.name)
        name_dimensions(component.model, component.caches, options.static_cache, states)
        name = component.name
        if by_layer:
            name, taken = OPTIMUM[name] if of_encoder else ("model", {})
            name_by_layer(component.model, caches, options.names, taken)
        optimized = optimize_model(component.model, shared)
        result = finish(optimized, shared, one_buffer=genai, held=held, text=text)
        if options.target != "plain":  # which is as the exporter gives it
            write_rows(result.model)
        notes = [*_notes(model, component, result.model.graph, options.names)]
        results[name] = result.noting(notes, source=f"{type(model).__name__}, {component.name}")
    config = model.config
    if options.names == "optimum" and not of_encoder:
        config = config.get_text_config()
        allow_empty_of_optimum(config, results["model"].model)
    results = dict(
        zip(results, with_weights_as_read(results.values(), options.target), strict=True)
    )
    of_genai = genai_config(model, results["model"].model.graph) if genai else None

    def fill(folder: Path) -> None:
        config.save_pretrained(folder)
        model.generation_config.save_pretrained(folder)
        if of_genai is not None:
            write_json(folder / GENAI_FILE, of_genai)
        copy_missing(companions, folder)

    return FolderResult(
        results=results,
        manifest=None if by_layer else _manifest(components),
        fill=fill,
        log=log,
        seconds=time.perf_counter() - start,
    )


def _check_type(model: Any, options: OptimizeOptions) -> None:
    """Refuse what products of bfloat16 cannot become, before minutes of tracing.

    Raises:
        UsageError: the runtime has none, or weights of them are to be quantized.
    """
    if str(model.dtype) != "torch.bfloat16":
        return
    if (runtime := options.consumer) is not None and is_of_cpu(runtime):
        what, fix = f"The runtime {runtime.label} lacks bfloat16.", "use --dtype f32 or f16, or "
        fix += "another runtime, as onnxruntime-gpu"
        raise UsageError(what, found="a decoder in bfloat16, and a provider of the CPU", fix=fix)
    if options.quantize is not None:
        what, fix = "Weights in bfloat16 cannot be quantized.", "use --dtype f32 or f16"
        found = f"a decoder in bfloat16, and --quantize {options.quantize}"
        raise UsageError(what, found=found, fix=f"{fix}, or omit --quantize")


def _notes(model: Any, component: Component, graph: ir.Graph, names: str) -> Iterator[str]:
    """Yield what the consumer of a graph has to know."""
    if drift := untried(TRANSFORMERS):
        yield drift
    if any(value.name == "cu_seqlens" for value in graph.inputs):
        yield ONE_SIZE
    if component.lengths is not None:
        least, most = component.lengths
        numbers = f"{least} tokens" if least == most else f"{least} to {most} tokens"
        yield (
            f"takes prompts of {numbers} alone, as a loop over tokens was traced (--shapes sets "
            "their length); pad shorter ones on the left; longer ones may give wrong numbers"
        )
    window = getattr(model.config.get_text_config(), "sliding_window", None)
    if names == "genai" and window:
        yield PADDED


def _manifest(components: list[Component]) -> dict[str, Any]:
    from transformers.exporters.base import EXPORT_SCHEMA_VERSION

    return {
        "schema_version": EXPORT_SCHEMA_VERSION,
        "export_format": "onnx",
        "components": {
            component.name: {
                "file": f"{component.name}.onnx",
                "metadata": dataclasses.asdict(component.metadata),
            }
            for component in components
        },
    }
