"""``export``: a PyTorch module as an ONNX file in which every RMSNorm is one node."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmsnorm_export import torch_options as records
from rmsnorm_export.cli import console, outcome
from rmsnorm_export.cli.commands import OUTPUT, define
from rmsnorm_export.cli.failure import with_problem
from rmsnorm_export.cli.files import Files
from rmsnorm_export.cli.options import FILE
from rmsnorm_export.options import entries
from rmsnorm_export.rewrite.options import Requirement
from rmsnorm_export.rewrite.result import GenerationExport

if TYPE_CHECKING:
    from rmsnorm_export.compare.result import Verification
    from rmsnorm_export.rewrite.result import Report
    from rmsnorm_export.system.progress import Progress

_DIFFERS = "What was exported differs from PyTorch by more than is allowed; it was written."
_RTOL = "see the table for where; verify has other bounds"
_OWN = {
    record: [entry for entry in entries(record) if entry.facts.cli]
    for record in (records.ExportOptions, records.GenerationOptions)
}
_SOURCE = [entry.name for entry in entries(records.SourceOptions)]


def _arguments(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """Read ``NAME=VALUE`` with VALUE a Python literal, or else a string."""
    arguments: dict[str, Any] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        if name in arguments:
            raise click.BadParameter(f"{name!r} is given twice")
        try:
            arguments[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            arguments[name] = value
    return arguments


_PARAMS = [
    click.Argument(["source"], type=FILE),
    OUTPUT,
    click.Option(
        ["--arg", "arguments"],
        multiple=True,
        metavar="NAME=VALUE",
        callback=_arguments,
        help="Argument of the factory, a Python literal or else a string; may be repeated.",
    ),
    click.Option(
        ["--task"],
        type=click.Choice(["generation"]),
        help="generation: a decoder with its cache, which transformers' exporter splits into"
        " prefill and decode; OUT is a folder then. Without it: one graph without cache.",
    ),
    click.Option(
        ["--verify"],
        is_flag=True,
        help="Compare the written file in ONNX Runtime with PyTorch on random inputs, dynamic sizes"
        " changed once. Exit code 4 when they differ, 7 when the file cannot be run here.",
    ),
]


@define(
    "export",
    records.SourceOptions,
    records.ExportOptions,
    records.GenerationOptions,
    Requirement,
    params=_PARAMS,
)
def command(
    files: Files, source: str, output: str, task: str | None, verify: bool, **options: Any
) -> None:
    """Export a PyTorch model to ONNX and write it to OUT.

    SOURCE is package.module:factory (a callable that returns a module, or a module with its
    example args and kwargs), a local Hugging Face folder, a config.json (random weights), or a
    .pt2 file of torch.export.save. A factory runs code, a .pt2 file can (--trust-source): give only
    what you trust. Nothing is downloaded.

    \b
    Examples:
      rmsnorm-export export ./my-llama -o llama.onnx --dtype f16 --verify
      rmsnorm-export export my.models:make -o out.onnx --arg layers=2 \\
          --shapes "ids=int64[batch=1..8,seq=1..2048]"
      rmsnorm-export export ./my-llama --task generation -o decoder/ --verify
    """
    if verify and files.state.model_on_stdout:
        raise click.UsageError("--verify needs a file: give -o PATH")
    record = records.GenerationOptions if task else records.ExportOptions
    mine = {entry.name for entry in _OWN[record]}
    for entry in (entry for own in _OWN.values() for entry in own):
        if entry.name not in mine and options.pop(entry.name, entry.default) != entry.default:
            other = "one graph, not for" if task else "the"
            raise click.UsageError(f"{entry.flag} is for {other} --task generation")
    requirement = Requirement(require=options.pop("require"))
    loading = records.SourceOptions(**{name: options.pop(name) for name in _SOURCE})
    outcome.check_place(files, source, output, of_graphs=task is not None, is_model=False)
    options["drawings"] = files.drawn
    with console.progress(files.state, "Starting", log=__name__) as tell:
        tell("loading the module", 0, 1)
        export = _export_decoder if task else _export_graph
        reports, write, compare = export(source, loading, options, tell)
        unmet, error = outcome.first_problem(reports, requirement)
        files.remember(source)
        written = parity = None
        if unmet is None:
            tell("writing", 0, 1)
            written = write(files, output)
        if unmet is None and verify:
            tell("comparing with PyTorch", 0, 1)
            try:
                parity = compare(output)
                error = error or parity.error(_DIFFERS, fix=_RTOL)
            except Exception as problem:  # what is written is: its report is not lost
                error = with_problem(error, "--verify", problem)
    if task:
        nothing = GenerationExport(Path(output), reports, (), "", 0.0)
        outcome.finish_folder(files, written or nothing, error, parity)
    else:
        outcome.finish_model(files, source, reports[""], written, error, parity)


_Exported = tuple["dict[str, Report]", Callable[[Files, str], Any], "Callable[[str], Verification]"]
"""The reports, and what writes the files and compares them with PyTorch."""


def _export_graph(
    source: str,
    loading: records.SourceOptions,
    options: dict[str, Any],
    tell: Progress,
) -> _Exported:
    from rmsnorm_export.compare.options import VerifyOptions
    from rmsnorm_export.compare.source import compare_file, load_source
    from rmsnorm_export.torch.export.export import convert

    weights = options.pop("weights")
    loaded, example = load_source(source, loading, seed=0)
    options |= {"kwargs": example.kwargs, "dynamic_shapes": example.dynamic}
    result, _ = convert(
        loaded.module, example.args, records.ExportOptions(progress=tell, **options)
    )
    notes = (*result.report.notes, *loaded.notes)
    return (
        {"": dataclasses.replace(result.report, source=source, notes=notes)},
        lambda files, place: outcome.write_model(files, place, result, weights),
        lambda place: compare_file(place, loaded, example, VerifyOptions()),
    )


def _export_decoder(
    source: str,
    loading: records.SourceOptions,
    options: dict[str, Any],
    tell: Progress,
) -> _Exported:
    from rmsnorm_export.compare.generation import verify_made
    from rmsnorm_export.torch.generation.export import make_decoder
    from rmsnorm_export.torch.generation.source import load_generative

    cache = options["static_cache"]
    model, inputs, notes = load_generative(source, loading, seed=0)
    decoder = make_decoder(
        model, records.GenerationOptions(inputs=inputs, progress=tell, **options)
    )
    reports = {
        name: dataclasses.replace(report, notes=(*report.notes, *notes))
        for name, report in decoder.reports.items()
    }
    return (
        reports,
        lambda files, place: dataclasses.replace(
            decoder.save(Path(place), force=files.force), reports=reports
        ),
        lambda place: verify_made(model, Path(place), inputs, static_cache=cache, rtol=None),
    )
