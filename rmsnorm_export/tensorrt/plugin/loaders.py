"""Who loads a plugin library, in which style, and how each is told to, word for word.

Sources: trtexec --help and its main (TensorRT 10 and 11); polygraphy run --help (0.53); ONNX
Runtime, TensorRT execution provider; triton-inference-server, tensorrt_backend README and custom
operations; TensorRT's Python API, IPluginRegistry, IBuilderConfig and Runtime.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from rmsnorm_export.errors import UsageError
from rmsnorm_export.tensorrt.plugin.result import Style


@dataclasses.dataclass(frozen=True, slots=True)
class Loader:
    """One that loads a plugin library.

    Attributes:
        style: how.
        program: what it is; "" for a mere style.
        text: of the line, with ``{model}``, ``{engine}``, ``{library}`` and ``{tensorrt}``.
        note: what else one has to know.
        python: the line is Python, not a command.
    """

    style: Style
    program: str = ""
    text: str = ""
    note: str = ""
    python: bool = False


_TENSORRT_FIRST = (
    "TensorRT's own library comes first: the plugin registers with the TensorRT that it finds in"
    " the process, and does nothing where there is none yet"
)
_SEVERAL = "several libraries are separated by ;"

TABLE = {
    "load_library": Loader("load_library"),
    "dlopen": Loader("dlopen"),
    "trtexec": Loader(
        "load_library",
        "trtexec, the plugin stored in the engine",
        "trtexec --onnx={model} --saveEngine={engine} --dynamicPlugins={library}"
        " --setPluginsToSerialize={library}",
        "the engine carries the library: what loads it must allow host code"
        " (Runtime.engine_host_code_allowed = True)",
    ),
    "trtexec-static": Loader(
        "dlopen",
        "trtexec, the plugin beside the engine",
        "trtexec --onnx={model} --saveEngine={engine} --staticPlugins={library}",
        "give --staticPlugins again with --loadEngine",
    ),
    "polygraphy": Loader(
        "dlopen",
        "Polygraphy",
        "polygraphy run {model} --trt --plugins {tensorrt} {library}",
        _TENSORRT_FIRST,
    ),
    "onnxruntime": Loader(
        "dlopen",
        "ONNX Runtime's TensorRT provider, in Python",
        "onnxruntime.InferenceSession({model!r}, providers=["
        "('TensorrtExecutionProvider', {{'trt_extra_plugin_lib_paths': {library!r}}}),"
        " 'CUDAExecutionProvider'])",
        _SEVERAL,
        python=True,
    ),
    "triton": Loader(
        "dlopen",
        "Triton Inference Server",
        "tritonserver --model-repository=MODELS --backend-config=tensorrt,plugins={library}",
        _SEVERAL,
    ),
    "triton-preload": Loader(
        "dlopen",
        "Triton Inference Server, by LD_PRELOAD",
        "LD_PRELOAD={tensorrt}:{library} tritonserver --model-repository=MODELS",
        _TENSORRT_FIRST,
    ),
    "python": Loader(
        "load_library",
        "TensorRT, in Python",
        "tensorrt.get_plugin_registry().load_library({library!r})",
        "before a model is parsed or an engine is loaded; to store the plugin in the engine:"
        " config.plugins_to_serialize = [the same path]",
        python=True,
    ),
}

LOADERS = {name: loader.style for name, loader in TABLE.items()}
"""Who loads how. ``trtexec``: --dynamicPlugins and --setPluginsToSerialize; ``trtexec-static``:
--staticPlugins; ``python``: the registry's load_library."""

PROGRAMS = {name: loader.program for name, loader in TABLE.items() if loader.program}
"""What ``command_lines`` knows the line for."""


def style_of(loader: str) -> Style:
    """How ``loader`` loads a library.

    Raises:
        UsageError: the loader is unknown.
    """
    check_loader(loader, LOADERS)
    return LOADERS[loader]


def check_loader(loader: str, known: Collection[str]) -> None:
    """Raise ``UsageError`` unless the loader is one of these."""
    if loader not in known:
        raise UsageError(
            "The loader is unknown.", found=repr(loader), fix=f"one of {', '.join(known)}"
        )
