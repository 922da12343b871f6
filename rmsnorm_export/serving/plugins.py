"""The plugin library beside an engine that uses it, and how the server is told to load it."""

from __future__ import annotations

import shlex
from pathlib import Path

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.serving.served_model import ServedModel
from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.tensorrt.plugin.libraries import inspect_library, library, sibling
from rmsnorm_export.tensorrt.plugin.lines import command_lines
from rmsnorm_export.tensorrt.plugin.result import FILES

LOADER = "triton"


def plugin_library(subject: ServedModel, given: StrPath | None) -> Path | None:
    """The library that the server must load for the model; None when it needs none.

    Raises:
        UsageError: a library was given for a model that loads none.
        InputError: the library is missing or of no use.
        BackendMissingError: none was given and none is built.
    """
    state = subject.record.plugin if subject.record is not None else None
    if state is None or not state.library or state.embedded:
        if given is None:
            return None
        raise UsageError(
            "The model needs no plugin library.",
            found="it is no engine"
            if state is None
            else "its plugin is inside it"
            if state.embedded
            else "the engine uses no plugin",
            fix="leave --plugin-library away",
        )
    if given is None:
        return library(LOADER)
    info = inspect_library(given, creators=False)
    if info.problem:
        raise InputError(
            "The plugin library cannot be used.",
            found=f"{info.path}: {info.problem}",
            fix=info.fix,
        )
    return sibling(given, "dlopen")


def mismatch(subject: ServedModel, path: Path) -> str:
    """A note where ``path`` is not of the build that the engine was made with; else ""."""
    recorded = subject.record.plugin.sha256 if subject.record is not None else ""
    pair = [path, *(path.with_name(name) for name in FILES.values())]
    if not recorded or recorded in {sha256_of(file) for file in pair if file.is_file()}:
        return ""
    return "the plugin library is of another build than the one that the engine was made with"


def load_line(path: Path, place: str, repository: str) -> str:
    """The line that starts the server with the plugin.

    Args:
        path: of the library that was copied.
        place: where the server will find it.
        repository: of the server.
    """
    (line,) = command_lines("model.onnx", LOADER, library=path).lines
    text = line.text.replace(shlex.quote(str(line.library)), shlex.quote(place))
    return text.replace("MODELS", shlex.quote(repository))
