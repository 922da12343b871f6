"""``build``: a TensorRT or TensorRT-RTX engine from an ONNX model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.options import State, format_option, logging_options

if TYPE_CHECKING:
    from rmsnorm_export.tensorrt.engine.result import PluginUse

_SIZE = re.compile(r"(\d{1,15})\s*(KiB|MiB|GiB|B)?", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def _size(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """``4GiB`` as a number of bytes."""
    if value is None:
        return None
    found = _SIZE.fullmatch(value.strip())
    if found is None or int(found[1]) == 0:
        raise click.BadParameter(f"{value!r} is not a number of bytes, e.g. 4GiB or 512MiB")
    return int(found[1]) * _UNITS[(found[2] or "").lower()]


@click.command("build", short_help="Build a TensorRT or TensorRT-RTX engine.")
@click.argument("model")
@click.option("-o", "--output", required=True, metavar="ENGINE", help="File to write.")
@click.option(
    "--backend",
    type=click.Choice(("auto", "tensorrt", "tensorrt-rtx")),
    default="auto",
    show_default=True,
    help="auto: TensorRT where it and a GPU are, else TensorRT-RTX, which needs no GPU.",
)
@click.option(
    "--shapes",
    multiple=True,
    metavar='"NAME=MIN,OPT,MAX;..."',
    help="Smallest, usual and largest shape of every input with dynamic sizes, e.g. "
    '"ids=1x1,4x128,8x2048"; one shape fixes it. Repeat for several profiles.',
)
@click.option(
    "--plugin",
    type=click.Choice(("auto", "require", "never")),
    default="auto",
    show_default=True,
    help="auto: use the plugin if the backend is TensorRT and a library is built; require: exit "
    "code 6 if there is none. TensorRT-RTX has no plugin layers.",
)
@click.option(
    "--embed-plugin",
    is_flag=True,
    help="Store the plugin library in the engine; with --version-compatible.",
)
@click.option(
    "--timing-cache",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Measured kernel times, read and extended. TensorRT-RTX has none.",
)
@click.option("--version-compatible", is_flag=True, help="Run in later versions of TensorRT, too.")
@click.option("--hardware-compatible", is_flag=True, help="Run on every GPU from Ampere on.")
@click.option("--tf32", is_flag=True, help="Let TensorRT round f32 operands of products.")
@click.option(
    "--memory-limit",
    metavar="SIZE",
    callback=_size,
    help="Most workspace memory of the engine, e.g. 4GiB.",
)
@click.option("--force", is_flag=True, help="Replace an existing engine and its record.")
@format_option
@logging_options
@click.pass_context
def command(
    context: click.Context,
    model: str,
    output: str,
    backend: Literal["auto", "tensorrt", "tensorrt-rtx"],
    shapes: tuple[str, ...],
    plugin: PluginUse,
    embed_plugin: bool,
    timing_cache: Path | None,
    version_compatible: bool,
    hardware_compatible: bool,
    tf32: bool,
    memory_limit: int | None,
    force: bool,
) -> None:
    """Build an engine from MODEL, write it to ENGINE and what became of its norms to ENGINE.json.

    MODEL is an ONNX file, as it was exported or as optimize wrote it, or - for stdin. It is never
    changed. The backend runs in a process of its own.

    \b
    Example:
      rmsnorm-export build fused.onnx -o fused.engine --shapes "ids=1x1,4x128,8x2048"
    """
    state = context.ensure_object(State)
    state.model_on_stdout = False
    with console.logging_to_stderr(state):
        from rmsnorm_export.cli.source import model_source
        from rmsnorm_export.show.engine_text import engine_lines
        from rmsnorm_export.tensorrt.engine.build import build_engine

        with console.progress(state, "Building an engine") as step:
            result = build_engine(
                model_source(model),
                output,
                backend=backend,
                shapes=shapes or None,
                plugin=plugin,
                embed_plugin=embed_plugin,
                timing_cache=timing_cache,
                version_compatible=version_compatible,
                hardware_compatible=hardware_compatible,
                tf32=tf32,
                memory_limit=memory_limit,
                force=force,
                progress=step,
            )
        if state.json:
            console.show_json(state, result)
        else:
            console.show(state, engine_lines(result, verbose=state.verbosity))
