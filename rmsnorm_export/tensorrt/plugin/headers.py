"""Finding TensorRT's C++ headers, which no PyPI package has and this one does not copy."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path

from rmsnorm_export.tensorrt.plugin.result import Tool, ToolStatus

MINIMUM = (10, 8)
"""First TensorRT whose interface the adapter is written for."""

FIX = (
    "apt install libnvinfer-headers-dev, or unpack TensorRT's tar package, or git clone --depth 1"
    " --branch v<the version that you run> https://github.com/NVIDIA/TensorRT; then set"
    " TENSORRT_INCLUDE_DIR to the include folder (or give --tensorrt DIR)"
)

_SYSTEM = (
    "/usr/include/x86_64-linux-gnu",
    "/usr/include/aarch64-linux-gnu",
    "/usr/include",
    "/usr/local/include",
    "/usr/local/tensorrt/include",
    "/opt/tensorrt/include",
    "/usr/local/TensorRT*/include",
    "/opt/TensorRT*/include",
)
"""Where the deb and rpm packages, containers and people put them."""

_HEADERS = ("NvInferRuntime.h", "NvInferVersion.h")


def find_headers(tensorrt: str | os.PathLike[str] | None = None) -> Tool:
    """The folder with ``NvInferRuntime.h``.

    Args:
        tensorrt: that folder or one above it; only this is tried. None: ``TENSORRT_INCLUDE_DIR``
            or ``TENSORRT_ROOT``, which are not passed over either, then the system's folders.
    """
    asked = [("as given", tensorrt)]
    asked += [(f"from {v}", os.environ.get(v)) for v in ("TENSORRT_INCLUDE_DIR", "TENSORRT_ROOT")]
    for origin, place in asked:
        if place:
            root = Path(place).expanduser().absolute()
            for folder in _within(root):
                return _described(folder)
            detail = f"no NvInferRuntime.h in {root} or {root / 'include'} ({origin})"
            return Tool("TensorRT headers", "missing", "", "", detail, FIX)
    for pattern in _SYSTEM:
        for found in sorted(glob.glob(pattern), reverse=True):
            if (Path(found) / _HEADERS[0]).is_file():
                return _described(Path(found))
    detail = "neither TENSORRT_INCLUDE_DIR nor TENSORRT_ROOT is set, none in the system's folders"
    return Tool("TensorRT headers", "missing", "", "", detail, FIX)


def _within(root: Path) -> Iterator[Path]:
    for part in ("", "include", "include/x86_64-linux-gnu", "include/aarch64-linux-gnu"):
        if (root / part / _HEADERS[0]).is_file():
            yield root / part


def _described(folder: Path) -> Tool:
    missing = [name for name in _HEADERS if not (folder / name).is_file()]
    version = "" if missing else _version(folder / "NvInferVersion.h")
    problem = ""
    if missing:
        problem = f"{', '.join(missing)} is not there"
    elif not version:
        problem = "NvInferVersion.h does not say a version"
    elif tuple(int(part) for part in version.split(".")[:2]) < MINIMUM:
        problem = f"TensorRT {MINIMUM[0]}.{MINIMUM[1]} or newer is needed"
    status: ToolStatus = "broken" if problem else "ok"
    return Tool("TensorRT headers", status, str(folder), version, problem, FIX)


def _version(path: Path) -> str:
    """``major.minor.patch`` of ``NvInferVersion.h``; "" when it does not say."""
    text = path.read_text(encoding="utf-8", errors="replace")
    found = re.finditer(r"^#define[ \t]+(\w+)[ \t]+(\w+)", text, re.MULTILINE)
    defined = {match[1]: match[2] for match in found}
    parts = []
    for name in ("MAJOR", "MINOR", "PATCH"):
        value = defined.get(f"NV_TENSORRT_{name}", "")
        value = defined.get(value, value)  # since 10.10: NV_TENSORRT_MAJOR is TRT_MAJOR_ENTERPRISE
        if not value.isdigit():
            return ""
        parts.append(value)
    return ".".join(parts)
