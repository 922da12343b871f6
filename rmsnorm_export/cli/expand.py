"""``expand``: norms that are one node become standard operators again."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files
from rmsnorm_export.cli.options import FILE, State
from rmsnorm_export.cli.outcome import Output, failed_proofs, output_option, replacing_files
from rmsnorm_export.rewrite.options import ExpandOptions, SaveOptions

if TYPE_CHECKING:
    from rmsnorm_export.graph.policy import WeightsPolicy


@define("expand", ExpandOptions, SaveOptions, short_help="Write norms that are one node out again.")
@click.argument("model", type=FILE)
@output_option
@replacing_files
def command(
    state: State,
    model: str,
    output: str,
    files: Files,
    weights: WeightsPolicy,
    **options: Any,
) -> None:
    """Write every norm of MODEL that is one node out in standard operators, to OUT.

    MODEL is an ONNX file, or - for stdin: one that optimize has written for any target, or
    with RMSNormalization of its own. The opset stays; the same file gives the same bytes.

    \b
    Example:
      rmsnorm-export expand fused.onnx -o plain.onnx --site "*layers.0*" --prove
    """
    import rmsnorm_export

    place = Output(model, output, weights, files)
    place.check(is_model=True)
    source = files.source(model)
    with console.progress(state, "Expanding") as step:
        result = rmsnorm_export.expand(source, progress=step, drawings=files.drawn, **options)
    name = console.source_name(model, result.report.source)
    report = dataclasses.replace(result.report, source=name)
    with console.progress(state, "Writing"):
        written = place.write(result)
    place.finish(report, written, failed_proofs(report))
