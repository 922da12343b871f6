"""``command_lines``: the line that makes each program load the plugin, for a model."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from pathlib import Path

from rmsnorm_export.system.files import StrPath
from rmsnorm_export.system.packages import package_folders
from rmsnorm_export.tensorrt.plugin.cache import MANIFEST, MANIFEST_COPY
from rmsnorm_export.tensorrt.plugin.libraries import best_build, installed_major, sibling
from rmsnorm_export.tensorrt.plugin.loaders import PROGRAMS, TABLE, check_loader, style_of
from rmsnorm_export.tensorrt.plugin.result import CommandLines, LoaderLine


def command_lines(
    model: StrPath = "model.onnx",
    loader: str | None = None,
    *,
    library: StrPath | None = None,
    cache: StrPath | None = None,
) -> CommandLines:
    """The line that makes a program load the plugin for ``model``, with the library that suits it.

    Args:
        model: of ``rmsnorm_export.optimize(..., target="portable")``; it need not exist.
        loader: a name in ``PROGRAMS``; None: all of them.
        library: one of the two libraries; the other is looked for beside it. None: those of the
            build that fits this machine best.
        cache: folder of the builds; by default that of ``build``.

    Raises:
        UsageError: the loader is unknown.
        InputError: ``library`` is no plugin library, or the one that is needed is not beside it.
        BackendMissingError: nothing is built.
    """
    if loader is not None:
        check_loader(loader, PROGRAMS)
    built = best_build(cache) if library is None else None
    lines = []
    for name in PROGRAMS if loader is None else [loader]:
        style = style_of(name)
        path = built.path(style) if library is None and built else sibling(library or "", style)
        version = built.tensorrt if built else version_beside(path)
        lines.append(loader_line(name, os.fspath(model), path, version))
    return CommandLines(os.fspath(model), tuple(lines))


def loader_line(loader: str, model: str, library: Path, tensorrt: str) -> LoaderLine:
    """The line of one program; ``tensorrt`` is the version that the library was built for."""
    row, name = TABLE[loader], _library_name(tensorrt)
    values = {
        "model": model,
        "engine": str(Path(model).with_suffix(".engine")),
        "library": str(library),
        # Python's own TensorRT is not where the linker looks; Triton has one of its own.
        "tensorrt": (library_of_package(name) or name) if loader == "polygraphy" else name,
    }
    if not row.python:
        values = {key: shlex.quote(value) for key, value in values.items()}
    text = row.text.format(**values)
    return LoaderLine(loader, row.program, row.style, library, text, row.note)


def _library_name(version: str) -> str:
    """File name of TensorRT's library, of ``version`` or else of the one that is installed."""
    major = version.split(".")[0] or installed_major()
    return f"libnvinfer.so.{major}" if major else "libnvinfer.so"


def library_of_package(name: str) -> str | None:
    """The path of that library in the PyPI package; None: it is in none."""
    paths = (folder / name for folder in package_folders("tensorrt_libs"))
    return next((str(path) for path in paths if path.is_file()), None)


def version_beside(library: Path) -> str:
    """The TensorRT version in the manifest beside ``library``; "" without one."""
    for name in (MANIFEST, MANIFEST_COPY):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads((library.parent / name).read_text("utf-8"))["tensorrt"])
    return ""
