"""``optimize``: every RMSNorm of a model becomes one node."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import force_option, html_option, report_option
from rmsnorm_export.cli.options import State
from rmsnorm_export.cli.outcome import FORCE_HELP, Outputs, failed_proofs
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
@click.argument("model")
@click.option(
    "-o", "--output", required=True, metavar="OUT", help="File to write, or - for stdout."
)
@force_option(FORCE_HELP)
@report_option
@html_option
def command(
    state: State,
    model: str,
    output: str,
    force: bool,
    report_path: Path | None,
    html_path: Path | None,
    require: Any,
    weights: WeightsPolicy,
    **options: Any,
) -> None:
    """Make every RMSNorm of MODEL one node and write the result to OUT.

    MODEL is an ONNX file, or - for stdin. It is never changed.

    \b
    Example:
      rmsnorm-export optimize model.onnx -o fused.onnx --require all --prove
    """
    import rmsnorm_export

    outputs = Outputs(
        source=model,
        output=output,
        weights=weights,
        force=force,
        report=report_path,
        html=html_path,
    )
    outputs.check(is_model=True)
    source = console.model_source(model)
    with console.progress(state, "Optimizing") as step:
        result = rmsnorm_export.optimize(
            source, progress=step, drawings=html_path is not None, **options
        )
    name = console.source_name(model, result.report.source)
    report = dataclasses.replace(result.report, source=name)
    unmet, written = Requirement(require=require).unmet(report), None
    if unmet is None:
        with console.progress(state, "Writing"):
            written = outputs.write(result)
    outputs.finish(state, report, written, unmet or failed_proofs(report))
