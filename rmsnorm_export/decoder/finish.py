"""What follows the norms where it is asked for: fusions, half precision, weights in few bits."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from rmsnorm_export.decoder.bundle import states_of
from rmsnorm_export.decoder.tokens import TOKENS, Held
from rmsnorm_export.graph.layout import store_as_read
from rmsnorm_export.rewrite.optimize import described, in_half
from rmsnorm_export.rewrite.options import OptimizeOptions, RewriteOptions
from rmsnorm_export.rewrite.proofs import prove_loading
from rmsnorm_export.rewrite.result import Result

if TYPE_CHECKING:
    from rmsnorm_export.decoder.text import Text
    from rmsnorm_export.quantize.quantize import Measure
    from rmsnorm_export.quantize.result import Quantize


def finish(
    result: Result,
    options: RewriteOptions,
    *,
    one_buffer: bool = False,
    held: Held | None = None,
    text: Text | None = None,
) -> Result:
    """Return the result with the fusions, the half type and the quantization that are asked for.

    Args:
        result: with norms of one node.
        options: of the command.
        one_buffer, held: as for `fuse`.
        text: of `text_for`.

    Raises:
        InputError: the model cannot be converted or quantized.
        BackendMissingError: a package is missing.
    """
    start, model, report = time.perf_counter(), result.model, result.report
    dtype = options.dtype if isinstance(options, OptimizeOptions) else None
    if options.fusions is None and options.quantize is None and dtype is None:
        return result
    if options.fusions is not None:
        from rmsnorm_export.decoder.fusions import fuse

        how: Any = {"seed": options.seed, "one_buffer": one_buffer, "held": held}
        how["progress"] = options.progress
        model, fusions = fuse(model, options.fusions, **how)
        report = dataclasses.replace(report, fusions=fusions)
        if fusions.residuals >= len(report.apart("residual")):
            report = dataclasses.replace(report, unfolded=report.apart("quantizer", "rotary"))
    if isinstance(options, OptimizeOptions) and dtype is not None:
        from rmsnorm_export.decoder.tokens import as_text

        model, report = in_half(model, report, options, as_text(model.graph))
    if options.quantize is not None:
        from rmsnorm_export.quantize.quantize import quantize

        measure = _measure(model.graph, options.quantize, options, text)
        rounded = options.quantize != "int4" or not _begins_alone(model.graph)
        settings: Any = {"measure": measure, "rounded": rounded, "progress": options.progress}
        model, done = quantize(model, options.quantize, **settings)
        report = dataclasses.replace(report, quantized=done)
    seconds = report.seconds + time.perf_counter() - start
    report = prove_loading(model, described(report, model), options)
    return Result(model, dataclasses.replace(report, seconds=seconds))


def with_weights_as_read(results: Iterable[Result], target: str | None) -> list[Result]:
    """Return results that are written together, their weights stored as products read them.

    Args:
        results: of exports.
        target: of these; ``plain`` keeps what the exporter gives.
    """
    kept = list(results)
    if target == "plain":
        return kept
    store_as_read([result.model for result in kept])
    return [
        dataclasses.replace(result, report=described(result.report, result.model))
        for result in kept
    ]


def _begins_alone(graph: ir.Graph) -> bool:
    """Return whether a graph takes whole texts, and no token after one.

    In 4 bits many rows take 0.95 of the time of float32 with activations as they are, 1.45 with
    them in int8; a single row 0.37 and 0.28 (ONNX Runtime 1.31, a Xeon with AMX, 576 x 1536).
    """
    shapes = {str(value.name): value.shape for value in graph.inputs if value.shape is not None}
    given = [shapes[name] for name in TOKENS if name in shapes]
    texts = any(len(shape) > 1 and shape[1] != 1 for shape in given)
    return texts and not any(len(shapes.get(name, ())) > 2 for name in states_of(graph))


def _measure(
    graph: ir.Graph, kind: Quantize, options: RewriteOptions, text: Text | None
) -> Measure:
    """Return what measures the loss: on a text where a graph takes one, else on random inputs."""
    from rmsnorm_export.decoder.text import on_text
    from rmsnorm_export.decoder.tokens import as_text
    from rmsnorm_export.quantize.quantize import on_random_inputs

    otherwise = on_random_inputs(kind, seed=options.seed, prepare=as_text(graph))
    return otherwise if text is None else on_text(*text, kind, otherwise)
