"""``plugin``: build the TensorRT plugin, look at it, check it, and load it elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files, file_options
from rmsnorm_export.cli.options import FILE, Choice, F, State, logging_options
from rmsnorm_export.errors import InputError, VerificationError

if TYPE_CHECKING:
    from rmsnorm_export.tensorrt.plugin.result import PluginRuntime

PROGRAMS = (
    "trtexec",
    "trtexec-static",
    "polygraphy",
    "onnxruntime",
    "triton",
    "triton-preload",
    "onnxruntime-native",
    "onnxruntime-cpp",
    "triton-native",
    "onnxruntime-cuda",
    "triton-cuda",
    "python",
)

_FOLDER = click.Path(path_type=Path)


def _cache_option(function: F) -> F:
    """--cache DIR."""
    return click.option(
        "--cache",
        type=_FOLDER,
        metavar="DIR",
        help="Folder of the builds.  [default: rmsnorm_export/plugins in XDG_CACHE_HOME or"
        " ~/.cache]",
    )(function)


def _runtime_option(function: F) -> F:
    """--runtime NAME."""
    return click.option(
        "--runtime",
        type=Choice(("tensorrt", "onnxruntime", "torch")),
        default="tensorrt",
        show_default=True,
        help="The TensorRT plugin, ONNX Runtime's CPU kernels (with --cuda those of CUDA, too), or"
        " the CUDA kernels of PyTorch.",
    )(function)


@click.group(
    "plugin", short_help="Build, check and use the TensorRT plugin.", no_args_is_help=False
)
@logging_options
def command() -> None:
    """Build the TensorRT plugin, look at it, check it, and load it elsewhere.

    \b
    Example:
      rmsnorm-export plugin build --tensorrt /opt/tensorrt
      rmsnorm-export plugin check
      rmsnorm-export plugin lines fused.onnx
    """


@define("build", short_help="Compile the plugin, once.", group=command)
@_runtime_option
@click.option(
    "--arch",
    metavar="90,100",
    help="CUDA architectures; native: of the GPUs at hand; all: every one the kernels are tuned"
    " for.  [default: native, or all where there is no GPU]",
)
@click.option(
    "--tensorrt",
    type=_FOLDER,
    metavar="DIR",
    help="TensorRT's headers (the folder, or the one above).  [default: TENSORRT_INCLUDE_DIR,"
    " TENSORRT_ROOT, the system's folders]",
)
@click.option(
    "--cuda",
    is_flag=False,
    flag_value=True,
    type=click.UNPROCESSED,
    metavar="[DIR]",
    help="A CUDA toolkit, or nvcc; for ONNX Runtime also that CUDA kernels are wanted.  [default:"
    " CUDA_HOME, PATH, the PyPI packages, /usr/local/cuda]",
)
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Compilers at the same time.")
@click.option("--force", is_flag=True, help="Build again; replace other files in the output.")
@click.option("-o", "--output", type=_FOLDER, metavar="DIR", help="Folder for copies of the files.")
@_cache_option
def build_plugin(
    state: State,
    runtime: PluginRuntime,
    arch: str | None,
    tensorrt: Path | None,
    cuda: str | bool | None,
    jobs: int | None,
    force: bool,
    output: Path | None,
    cache: Path | None,
) -> None:
    """Compile the plugin's two libraries, or find that it was done before.

    Needs nvcc, a C++ compiler, CMake and TensorRT's headers; for PyTorch no headers, for ONNX
    Runtime neither those nor, without --cuda, nvcc. Exit code 6 says which is missing and what
    brings it.

    \b
    Example:
      rmsnorm-export plugin build --arch 90,100 --tensorrt /opt/tensorrt -o plugin
      rmsnorm-export plugin build --runtime onnxruntime
      rmsnorm-export plugin build --runtime onnxruntime --cuda --arch 90
    """
    from rmsnorm_export.tensorrt import plugin

    with console.progress(state, "Building the plugin") as step:
        try:
            built = plugin.build(
                runtime=runtime,
                arch=arch,
                tensorrt_include=tensorrt,
                cuda=cuda,
                cache=cache,
                output=output,
                force=force,
                jobs=jobs,
                progress=step,
            )
        except plugin.BuildError as error:
            _show_log(error.tail, state)
            raise
    Files(state).finish(built, outputs=[library.path for library in built.libraries])


def _show_log(tail: tuple[str, ...], state: State) -> None:
    """What the compiler said, before the three lines of the error."""
    from rmsnorm_export.printable import printable

    if state.verbosity >= 0:
        for line in tail:
            click.echo(f"| {printable(line.expandtabs())}", err=True)


@define("list", short_help="What is built, and what a library file holds.", group=command)
@click.argument("libraries", nargs=-1, type=_FOLDER, metavar="[LIBRARY]...")
@_cache_option
def list_plugins(state: State, libraries: tuple[Path, ...], cache: Path | None) -> None:
    """List the builds that are kept, and what is in each LIBRARY."""
    from rmsnorm_export.tensorrt import plugin

    listed = plugin.list_plugins(*libraries, cache=cache)
    error = None
    bad = next((info for info in listed.libraries if info.problem), None)
    if bad is not None:
        found = f"{bad.path}: {bad.problem}"
        error = InputError("A library cannot be used.", found=found, fix=bad.fix)
    Files(state).finish(listed, error)


@define("check", short_help="Try the plugin in every installed TensorRT.", group=command)
@click.argument("library", required=False, type=_FOLDER)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="For one library in one runtime.",
)
@_runtime_option
@click.option("--cuda", is_flag=True, help="Of ONNX Runtime's builds one with CUDA kernels.")
@_cache_option
@file_options("--report", "--html")
def check_plugin(
    state: State,
    library: Path | None,
    timeout: float,
    runtime: PluginRuntime,
    cuda: bool,
    cache: Path | None,
    files: Files,
) -> None:
    """Load LIBRARY, or those of the build, in every installed runtime and try its plugins.

    Runtimes: tensorrt, tensorrt_lean, tensorrt_rtx, each in a process of its own; and none, which
    calls the library without TensorRT. For ONNX Runtime norms are computed and compared with the
    reference. No GPU is needed. Exit code 4 when a check fails.
    """
    from rmsnorm_export.show.plugin import check_failure
    from rmsnorm_export.tensorrt import plugin

    files.check(library)
    with console.progress(state, "Checking the plugin"):
        result = plugin.check(library, runtime=runtime, cuda=cuda, cache=cache, timeout=timeout)
    error = None
    if not result.passed:
        what, found, fix = check_failure(result)
        error = VerificationError(what, found=found, fix=fix)
    files.finish(result, error)


@define("lines", short_help="How each program is told to load the plugin.", group=command)
@click.argument("model", type=FILE, default="model.onnx")
@click.option(
    "--for",
    "loader",
    type=Choice(PROGRAMS),
    help="Only this program, and only its line.",
)
@click.option(
    "--library",
    type=_FOLDER,
    metavar="LIBRARY",
    help="One of the two libraries, the other beside it, instead of those of the build.",
)
@_cache_option
def load_lines(
    state: State,
    model: str,
    loader: str | None,
    library: Path | None,
    cache: Path | None,
) -> None:
    """Print the line that makes each program load the plugin for MODEL.

    \b
    Example:
      eval "$(rmsnorm-export plugin lines fused.onnx --for trtexec)"
    """
    from rmsnorm_export.tensorrt import plugin

    loaders = plugin.command_lines(model, loader, library=library, cache=cache)
    Files(state).finish(loaders, only=loader is not None)
