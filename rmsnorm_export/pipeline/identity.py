"""What a step's result depends on, as short strings that can be compared: files, packages, code."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rmsnorm_export.graph.load import load_model
from rmsnorm_export.pipeline.result import OutputFile
from rmsnorm_export.runtime.input_sizes import Declared
from rmsnorm_export.serving.served_model import interface
from rmsnorm_export.system.digest import identified, sha256_of, sha256_of_all
from rmsnorm_export.system.files import refusals_as
from rmsnorm_export.system.packages import version_of
from rmsnorm_export.tensorrt.engine.model import reading_external_data

Facts = TypeVar("Facts")

SMALL = 1 << 20
"""Bytes of a file that is hashed however many there are beside it."""

_SOURCES = (".py", ".cpp", ".cu", ".cuh", ".h", ".cmake", ".txt")
"""Of this package; the looks of a page change no result."""


@dataclasses.dataclass(frozen=True, slots=True)
class ModelFacts:
    """An ONNX file, without its graph.

    Attributes:
        external: locations of its external data.
        inputs: of the model.
    """

    external: tuple[str, ...]
    inputs: tuple[Declared, ...]


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


class Files:
    """What is known of files in one run: a file that stays as it is, is read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Any] = {}

    def _once(self, what: Callable[[Path], Facts], path: Path, place: str = "") -> Facts:
        info = path.stat()
        key = (what, place, info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)
        if key not in self._known:
            self._known[key] = what(path)
        known: Facts = self._known[key]
        return known

    def sha256(self, path: Path) -> str:
        """Hash of a file.

        Raises:
            OSError: it cannot be read.
        """
        return self._once(sha256_of, path)

    def facts(self, path: Path) -> ModelFacts:
        """What a pipeline needs to know of an ONNX file.

        Raises:
            InputError: it cannot be read, is no model, or lacks external data.
        """
        try:
            return self._once(_model_facts, path, os.path.abspath(path))
        except OSError:
            return _model_facts(path)

    def onnx(self, path: Path) -> dict[str, str]:
        """What identifies an ONNX file and its external data, or a folder of graphs.

        Raises:
            InputError: as ``facts``, or external data is gone.
        """
        if path.is_dir():
            return self.plain([path], path, "the model")
        _, *data = self.of_model(path)
        names = [f"file {path.name}", *(f"file {place}" for place in self.facts(path).external)]
        with reading_external_data(path.parent):
            return dict(zip(names, [self.sha256(path), *self._identities(data)], strict=True))

    def of_model(self, path: Path) -> list[Path]:
        """The file of a model and those of its external data; of a folder, all in it.

        Raises:
            InputError: as ``facts``.
        """
        if path.is_dir():
            return sorted(below(path))
        return [path, *(path.parent / location for location in self.facts(path).external)]

    def plain(self, paths: Sequence[Path], base: Path, what: str) -> dict[str, str]:
        """What identifies files that a key of the pipeline names; folders with all that is in them.

        Args:
            paths: of the files and folders; what is hidden in a folder does not count.
            base: names are relative to it.
            what: whose files they are, for an error.

        Raises:
            InputError: one cannot be read.
        """
        files = sorted({file for path in paths for file in below(path)})
        fix = "check the path; it is relative to the pipeline file"
        with refusals_as(f"A file of {what} cannot be read.", base, fix=fix):
            return {
                f"file {Path(os.path.relpath(file, base)).as_posix()}": identity
                for file, identity in zip(files, self._identities(files), strict=True)
            }

    def _identities(self, files: Sequence[Path]) -> Iterator[str]:
        """Hashes; of many bytes, those of small files, and size and time of the others."""
        for state, sha256 in identified(files, small=SMALL, sha256=self.sha256):
            yield sha256 or f"{state.st_size} B, {state.st_mtime_ns} ns"

    def outputs(self, folder: Path, paths: Iterable[Path]) -> tuple[OutputFile, ...]:
        """What identifies the outputs of a step.

        Args:
            folder: of the step; paths are stored relative to it.
            paths: of the files.
        """
        files = sorted(paths)
        known = identified(files, small=SMALL, sha256=self.sha256)
        names = [Path(os.path.relpath(path, folder)).as_posix() for path in files]
        return tuple(
            OutputFile(name, state.st_size, sha256, state.st_mtime_ns)
            for name, (state, sha256) in zip(names, known, strict=True)
        )

    def changed_output(self, folder: Path, outputs: Sequence[OutputFile]) -> str:
        """Which output is not as it was made, and how; "" when all are."""
        for output in outputs:
            path = folder / output.path
            try:
                info = path.stat()
                if info.st_size != output.bytes:
                    return f"the output {output.path} was changed"
                if output.sha256:
                    if self.sha256(path) != output.sha256:
                        return f"the output {output.path} was changed"
                elif info.st_mtime_ns != output.modified_ns:
                    return f"the output {output.path} was touched"
            except OSError as error:
                gone = isinstance(error, FileNotFoundError | NotADirectoryError)
                return f"the output {output.path} {'is gone' if gone else 'cannot be read'}"
        return ""

    def changed_read(self, base: Path, reads: dict[str, str]) -> str:
        """Which file that a step was seen to read is another now; "" when none is.

        Args:
            base: folder of the pipeline file.
            reads: path relative to it, and sha256.
        """
        for name, sha256 in reads.items():
            try:
                if self.sha256(base / name) != sha256:
                    return f"{name} was changed"
            except OSError:
                return f"{name} cannot be read any more"
        return ""


def _model_facts(path: Path) -> ModelFacts:
    loaded = load_model(path)
    return ModelFacts(tuple(loaded.external), tuple(interface(loaded.model)[0]))


def below(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for root, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(root, name) for name in files if not name.startswith("."))


def text_of(value: object) -> str:
    """A value of an option as a string that is equal for equal values."""
    return json.dumps(value, sort_keys=True, default=str)
