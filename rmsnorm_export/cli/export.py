"""``export``: a PyTorch module as an ONNX file in which every RMSNorm is one node."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from rmsnorm_export import torch_options as records
from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define, output
from rmsnorm_export.cli.failure import with_problem
from rmsnorm_export.cli.files import Files, first_problem
from rmsnorm_export.cli.options import FILE
from rmsnorm_export.decoder.options import GenerationOptions
from rmsnorm_export.options import entries
from rmsnorm_export.quantize.result import QUANTIZED_RTOL
from rmsnorm_export.rewrite.options import Requirement

_RTOL = "see the table for where; verify has other bounds"


def _arguments(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """Read ``NAME=VALUE`` with VALUE a Python literal, or else a string."""
    arguments: dict[str, Any] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        try:
            arguments[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            arguments[name] = value
    return arguments


_PARAMS = [
    click.Argument(["source"], type=FILE),
    output("The file to write, - for stdout; with --task generation a folder."),
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
    GenerationOptions,
    Requirement,
    params=_PARAMS,
)
def command(
    files: Files, source: str, output: str, task: str | None, verify: bool, **options: Any
) -> None:
    """Export a PyTorch model to ONNX and write it to OUT.

    SOURCE is package.module:factory or file.py:factory (a callable that returns a module, or a
    module with its example args and kwargs), a local Hugging Face folder, a config.json (random
    weights), or a .pt2 file of torch.export.save. A factory runs code, a .pt2 file can
    (--trust-source): give only what you trust. Nothing is downloaded.

    \b
    Examples:
      rmsnorm-export export ./my-llama -o llama.onnx --dtype f16 --verify
      rmsnorm-export export my.models:make -o out.onnx --arg layers=2 \\
          --shapes "ids=int64[batch=1..8,seq=1..2048]"
      rmsnorm-export export ./my-llama --task generation -o decoder/ --verify
    """
    if verify and files.state.model_on_stdout:
        raise click.UsageError("--verify needs a file: give -o PATH")
    kinds: list[Any] = [records.ExportOptions, GenerationOptions]
    kind, other = kinds if task is None else kinds[::-1]
    own = _those_of(kind, options)
    for entry in entries(other):
        if options.get(entry.name, entry.default) != entry.default and entry.name not in own:
            what = "is not for" if task else "is for"
            raise click.UsageError(f"{entry.flag} {what} --task generation")
    requirement = Requirement(require=options["require"])
    loading = records.SourceOptions(**_those_of(records.SourceOptions, options))
    files.check(source, output)
    files.check_place(console.STDIO, output, of_graphs=task is not None)
    with console.progress(files.state, "Starting") as step:
        from rmsnorm_export.compare.options import VerifyOptions
        from rmsnorm_export.deploy.source import load_and_convert
        from rmsnorm_export.runtime.session import onnxruntime

        if verify:
            onnxruntime()  # if it is missing, nothing is written

        step("loading the module", 0, 1)
        own["progress"] = step
        bounds = VerifyOptions(rtol=QUANTIZED_RTOL.get(options["quantize"]), progress=step)
        exported, _, compare = load_and_convert(source, loading, task, own, bounds, compared=verify)
        reports = exported.reports
        unmet, error = first_problem(reports, requirement)
        saved, more = None, {}
        if unmet is None:
            step("writing", 0, 1)
            weights = {} if task else {"weights": options["weights"]}
            saved = files.write(output, exported, **weights)
        if saved and verify:
            step("comparing with PyTorch", 0, 1)
            try:
                more = {"verification": compare(Path(output))}
                error = error or more["verification"].error(fix=_RTOL)
            except Exception as problem:  # what is written is: its report is not lost
                error = with_problem(error, "--verify", problem)
    files.remember(source)
    files.finish_written(reports, saved, error, **more)


def _those_of(record: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    names = {entry.name for entry in entries(record)}
    return {name: value for name, value in options.items() if name in names}
