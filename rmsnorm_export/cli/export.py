"""``export``: a PyTorch module as an ONNX file in which every RMSNorm is one node."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.failure import with_problem
from rmsnorm_export.cli.files import Files
from rmsnorm_export.cli.options import State
from rmsnorm_export.cli.outcome import Output, failed_proofs, output_option, replacing_files
from rmsnorm_export.errors import Error
from rmsnorm_export.op.type_names import TYPE_NAMES, float_name
from rmsnorm_export.rewrite.options import ExportOptions, Requirement, SourceOptions

if TYPE_CHECKING:
    from rmsnorm_export.compare.eager import OwnPrecision
    from rmsnorm_export.compare.result import Verification
    from rmsnorm_export.torch.source.example import Example, Loaded


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
    Requirement,
    short_help="Export a PyTorch model, every RMSNorm one node.",
)
@click.argument("source")
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
    arguments: dict[str, Any],
    verify: bool,
    require_verified: bool,
    rtol: float | None,
    files: Files,
    **options: Any,
) -> None:
    """Export a PyTorch model to ONNX and write it to OUT.

    SOURCE is package.module:factory (a callable that returns a module, or a module with its
    example args and kwargs), a local Hugging Face folder, a config.json (random weights), or a
    .pt2 file of torch.export.save. A factory runs code: give only one that you trust. A .pt2 file
    that could run code is refused. Nothing is downloaded.

    \b
    Examples:
      rmsnorm-export export ./my-llama -o llama.onnx --dtype f16 --verify
      rmsnorm-export export my.models:make -o out.onnx --arg layers=2 \\
          --shapes "ids=int64[batch=1..8,seq=1..2048]"
    """
    verify = verify or require_verified
    if verify and state.model_on_stdout:
        raise click.UsageError("--verify needs a file: give -o PATH")
    names = ("shapes", "dims", "dtype", "require", "trust_source")
    shapes, dims, dtype, require, trust_source = (options.pop(name) for name in names)
    place = Output(source, output, options.pop("weights"), files)
    place.check(is_model=False)
    with console.progress(state, "Starting", log=__name__) as tell:
        tell("loading the module", 0, 1)
        from rmsnorm_export.torch.export.export import convert
        from rmsnorm_export.torch.source.example import example_of
        from rmsnorm_export.torch.source.load import load

        own: OwnPrecision | Exception | None = None
        if verify and dtype is not None and not Path(source).is_file():
            tell("running the source in its own type", 0, 1)
            mine = load(source, arguments=arguments, dtype=None, trust_source=trust_source)
            example = example_of(mine, shapes, dims=dims, seed=options["seed"], option="--shapes")
            own = _own_precision(mine, example, dtype, seed=options["seed"])
            del mine, example
        loaded = load(source, arguments=arguments, dtype=dtype, trust_source=trust_source)
        given = example_of(loaded, shapes, dims=dims, seed=options["seed"], option="--shapes")
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
                    parity = _verify(
                        loaded,
                        given,
                        output,
                        seed=options["seed"],
                        rtol=rtol,
                        strict=require_verified,
                        own=own,
                    )
                    error = error or parity.error(_DIFFERS, fix=_RTOL)
                except Exception as problem:  # the file is written: its report is not lost
                    error = with_problem(error, "--verify", problem)
    place.finish(report, written, error, parity)


def _own_precision(
    mine: Loaded, example: Example, dtype: str, *, seed: int
) -> OwnPrecision | Exception | None:
    """What the source computes in its own float type; None where it is ``dtype``.

    An error of it is for the comparison: the file is to be written all the same.
    """
    import torch

    from rmsnorm_export.compare.eager import run_in_own_type
    from rmsnorm_export.compare.pytorch import PyTorch

    name = TYPE_NAMES[float_name(dtype)]
    side = PyTorch(mine)
    inputs, weights = side.float_type, side.weights_type
    if weights in ("", name) or not isinstance(mine.module, torch.nn.Module):
        return None
    try:
        feeds = example.feeds(seed=seed, limit=mine.limit)
        other = getattr(torch, name)
        return run_in_own_type(mine, feeds, other, inputs=inputs, weights=weights)
    except Exception as problem:
        return problem


def _verify(
    loaded: Loaded,
    given: Example,
    path: str,
    *,
    seed: int,
    rtol: float | None,
    strict: bool,
    own: OwnPrecision | Exception | None,
) -> Verification:
    """Every output of the file, graph optimization on, against PyTorch eager on the same inputs.

    PyTorch runs the source in the float type that it has; in that of the file where that is the
    same, or where the source gives other weights each time.

    Raises:
        InputError: the module cannot be run on these inputs.
        VerificationError: ONNX Runtime cannot load or run the file, or it has other inputs or
            outputs than the module.
        BackendMissingError: ONNX Runtime is not installed.
    """
    from rmsnorm_export.compare.backend import Answer
    from rmsnorm_export.compare.eager import feeds_of_call, run_eager
    from rmsnorm_export.compare.options import VerifyOptions
    from rmsnorm_export.compare.pytorch import PyTorch
    from rmsnorm_export.compare.verify import RecordedCall, compare_recorded

    if isinstance(own, Exception):
        raise own
    notes, weights = [], ""
    if own is not None and own.digest != _digest(loaded):
        notes = [
            f"compared with the source in the type of the file, not in its own {own.dtype}: "
            "its weights are not the same each time"
        ]
        own = None
    if own is not None:
        weights = own.dtype
        notes = [f"compared with the source in its own {own.dtype}"]

    def calls(names: Sequence[str]) -> list[RecordedCall]:
        if own is not None:
            return [RecordedCall(feeds_of_call(names, *call), made) for call, made in own.runs]
        return [
            RecordedCall(
                feeds_of_call(names, args, kwargs),
                Answer(*run_eager(loaded.module, args, kwargs), named=False),
            )
            for args, kwargs in given.feeds(seed=seed, limit=loaded.limit)
        ]

    source = f"random, seed {seed}" if given.inputs else "the example inputs of the source"
    runtime = PyTorch(loaded).runtime
    options = VerifyOptions(rtol=rtol, require_verified=strict)
    return compare_recorded(
        path,
        calls,
        options,
        runtime=runtime,
        weights=weights,
        source=source,
        notes=notes,
    )


def _digest(loaded: Loaded) -> str:
    """Of the weights in the type that most of them have."""
    import torch

    from rmsnorm_export.compare.eager import weights_digest
    from rmsnorm_export.compare.pytorch import PyTorch

    return weights_digest(loaded.module, getattr(torch, PyTorch(loaded).weights_type))
