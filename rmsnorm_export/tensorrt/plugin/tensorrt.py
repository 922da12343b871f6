"""The TensorRT that is installed, without importing it, and the one a library was built for."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from rmsnorm_export.system.packages import package_folders, version_of
from rmsnorm_export.tensorrt.plugin.cache import MANIFEST
from rmsnorm_export.tensorrt.plugin.copies import MANIFEST_COPY

_DISTRIBUTIONS = [
    f"tensorrt{kind}{cuda}" for kind in ("", "_lean") for cuda in ("", "_cu13", "_cu12")
]


def installed_major() -> str:
    """The major version of this Python's TensorRT; "" without one."""
    return next(filter(None, map(version_of, _DISTRIBUTIONS)), "").split(".")[0]


def library_name(version: str) -> str:
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
