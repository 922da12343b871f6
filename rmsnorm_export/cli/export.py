"""``export``: a PyTorch module as an ONNX file in which every RMSNorm is one node."""

from __future__ import annotations

import ast
import dataclasses
from dataclasses import fields
from typing import Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.failure import with_problem
from rmsnorm_export.cli.files import Files
from rmsnorm_export.cli.options import FILE, Choice, State
from rmsnorm_export.cli.outcome import Output, failed_proofs, output_option, replacing_files
from rmsnorm_export.errors import Error
from rmsnorm_export.options import entries
from rmsnorm_export.rewrite.options import (
    ExportOptions,
    GenerationOptions,
    Requirement,
    SourceOptions,
)

_DECODER = [
    entry
    for entry in entries(GenerationOptions)
    if entry.facts.cli and entry.name not in {field.name for field in fields(ExportOptions)}
]
"""Options of a decoder's export that one graph does not have."""

_DIFFERS = "The exported file differs from PyTorch by more than is allowed; it was written."
_RTOL = "see the table for where; --rtol sets the bound"


def _arguments(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """``NAME=VALUE`` with VALUE a Python literal, or else a string."""
    given: dict[str, Any] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        if name in given:
            raise click.BadParameter(f"{name!r} is given twice")
        try:
            given[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            given[name] = value
    return given


@define(
    "export",
    SourceOptions,
    ExportOptions,
    GenerationOptions,
    Requirement,
    short_help="Export a PyTorch model, every RMSNorm one node.",
)
@click.argument("source", type=FILE)
@output_option
@click.option(
    "--arg",
    "arguments",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_arguments,
    help="Argument of the factory, a Python literal or else a string; may be repeated.",
)
@click.option(
    "--task",
    type=Choice(["generation"]),
    help="generation: a decoder with its cache, which transformers' exporter splits into prefill "
    "and decode; OUT is a folder then. Without it: one graph without cache.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Compare the written file in ONNX Runtime with PyTorch on random inputs, dynamic sizes "
    "changed once. Exit code 4 when they differ, 7 when the file cannot be run here.",
)
@click.option(
    "--require-verified",
    is_flag=True,
    help="As --verify; and exit code 7, too, where the file was not run as it is: no float32 "
    "stand-in for a type without kernels.",
)
@click.option(
    "--rtol",
    type=click.FloatRange(min=0),
    help="Bound of --verify, relative to the largest element of an output.  [default: 1e-4 for "
    "float32, 1e-2 float16, 4e-2 bfloat16]",
)
@replacing_files
def command(
    state: State,
    source: str,
    output: str,
    task: str | None,
    verify: bool,
    files: Files,
    **options: Any,
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
    verify = verify or options["require_verified"]
    if verify and state.model_on_stdout:
        raise click.UsageError("--verify needs a file: give -o PATH")
    if task == "generation":
        from rmsnorm_export.cli.generation import export_decoder

        export_decoder(source, output, options, files, verify=verify)
        return
    for entry in _DECODER:
        if options.pop(entry.name) != entry.default:
            raise click.UsageError(f"{entry.flag} is for --task generation")
    require, rtol, require_verified = (
        options.pop(name) for name in ("require", "rtol", "require_verified")
    )
    names = ("arguments", "shapes", "dims", "dtype", "trust_source")
    loading = SourceOptions(**{name: options.pop(name) for name in names})
    place = Output(source, output, options.pop("weights"), files)
    place.check(is_model=False)
    with console.progress(state, "Starting", log=__name__) as tell:
        tell("loading the module", 0, 1)
        from rmsnorm_export.compare.options import VerifyOptions
        from rmsnorm_export.compare.own_type import compare_file, load_source
        from rmsnorm_export.torch.export.export import convert

        loaded, given, own = load_source(
            source, loading, seed=options["seed"], option="--shapes", own=verify
        )
        converted = convert(
            loaded.module,
            given.args,
            kwargs=given.kwargs,
            dynamic_shapes=given.dynamic,
            progress=tell,
            drawings=files.drawn,
            **options,
        )
        report = converted.result.report
        report = dataclasses.replace(report, source=source, notes=(*report.notes, *loaded.notes))
        written = parity = None
        error: Error | None = Requirement(require=require).unmet(report)
        if error is None:
            tell("writing", 0, 1)
            written = place.write(converted.result)
            error = failed_proofs(report)
            if verify:
                tell("comparing with PyTorch", 0, 1)
                try:
                    bounds = VerifyOptions(
                        rtol=rtol, require_verified=require_verified, seed=options["seed"]
                    )
                    parity = compare_file(output, loaded, given, own, bounds)
                    error = error or parity.error(_DIFFERS, fix=_RTOL)
                except Exception as problem:  # the file is written: its report is not lost
                    error = with_problem(error, "--verify", problem)
    place.finish(report, written, error, parity)
