"""``plugin``: build the libraries, check them, and load them elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files, file_options
from rmsnorm_export.cli.options import FILE, Choice, State, logging_options
from rmsnorm_export.errors import VerificationError

PROGRAMS = (
    "trtexec", "trtexec-static", "polygraphy", "onnxruntime", "triton", "triton-preload",
    "onnxruntime-native", "onnxruntime-cpp", "triton-native", "onnxruntime-cuda", "triton-cuda",
    "python",
)  # fmt: skip

_FOLDER = click.Path(path_type=Path)

_CACHE = click.option(
    "--cache",
    type=_FOLDER,
    metavar="DIR",
    help="Folder of the builds.  [default: rmsnorm_export/plugins in XDG_CACHE_HOME or ~/.cache]",
)
_RUNTIME = click.option(
    "--runtime",
    type=Choice(("tensorrt", "onnxruntime", "torch")),
    default="tensorrt",
    show_default=True,
    help="The TensorRT plugin, ONNX Runtime's CPU kernels (with --cuda those of CUDA, too), or"
    " the CUDA kernels of PyTorch.",
)


@click.group(
    "plugin", short_help="Build, check and use the TensorRT plugin.", no_args_is_help=False
)
@logging_options
def command() -> None:
    """Build the TensorRT plugin, check it, and load it elsewhere.

    \b
    Example:
      rmsnorm-export plugin build --tensorrt /opt/tensorrt/include
      rmsnorm-export plugin check
      rmsnorm-export plugin lines fused.onnx
    """


@define("build", short_help="Compile the plugin.", group=command)
@_RUNTIME
@click.option(
    "--arch",
    metavar="90,100",
    help="CUDA architectures; all: every one the kernels are tuned for.  [default: those of the"
    " GPUs at hand, or all where there is none]",
)
@click.option(
    "--tensorrt",
    "tensorrt_include",
    type=_FOLDER,
    metavar="DIR",
    help="TensorRT's headers, or the folder above.  [default: TENSORRT_INCLUDE_DIR, TENSORRT_ROOT,"
    " the system's folders]",
)
@click.option(
    "--cuda",
    is_flag=False,
    flag_value=True,
    type=click.UNPROCESSED,
    metavar="[DIR]",
    help="A CUDA toolkit; for ONNX Runtime also that CUDA kernels are wanted.  [default:"
    " CUDA_HOME, PATH, /usr/local/cuda, the PyPI packages]",
)
@click.option("--force", is_flag=True, help="Compile all again; replace files in the output.")
@click.option("-o", "--output", type=_FOLDER, metavar="DIR", help="Folder for copies of the files.")
@_CACHE
def build_plugin(state: State, **options: Any) -> None:
    """Compile the libraries of a runtime, as far as it is not done.

    Needs nvcc, a C++ compiler, CMake and TensorRT's headers; for PyTorch no headers, for ONNX
    Runtime neither those nor, without --cuda, nvcc. Exit code 6 says which is missing and what
    brings it.

    \b
    Example:
      rmsnorm-export plugin build --arch 90,100 --tensorrt /opt/tensorrt/include -o plugin
      rmsnorm-export plugin build --runtime onnxruntime
      rmsnorm-export plugin build --runtime onnxruntime --cuda --arch 90
    """
    from rmsnorm_export.tensorrt import plugin

    with console.progress(state, "Building the plugin"):
        built = plugin.build(**options)
    Files(state).finish(built, outputs=[library.path for library in built.libraries])


@define("check", short_help="Try the plugin in every installed TensorRT.", group=command)
@click.argument("library", required=False, type=_FOLDER)
@_RUNTIME
@click.option("--cuda", is_flag=True, help="Of ONNX Runtime's builds the one with CUDA kernels.")
@_CACHE
@file_options("--report", "--html")
def check_plugin(state: State, library: Path | None, files: Files, **options: Any) -> None:
    """Load LIBRARY, or those of the build, in every installed runtime and try its plugins.

    Runtimes: tensorrt, tensorrt_lean, tensorrt_rtx, each in a process of its own. For ONNX Runtime
    norms are computed and compared with the reference. No GPU is needed. Exit code 4 when a check
    fails, or nothing here can try the library.
    """
    from rmsnorm_export.show.plugin import check_failure
    from rmsnorm_export.tensorrt import plugin

    files.check(library)
    with console.progress(state, "Checking the plugin"):
        result = plugin.check(library, **options)
    error = None
    if not result.passed:
        what, found, fix = check_failure(result)
        error = VerificationError(what, found=found, fix=fix)
    files.finish(result, error)


@define("lines", short_help="How each program is told to load the plugin.", group=command)
@click.argument("model", type=FILE, default="model.onnx")
@click.option("--for", "loader", type=Choice(PROGRAMS), help="Only this program, only its line.")
@click.option(
    "--library", type=_FOLDER, metavar="LIBRARY", help="A library instead of those of the build."
)
@_CACHE
def load_lines(state: State, model: str, loader: str | None, **options: Any) -> None:
    """Print the line that makes each program load the plugin for MODEL.

    \b
    Example:
      eval "$(rmsnorm-export plugin lines fused.onnx --for trtexec)"
    """
    from rmsnorm_export.tensorrt import plugin

    loaders = plugin.command_lines(model, loader, **options)
    Files(state).finish(loaders, only=loader is not None)
