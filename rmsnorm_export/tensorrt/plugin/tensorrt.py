"""The TensorRT that is installed, without importing it, and the one a library was built for."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from importlib import metadata
from pathlib import Path

from rmsnorm_export.tensorrt.plugin.cache import MANIFEST
from rmsnorm_export.tensorrt.plugin.copies import MANIFEST_COPY

_DISTRIBUTIONS = [
    f"tensorrt{kind}{cuda}" for kind in ("", "_lean") for cuda in ("", "_cu13", "_cu12")
]


def installed_major() -> str:
    """The major version of this Python's TensorRT; "" without one."""
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name).split(".")[0]
    return ""


def library_name(version: str) -> str:
    """File name of TensorRT's library, of ``version`` or else of the one that is installed."""
    major = version.split(".")[0] or installed_major()
    return f"libnvinfer.so.{major}" if major else "libnvinfer.so"


def library_of_package(name: str) -> str | None:
    """The path of that library in the PyPI package; None: it is in none."""
    try:
        spec = importlib.util.find_spec("tensorrt_libs")
    except (ImportError, ValueError):
        return None
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder) / name).is_file():
            return str(path)
    return None


def version_beside(library: Path) -> str:
    """The TensorRT version in the manifest beside ``library``; "" without one."""
    for name in (MANIFEST, MANIFEST_COPY):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads((library.parent / name).read_text("utf-8"))["tensorrt"])
    return ""
