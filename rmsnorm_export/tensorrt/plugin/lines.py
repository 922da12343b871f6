"""Lines that make programs load a plugin library, and the style in which each loads it.

Sources: trtexec --help and its main (TensorRT 10 and 11); polygraphy run --help (0.53); ONNX
Runtime, TensorRT execution provider; triton-inference-server, tensorrt_backend README and custom
operations; TensorRT's Python API, IPluginRegistry, IBuilderConfig and Runtime.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from pathlib import Path

from rmsnorm_export.errors import BackendMissingError, UsageError
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.system.packages import package_folders
from rmsnorm_export.tensorrt.plugin.libraries import find_build, open_library
from rmsnorm_export.tensorrt.plugin.result import CommandLines, LoaderLine, PluginRuntime, Style


@dataclasses.dataclass(frozen=True, slots=True)
class Loader:
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


_ROWS = json.loads(Path(__file__).with_name("lines.json").read_text("utf-8"))
TABLE = {name: Loader(**row) for name, row in _ROWS.items()}

LOADERS = tuple(TABLE)
"""Programs that ``command_lines`` has a line for. ``trtexec``: --dynamicPlugins and
--setPluginsToSerialize; ``trtexec-static``: --staticPlugins; ``python``: the registry's
load_library."""


def library(loader: str = "python", *, cache: StrPath | None = None) -> Path:
    """Return the library file for a loader, of the build.

    Args:
        loader: a name in ``LOADERS``.
        cache: folder of the builds; by default that of ``build``.

    Raises:
        UsageError: the loader is unknown.
        BackendMissingError: nothing is built, or nothing that is whole.
    """
    row = _row(loader)
    return find_build(row.runtime, cache).path(row.style)


def _row(loader: str) -> Loader:
    if loader not in TABLE:
        raise UsageError(
            "The loader is unknown.", found=repr(loader), fix=f"one of {', '.join(TABLE)}"
        )
    return TABLE[loader]


def command_lines(
    model: StrPath = "model.onnx",
    loader: str | None = None,
    *,
    library: StrPath | None = None,
    cache: StrPath | None = None,
) -> CommandLines:
    """Return the lines that make programs load the plugin for ``model``, each its library.

    Args:
        model: of ``rmsnorm_export.optimize(..., target="portable")``; it need not exist.
        loader: a name in ``LOADERS``; None: all of them that are built.
        library: a library, with others for the same runtime beside it. None: those of the builds.
        cache: folder of the builds; by default that of ``build``.

    Raises:
        UsageError: the loader is unknown.
        InputError: ``library`` cannot be used, or the one that is needed is not beside it.
        BackendMissingError: nothing is built.
    """
    rows = TABLE if loader is None else {loader: _row(loader)}
    if library is not None and loader is None:
        own = open_library(library).runtime
        rows = {name: row for name, row in rows.items() if row.runtime == own}
    lines, missing = [], None
    for name, row in rows.items():
        try:
            if library is None:
                path = find_build(row.runtime, cache).path(row.style)
            else:
                path = open_library(library, row.style).path
        except BackendMissingError as error:
            missing = missing or error
            continue
        lines.append(_line(name, row, os.fspath(model), path))
    if missing is not None and not lines:
        raise missing
    return CommandLines(os.fspath(model), tuple(lines))


def _line(loader: str, row: Loader, model: str, library: Path) -> LoaderLine:
    # Python's own TensorRT is not where the linker looks.
    folders = package_folders("tensorrt_libs")
    runtimes = sorted(path for folder in folders for path in folder.glob("libnvinfer.so.*"))
    values = {
        "model": model,
        "engine": str(Path(model).with_suffix(".engine")),
        "library": str(library),
        "tensorrt": str(runtimes[0] if runtimes else "libnvinfer.so"),
    }
    if not row.python:
        values = {key: shlex.quote(value) for key, value in values.items()}
    return LoaderLine(loader, row.program, library, row.text.format(**values), row.note)
