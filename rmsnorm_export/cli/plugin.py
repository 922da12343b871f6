"""``plugin build``: the libraries of a runtime."""

from __future__ import annotations

from typing import Any

import click

from rmsnorm_export.cli import console
from rmsnorm_export.cli.commands import define
from rmsnorm_export.cli.files import Files
from rmsnorm_export.cli.options import PATH

_RUNTIME = click.Option(
    ["--runtime"],
    type=click.Choice(("tensorrt", "onnxruntime")),
    default="tensorrt",
    show_default=True,
    help="The program that the libraries are for.",
)
_ARCH = "CUDA architectures, or all.  [default: those of the GPUs at hand; without a GPU all]"
_HEADERS = "TensorRT's headers.  [default: TENSORRT_INCLUDE_DIR, TENSORRT_ROOT, the system's]"
_TOOLKIT = (
    "A CUDA toolkit; for ONNX Runtime also that CUDA kernels are wanted.  [default: CUDA_HOME,"
    " PATH, /usr/local/cuda, the PyPI packages]"
)
_BUILD = [
    _RUNTIME,
    click.Option(["--arch"], metavar="90,100", help=_ARCH),
    click.Option(["--tensorrt", "tensorrt_include"], type=PATH, metavar="DIR", help=_HEADERS),
    click.Option(
        ["--cuda"],
        is_flag=False,
        flag_value=True,
        type=click.UNPROCESSED,
        metavar="[DIR]",
        help=_TOOLKIT,
    ),
    click.Option(["--force"], is_flag=True, help="Compile again."),
]


@click.group("plugin", no_args_is_help=False)
def command() -> None:
    """Build the plugin's libraries.

    They are kept in rmsnorm_export/plugins of XDG_CACHE_HOME, or of ~/.cache, where nobody else may
    be able to write.
    """


@define("build", params=_BUILD, reports=False, group=command)
def build_plugin(files: Files, **options: Any) -> None:
    """Compile the libraries of a runtime, or take those that are compiled already.

    Needs nvcc, a C++ compiler, CMake and TensorRT's headers; for ONNX Runtime no headers and,
    without --cuda, no nvcc. Exit code 6 says which is missing and what
    brings it.

    \b
    Examples:
      rmsnorm-export plugin build --arch 90,100 --tensorrt /opt/tensorrt
      rmsnorm-export plugin build --runtime onnxruntime
      rmsnorm-export plugin build --runtime onnxruntime --cuda --arch 90
    """
    from rmsnorm_export.tensorrt import plugin

    with console.progress(files.state, "Building the plugin"):
        built = plugin.build(progress=console.announce(files.state), **options)
    files.finish(built, outputs=[*built.libraries.values()])
