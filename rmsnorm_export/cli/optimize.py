"""``optimize``: every RMSNorm of a model becomes one node; or, for ``plain``, none is."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmsnorm_export.cli import console, outcome
from rmsnorm_export.cli.commands import MODEL, OUTPUT, define
from rmsnorm_export.cli.files import Files
from rmsnorm_export.rewrite.options import OptimizeOptions, Requirement, SaveOptions

if TYPE_CHECKING:
    from rmsnorm_export.graph.policy import WeightsPolicy


@define("optimize", OptimizeOptions, Requirement, SaveOptions, params=[MODEL, OUTPUT])
def command(
    files: Files, model: str, output: str, require: Any, weights: WeightsPolicy, **options: Any
) -> None:
    """Make every RMSNorm of MODEL one node and write the result to OUT.

    MODEL is an ONNX file, - for stdin, or a folder of graphs that an exporter of
    decoders has made; OUT is a folder then. It is never changed, unless -o names
    it and --force replaces it. With the target plain norms that are one node are
    written out again.

    \b
    Examples:
      rmsnorm-export optimize model.onnx -o fused.onnx --require all --prove
      rmsnorm-export optimize exported/ -o decoder/ --target ort
      rmsnorm-export optimize fused.onnx -o plain.onnx --target plain --site "*layers.0*"
    """
    from rmsnorm_export.rewrite.optimize import optimize
    from rmsnorm_export.rewrite.result import GenerationExport

    requirement, of_graphs = Requirement(require=require), outcome.is_folder(model)
    outcome.check_place(files, model, output, of_graphs=of_graphs)
    source = files.source(model)
    options["drawings"] = files.drawn
    with console.progress(files.state, "Optimizing") as step:
        result: Any = optimize(source, progress=step, **options)
        if of_graphs:
            reports = result.reports
        else:
            name = console.source_name(model, result.report.source)
            reports = {"": dataclasses.replace(result.report, source=name)}
    unmet, error = outcome.first_problem(reports, requirement)
    written = None
    if unmet is None:
        with console.progress(files.state, "Writing"):
            written = outcome.write_model(files, output, result, weights)
    if of_graphs:
        nothing = GenerationExport(Path(output), reports, (), "", result.seconds)
        outcome.finish_folder(files, written or nothing, error)
    else:
        outcome.finish_model(files, model, reports[""], written, error)
