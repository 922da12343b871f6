"""Lines that make programs load a plugin library, and the style in which each loads it.

Sources: trtexec --help and its main (TensorRT 10 and 11); polygraphy run --help (0.53); ONNX
Runtime, TensorRT execution provider; triton-inference-server, tensorrt_backend README and custom
operations; TensorRT's Python API, IPluginRegistry, IBuilderConfig and Runtime.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path

import msgspec

from rmsnorm_export.errors import BackendMissingError, UsageError
from rmsnorm_export.printable import did_you_mean
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.system.packages import package_folders
from rmsnorm_export.tensorrt.plugin.libraries import find_build
from rmsnorm_export.tensorrt.plugin.result import CommandLines, LoaderLine, PluginRuntime, Style


class Loader(msgspec.Struct, frozen=True):
    """A program that loads a library.

    ``text`` is the line, with ``{model}``, ``{engine}``, ``{library}`` and ``{tensorrt}``; with
    ``python`` it is no command, but Python or the like. ``note`` is what else one has to know.
    """

    style: Style
    program: str
    text: str
    note: str = ""
    python: bool = False
    runtime: PluginRuntime = "tensorrt"


_FILE = Path(__file__).with_name("lines.json")
TABLE = msgspec.json.decode(_FILE.read_bytes(), type=dict[str, Loader])

LOADERS = tuple(TABLE)
"""Programs that ``command_lines`` has a line for. ``trtexec``: --dynamicPlugins and
--setPluginsToSerialize; ``trtexec-static``: --staticPlugins; ``python``: the registry's
load_library."""


def library(loader: str = "python") -> Path:
    """Return the library file for a loader, of the build.

    Args:
        loader: a name in ``LOADERS``.

    Raises:
        UsageError: the loader is unknown.
        BackendMissingError: nothing is built, or nothing that is whole.
    """
    if loader not in TABLE:
        fix = f"{did_you_mean(loader, TABLE)}use one of {', '.join(TABLE)}"
        raise UsageError("The loader is unknown.", found=repr(loader), fix=fix)
    row = TABLE[loader]
    return find_build(row.runtime).path(row.style)


def command_lines(model: StrPath = "model.onnx", loader: str | None = None) -> CommandLines:
    """Return the lines that make programs load the plugin for ``model``, each its library.

    Args:
        model: of ``rmsnorm_export.optimize(..., target="portable")``; it need not exist.
        loader: a name in ``LOADERS``; None: all of them that are built.

    Raises:
        UsageError: the loader is unknown.
        BackendMissingError: nothing is built.
    """
    if loader is not None:
        return CommandLines(os.fspath(model), (_line(loader, os.fspath(model), library(loader)),))
    lines = []
    for name in TABLE:
        with contextlib.suppress(BackendMissingError):
            lines.append(_line(name, os.fspath(model), library(name)))
    if not lines:
        library()
    return CommandLines(os.fspath(model), tuple(lines))


def _line(loader: str, model: str, library: Path) -> LoaderLine:
    # Python's own TensorRT is not where the linker looks.
    folders = package_folders("tensorrt_libs")
    runtimes = sorted(path for folder in folders for path in folder.glob("libnvinfer.so.*"))
    values = {
        "model": model,
        "engine": str(Path(model).with_suffix(".engine")),
        "library": str(library),
        "tensorrt": str(runtimes[0] if runtimes else "libnvinfer.so"),
    }
    row = TABLE[loader]
    if not row.python:
        values = {key: shlex.quote(value) for key, value in values.items()}
    return LoaderLine(loader, row.program, library, row.text.format(**values), row.note)
