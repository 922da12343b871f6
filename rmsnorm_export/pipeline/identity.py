"""What a step's result depends on, as short strings that can be compared: files, packages, code."""

from __future__ import annotations

import functools
import json
import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.pipeline.result import OutputFile
from rmsnorm_export.printable import short
from rmsnorm_export.system.digest import sha256_of, sha256_of_all
from rmsnorm_export.system.packages import version_of
from rmsnorm_export.tensorrt.engine.model import HASHED_BYTES, data_files

_SMALL = 1 << 20
"""Bytes of a file that is hashed however many there are beside it."""

_SOURCES = (".py", ".cpp", ".cu", ".cuh", ".h", ".cmake", ".txt")
"""Of this package; the looks of a page change no result."""

PACKAGES: dict[str, tuple[str, ...]] = {
    "export": ("torch", "onnxscript", "transformers", "onnx", "onnx-ir", "numpy", "ml_dtypes"),
    "optimize": ("onnx", "onnx-ir", "onnxscript", "numpy", "ml_dtypes"),
    "prove": ("onnx", "onnx-ir", "onnxruntime", "onnxruntime-gpu", "numpy", "ml_dtypes"),
    "build": ("tensorrt", "tensorrt_rtx", "polygraphy", "onnx", "onnx-ir"),
    "verify": ("onnxruntime", "onnxruntime-gpu", "tensorrt", "tensorrt_rtx", "numpy", "ml_dtypes"),
    "bench": (
        "onnxruntime", "onnxruntime-gpu", "onnx", "onnx-ir", "onnxscript", "onnxsim", "onnxslim",
        "numpy", "matplotlib",
    ),
    "package": ("tritonclient", "PyYAML", "onnxruntime", "onnx", "onnx-ir"),
}  # fmt: skip
"""The packages that the result of each step depends on."""


@functools.cache
def program() -> str:
    """Hash of this package's own sources: when they are others, so may the results be."""
    root = Path(__file__).parents[1]
    paths = (path for path in root.rglob("*") if path.suffix in _SOURCES and path.is_file())
    return sha256_of_all(sorted(paths), root)


def packages(names: Iterable[str]) -> dict[str, str]:
    """``package onnx`` -> its version, or ``not installed``; Python's own among them."""
    found = {f"package {name}": version_of(name) or "not installed" for name in names}
    return {"package python": platform.python_version()} | found


def onnx_files(path: Path) -> dict[str, str]:
    """What identifies an ONNX file and its external data.

    Raises:
        InputError: it cannot be read, is no model, or lacks external data.
    """
    loaded = load_model(path)
    found = {f"file {path.name}": sha256_of(path)}
    for item in data_files(path.parent, loaded.external):
        found[f"file {item.location}"] = item.sha256 or f"{item.bytes} B, {item.modified_ns} ns"
    return found


def plain_files(paths: Sequence[Path], base: Path, what: str) -> dict[str, str]:
    """What identifies files that a key of the pipeline names; folders with all that is in them.

    Args:
        paths: of the files and folders; what is hidden in a folder does not count.
        base: names are relative to it.
        what: whose files they are, for an error.

    Raises:
        InputError: one cannot be read.
    """
    try:
        files = sorted({file for path in paths for file in _below(path)})
        return {
            f"file {Path(os.path.relpath(file, base)).as_posix()}": identity
            for file, identity in zip(files, _identities(files), strict=True)
        }
    except OSError as error:
        raise InputError(
            f"A file of {what} cannot be read.",
            found=f"{short(str(error.filename), 300)}: {error.strerror or error}",
            fix="check the path; it is relative to the pipeline file",
        ) from error


def _below(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for root, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(root, name) for name in files if not name.startswith("."))


def _identities(files: Sequence[Path]) -> Iterator[str]:
    """Hashes; of many bytes, those of small files, and size and time of the others."""
    stats = [file.stat() for file in files]
    hashed = sum(info.st_size for info in stats) <= HASHED_BYTES
    for file, info in zip(files, stats, strict=True):
        small = hashed or info.st_size <= _SMALL
        yield sha256_of(file) if small else f"{info.st_size} B, {info.st_mtime_ns} ns"


def outputs_of(folder: Path, paths: Iterable[Path]) -> tuple[OutputFile, ...]:
    """What identifies the outputs of a step.

    Args:
        folder: of the step; paths are stored relative to it.
        paths: of the files.
    """
    files = sorted(paths)
    found = []
    for path, identity in zip(files, _identities(files), strict=True):
        info, name = path.stat(), Path(os.path.relpath(path, folder)).as_posix()
        sha256 = "" if " " in identity else identity
        found.append(OutputFile(name, info.st_size, sha256, info.st_mtime_ns))
    return tuple(found)


def changed_output(folder: Path, outputs: Sequence[OutputFile]) -> str:
    """Which output is not as it was made, and how; "" when all are."""
    for output in outputs:
        path = folder / output.path
        try:
            info = path.stat()
            if info.st_size != output.bytes:
                return f"the output {output.path} was changed"
            if output.sha256:
                if sha256_of(path) != output.sha256:
                    return f"the output {output.path} was changed"
            elif info.st_mtime_ns != output.modified_ns:
                return f"the output {output.path} was touched"
        except OSError as error:
            gone = isinstance(error, FileNotFoundError | NotADirectoryError)
            return f"the output {output.path} {'is gone' if gone else 'cannot be read'}"
    return ""


def changed_read(base: Path, reads: dict[str, str]) -> str:
    """Which file that a step was seen to read is another now; "" when none is.

    Args:
        base: folder of the pipeline file.
        reads: path relative to it, and sha256.
    """
    for name, sha256 in reads.items():
        try:
            if sha256_of(base / name) != sha256:
                return f"{name} was changed"
        except OSError:
            return f"{name} cannot be read any more"
    return ""


def text_of(value: object) -> str:
    """A value of an option as a string that is equal for equal values."""
    return json.dumps(value, sort_keys=True, default=str)
