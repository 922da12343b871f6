"""How each program is told to load the plugin, word for word.

Sources: trtexec --help and its main (TensorRT 10 and 11); polygraphy run --help (0.53); ONNX
Runtime, TensorRT execution provider; triton-inference-server, tensorrt_backend README and custom
operations; TensorRT's Python API, IPluginRegistry, IBuilderConfig and Runtime.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from rmsnorm_export.errors import UsageError
from rmsnorm_export.tensorrt.plugin.libraries import best_build, sibling, style_of
from rmsnorm_export.tensorrt.plugin.result import CommandLines, LoaderLine
from rmsnorm_export.tensorrt.plugin.tensorrt import library_name, library_of_package, version_beside

PROGRAMS = {
    "trtexec": "trtexec, the plugin stored in the engine",
    "trtexec-static": "trtexec, the plugin beside the engine",
    "polygraphy": "Polygraphy",
    "onnxruntime": "ONNX Runtime's TensorRT provider, in Python",
    "triton": "Triton Inference Server",
    "triton-preload": "Triton Inference Server, by LD_PRELOAD",
    "python": "TensorRT, in Python",
}
"""What ``command_lines`` knows the line for."""

_TEXTS = {
    "trtexec": "trtexec --onnx={model} --saveEngine={engine} --dynamicPlugins={library}"
    " --setPluginsToSerialize={library}",
    "trtexec-static": "trtexec --onnx={model} --saveEngine={engine} --staticPlugins={library}",
    "polygraphy": "polygraphy run {model} --trt --plugins {tensorrt} {library}",
    "onnxruntime": "onnxruntime.InferenceSession({model!r}, providers=["
    "('TensorrtExecutionProvider', {{'trt_extra_plugin_lib_paths': {library!r}}}),"
    " 'CUDAExecutionProvider'])",
    "triton": "tritonserver --model-repository=MODELS --backend-config=tensorrt,plugins={library}",
    "triton-preload": "LD_PRELOAD={tensorrt}:{library} tritonserver --model-repository=MODELS",
    "python": "tensorrt.get_plugin_registry().load_library({library!r})",
}

_TENSORRT_FIRST = (
    "TensorRT's own library comes first: the plugin registers with the TensorRT that it finds in"
    " the process, and does nothing where there is none yet"
)

_NOTES = {
    "trtexec": "the engine carries the library: what loads it must allow host code"
    " (Runtime.engine_host_code_allowed = True)",
    "trtexec-static": "give --staticPlugins again with --loadEngine",
    "polygraphy": _TENSORRT_FIRST,
    "onnxruntime": "several libraries are separated by ;",
    "triton": "several libraries are separated by ;",
    "triton-preload": _TENSORRT_FIRST,
    "python": "before a model is parsed or an engine is loaded; to store the plugin in the engine:"
    " config.plugins_to_serialize = [the same path]",
}

_IN_PYTHON = ("onnxruntime", "python")


def command_lines(
    model: str | os.PathLike[str] = "model.onnx",
    loader: str | None = None,
    *,
    library: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
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
    if loader is not None and loader not in PROGRAMS:
        known = ", ".join(PROGRAMS)
        raise UsageError("The loader is unknown.", found=repr(loader), fix=f"one of {known}")
    built = best_build(cache) if library is None else None
    lines = []
    for name in PROGRAMS if loader is None else [loader]:
        style = style_of(name)
        path = built.path(style) if library is None and built else sibling(library or "", style)
        version = built.tensorrt if built else version_beside(path)
        lines.append(_line(name, os.fspath(model), path, version))
    return CommandLines(os.fspath(model), tuple(lines))


def _line(loader: str, model: str, library: Path, tensorrt: str) -> LoaderLine:
    """The line of one program; ``tensorrt`` is the version that the library was built for."""
    name = library_name(tensorrt)
    values = {
        "model": model,
        "engine": str(Path(model).with_suffix(".engine")),
        "library": str(library),
        # Python's own TensorRT is not where the linker looks; Triton has one of its own.
        "tensorrt": (library_of_package(name) or name) if loader == "polygraphy" else name,
    }
    if loader not in _IN_PYTHON:
        values = {key: shlex.quote(value) for key, value in values.items()}
    text = _TEXTS[loader].format(**values)
    return LoaderLine(
        loader, PROGRAMS[loader], style_of(loader), library, text, _NOTES.get(loader, "")
    )
