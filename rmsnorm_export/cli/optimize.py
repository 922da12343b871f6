"""``optimize``: every RMSNorm of a model becomes one node; or, for ``plain``, none is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import MODEL, define, output
from rmsnorm_export.cli.files import Files, first_problem, is_folder
from rmsnorm_export.rewrite.options import OptimizeOptions, Requirement, SaveOptions

if TYPE_CHECKING:
    from rmsnorm_export.graph.policy import WeightsPolicy


_WRITTEN = output("The file to write, - for stdout; of a folder a folder.")


@define("optimize", OptimizeOptions, Requirement, SaveOptions, params=[MODEL, _WRITTEN])
def command(
    files: Files, model: str, output: str, require: Any, weights: WeightsPolicy, **options: Any
) -> None:
    """Make every RMSNorm of MODEL one node and write the result to OUT.

    MODEL is an ONNX file, - for stdin, or a folder of graphs that an exporter of
    decoders has made; OUT is a folder then. MODEL is never changed, unless -o names
    it and --force replaces it. With --target plain, norms that are one node are
    written out again.

    \b
    Examples:
      rmsnorm-export optimize model.onnx -o fused.onnx --require all --prove
      rmsnorm-export optimize exported/ -o decoder/ --target ort
      rmsnorm-export optimize fused.onnx -o plain.onnx --target plain --site "*layers.0*"
    """
    from rmsnorm_export.api import optimize

    requirement, of_graphs = Requirement(require=require), is_folder(model)
    files.check_place(model, output, of_graphs=of_graphs)
    source = files.source(model)
    with console.progress(files.state, "Optimizing") as step:
        result = optimize(source, progress=step, **options)
    unmet, error = first_problem(result.reports, requirement)
    saved = None
    if unmet is None:
        with console.progress(files.state, "Writing"):
            saved = files.write(output, result, weights=weights)
    files.finish_written(result.reports, saved, error)
