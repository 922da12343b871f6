"""The plugin library that the server must load for a model."""

from __future__ import annotations

from pathlib import Path

from rmsnorm_export.deploy.served import ServedModel
from rmsnorm_export.errors import InputError
from rmsnorm_export.runtime.session import has_cuda_nodes
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.tensorrt.plugin.libraries import open_library
from rmsnorm_export.tensorrt.plugin.lines import library


def plugin_library(subject: ServedModel, given: StrPath | None, *, gpu: bool) -> Path | None:
    """Return the library that the server must load for the model; None when it needs none.

    Args:
        subject: the model or engine.
        given: by the user: for an engine the plugin, for a model kernels for ONNX Runtime.
        gpu: the server runs it on a GPU.

    Raises:
        InputError: the library is missing, of no use, or not needed.
        BackendMissingError: none was given and none is built.
    """
    state = subject.record.plugin if subject.record is not None else None
    needed = state is not None and bool(state.library) and not state.embedded
    if given is None:
        return library("triton") if needed else None
    if state is not None and needed:
        return open_library(given, "dlopen").path
    problem, fix = "the engine uses no plugin, or has it inside", "omit --plugin"
    if state is None:
        path = open_library(given, "register").path
        if not gpu or has_cuda_nodes(path):
            return path
        problem, fix = "it has kernels for the CPU only", "give --kind cpu, or a library for CUDA"
    found = f"{given}: {problem}"
    raise InputError("The plugin library cannot be used.", found=found, fix=fix)
