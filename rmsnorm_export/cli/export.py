"""``export``: a PyTorch module as an ONNX file in which every RMSNorm is one node."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmsnorm_export.cli import console, html_file
from rmsnorm_export.cli.options import (
    TARGETS,
    State,
    format_option,
    logging_options,
    numerics_option,
    seed_option,
)
from rmsnorm_export.cli.outcome import (
    failed_proofs,
    outcome_lines,
    require_value,
    unmet,
    write_model,
)

if TYPE_CHECKING:
    from rmsnorm_export.cli.failure import Failure
    from rmsnorm_export.compare.result import Verification
    from rmsnorm_export.graph.external import WeightsPolicy
    from rmsnorm_export.lower.targets import Target
    from rmsnorm_export.op.numerics import Numerics
    from rmsnorm_export.rewrite.result import Report
    from rmsnorm_export.system.progress import Progress
    from rmsnorm_export.torch.source.example import Example
    from rmsnorm_export.torch.source.loaded import Loaded


def _arguments(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """``NAME=VALUE`` with VALUE a Python literal, or else a string."""
    found: dict[str, Any] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        if name in found:
            raise click.BadParameter(f"{name!r} is given twice")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            found[name] = value
    return found


@click.command("export", short_help="Export a PyTorch model, every RMSNorm one node.")
@click.argument("source")
@click.option(
    "-o", "--output", required=True, metavar="OUT", help="File to write, or - for stdout."
)
@click.option(
    "--arg",
    "arguments",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_arguments,
    help="Argument of the factory, a Python literal or else a string; may be repeated.",
)
@click.option(
    "--shapes",
    metavar='"NAME=TYPE[SIZES];..."',
    help="Inputs: names, types, sizes; a named size is dynamic, from 1 or within LOW..HIGH. "
    "Needed unless the source has example inputs.",
)
@click.option(
    "--dtype",
    type=click.Choice(("f32", "f16", "bf16")),
    help="Type of the weights.  [default: as the source has it; f32 for random weights]",
)
@click.option(
    "--target",
    type=click.Choice(TARGETS),
    default="portable",
    show_default=True,
    help="As for optimize: portable, onnx (opset 23) or ort.",
)
@numerics_option
@click.option(
    "--opset",
    type=int,
    metavar="N",
    help="Opset of the file, 18 to 24.  [default: PyTorch's choice; 23 for the target onnx]",
)
@click.option(
    "--require",
    metavar="N|all",
    callback=require_value,
    help="Fail with exit code 5, and write nothing, unless N norms are one node; all: unless there "
    "is a norm and none was refused (look-alikes do not count).",
)
@click.option(
    "--prove",
    is_flag=True,
    help="Run every site before and after on hard inputs. A site that fails keeps its nodes, the "
    "output is written, and the exit code is 4.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Compare the written file in ONNX Runtime with PyTorch on random inputs, dynamic sizes "
    "changed once. Exit code 4 when they differ.",
)
@click.option(
    "--rtol",
    type=click.FloatRange(min=0),
    help="Bound of --verify, relative to the largest element of an output.  [default: 1e-4 for "
    "float32, 1e-2 float16, 4e-2 bfloat16]",
)
@click.option(
    "--weights",
    type=click.Choice(("auto", "embed")),
    default="auto",
    show_default=True,
    help="auto: weights over 2 GiB go to OUT.data; embed: all in OUT, or an error.",
)
@click.option("--force", is_flag=True, help="Replace existing files of -o, --report, --html.")
@click.option(
    "--report",
    "report_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the report to FILE too: as JSON if it ends in .json, else as text.",
)
@html_file.option
@seed_option("Of the inputs of --prove and --verify.")
@format_option
@logging_options
@click.pass_context
def command(
    context: click.Context,
    source: str,
    output: str,
    arguments: dict[str, Any],
    shapes: str | None,
    dtype: str | None,
    target: Target,
    numerics: Numerics,
    opset: int | None,
    require: int | str | None,
    prove: bool,
    verify: bool,
    rtol: float | None,
    weights: WeightsPolicy,
    force: bool,
    report_path: Path | None,
    html_path: Path | None,
    seed: int,
) -> None:
    """Export a PyTorch model to ONNX and write it to OUT.

    SOURCE is package.module:factory (a callable that returns a module, or a module with its
    example args and kwargs), a local Hugging Face folder, a config.json (random weights), or a
    .pt2 file of torch.export.save. A factory and a .pt2 file run code: give only those that you
    trust. Nothing is downloaded.

    \b
    Examples:
      rmsnorm-export export ./my-llama -o llama.onnx --dtype f16 --verify
      rmsnorm-export export my.models:make -o out.onnx --arg layers=2 \\
          --shapes "ids=int64[batch=1..8,seq=1..2048]"
    """
    state = context.ensure_object(State)
    state.model_on_stdout = output == console.STDIO
    if verify and state.model_on_stdout:
        raise click.UsageError("--verify needs a file: give -o PATH")
    with console.logging_to_stderr(state), _stages(state) as tell:
        from rmsnorm_export.cli import report_file
        from rmsnorm_export.cli.failure import ReportedError
        from rmsnorm_export.graph.save import check_output
        from rmsnorm_export.records import to_json
        from rmsnorm_export.show.report_text import render, report_lines

        if report_path is not None:
            report_file.check(report_path, force=force, taken=(source, output))
        html_file.check(html_path, force=force, taken=(source, output, report_path))
        if state.model_on_stdout:
            console.refuse_terminal()
        else:
            check_output(output, force=force)
        tell("loading the module", 0, 1)
        from rmsnorm_export.torch.export.export import convert
        from rmsnorm_export.torch.source.example import example_of
        from rmsnorm_export.torch.source.load import load

        loaded = load(source, arguments=arguments, dtype=dtype)
        given = example_of(loaded, shapes, seed=seed, option="--shapes")
        converted = convert(
            loaded.module,
            given.args,
            kwargs=given.kwargs,
            target=target,
            numerics=numerics,
            opset=opset,
            dynamic_shapes=given.dynamic,
            prove=prove,
            seed=seed,
            progress=tell,
            drawings=html_path is not None,
        )
        result = converted.result
        report = dataclasses.replace(result.report, source=source)
        failure = unmet(report, require)
        written, parity = None, None
        if failure is None:
            tell("writing", 0, 1)
            written = write_model(result, output, weights, force)
            failure = failed_proofs(report)
            if verify:
                tell("comparing with PyTorch", 0, 1)
                parity = _verify(loaded, given, output, seed=seed, rtol=rtol)
                failure = failure or _differs(parity)
        extra: dict[str, object] = {"output": written}
        extra |= {"verification": parity} if parity else {}
        extra |= {"error": failure.as_dict()} if failure else {}
        outcome = outcome_lines(written)
        lines = report_lines(report, verbose=state.verbosity, output=outcome)
        if parity is not None:
            from rmsnorm_export.cli.verify import comparison_lines

            lines += ["", *comparison_lines(parity, "PyTorch", output, state.verbosity)]
        if html_path is not None:
            _write_page(html_path, report, parity, outcome, output, force, failure)
        if report_path is not None:
            as_json = report_path.suffix == ".json"
            text = to_json(report, extra=extra) if as_json else render(lines)
            report_file.write(report_path, text, force=force)
        if state.json:
            console.show_json(state, report, extra)
        else:
            console.show(state, lines)
    if failure is not None:
        raise ReportedError(failure)


def _verify(
    loaded: Loaded, given: Example, output: str, *, seed: int, rtol: float | None
) -> Verification:
    from rmsnorm_export.cli.export_parity import compare_with_pytorch

    feeds = given.feeds(seed=seed, limit=loaded.limit)
    source = f"random, seed {seed}" if given.inputs else "the example inputs of the source"
    return compare_with_pytorch(loaded.module, output, feeds, rtol=rtol, source=source)


def _write_page(
    path: Path,
    report: Report,
    parity: Verification | None,
    outcome: list[str],
    output: str,
    force: bool,
    failure: Failure | None,
) -> None:
    """The page of --html, with the comparison where there was one."""
    from rmsnorm_export.show.page import verification_section

    said = ("Output", "; ".join(line.strip() for line in outcome))
    compared = [] if parity is None else [verification_section(parity, "PyTorch", output)]
    html_file.write(path, report, force=force, facts=[said], failure=failure, sections=compared)


def _differs(parity: Verification) -> Failure | None:
    from rmsnorm_export.cli.failure import Failure
    from rmsnorm_export.errors import ExitCode

    if parity.passed:
        return None
    return Failure(
        "The exported file differs from PyTorch by more than is allowed; it was written.",
        parity.reason,
        "see the table for where; --rtol sets the bound",
        ExitCode.VERIFICATION,
    )


@contextlib.contextmanager
def _stages(state: State) -> Iterator[Progress]:
    """What is told of each step: progress on a terminal, and log lines with -v."""
    import logging

    logger = logging.getLogger("rmsnorm_export.cli.export")
    with console.progress(state, "Starting") as show:

        def tell(what: str, done: int, total: int) -> None:
            logger.info("%s (%d of %d done)", what, done, total)
            show(what, done, total)

        yield tell
