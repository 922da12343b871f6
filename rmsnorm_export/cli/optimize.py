"""``optimize``: every RMSNorm of a model becomes one node."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files
from rmsnorm_export.cli.folder import is_folder, optimize_in_folder, optimize_several
from rmsnorm_export.cli.options import FILE, State
from rmsnorm_export.cli.outcome import Output, failed_proofs, output_option, replacing_files
from rmsnorm_export.rewrite.options import OptimizeOptions, Requirement, SaveOptions

if TYPE_CHECKING:
    from rmsnorm_export.graph.policy import WeightsPolicy


@define(
    "optimize",
    OptimizeOptions,
    Requirement,
    SaveOptions,
    short_help="Make every RMSNorm of a model one node.",
)
@click.argument("models", type=FILE, nargs=-1, required=True, metavar="MODEL...")
@output_option
@replacing_files
def command(
    state: State,
    models: tuple[str, ...],
    output: str,
    files: Files,
    require: Any,
    weights: WeightsPolicy,
    **options: Any,
) -> None:
    """Make every RMSNorm of MODEL one node and write the result to OUT.

    MODEL is an ONNX file, - for stdin, or a folder of graphs that an exporter of
    decoders has made; OUT is a folder then, as for several files, which keep
    their names. It is never changed, unless -o names it and --force replaces it.

    \b
    Examples:
      rmsnorm-export optimize model.onnx -o fused.onnx --require all --prove
      rmsnorm-export optimize exported/ -o decoder/ --target ort
      rmsnorm-export optimize encoder.onnx head.onnx -o optimized/
    """
    import rmsnorm_export

    requirement, model = Requirement(require=require), models[0]
    if len(models) > 1:
        optimize_several(models, output, files, requirement, weights, options)
        return
    if is_folder(model):
        optimize_in_folder(model, output, files, requirement, weights, options)
        return
    place = Output(model, output, weights, files)
    place.check(is_model=True)
    source = files.source(model)
    with console.progress(state, "Optimizing") as step:
        result = rmsnorm_export.optimize(source, progress=step, drawings=files.drawn, **options)
    name = console.source_name(model, result.report.source)
    report = dataclasses.replace(result.report, source=name)
    unmet, written = requirement.unmet(report), None
    if unmet is None:
        with console.progress(state, "Writing"):
            written = place.write(result)
    place.finish(report, written, unmet or failed_proofs(report))
