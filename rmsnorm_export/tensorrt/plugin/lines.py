"""Who loads a plugin library, in which style, and the line that makes each do it, word for word.

Sources: trtexec --help and its main (TensorRT 10 and 11); polygraphy run --help (0.53); ONNX
Runtime, TensorRT execution provider; triton-inference-server, tensorrt_backend README and custom
operations; TensorRT's Python API, IPluginRegistry, IBuilderConfig and Runtime.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
from collections.abc import Collection
from pathlib import Path

from rmsnorm_export.errors import BackendMissingError, UsageError
from rmsnorm_export.runtime.session import has_cuda_nodes
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.system.packages import package_folders
from rmsnorm_export.system.reading import read_json
from rmsnorm_export.tensorrt.plugin.cache import MANIFEST, MANIFEST_COPY
from rmsnorm_export.tensorrt.plugin.libraries import (
    best_build,
    inspect_library,
    installed_major,
    sibling,
)
from rmsnorm_export.tensorrt.plugin.result import (
    Built,
    CommandLines,
    LoaderLine,
    PluginRuntime,
    Style,
    with_cuda,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Loader:
    """One that loads a plugin library; without ``program`` a mere style.

    ``text`` is the line, with ``{model}``, ``{engine}``, ``{library}`` and ``{tensorrt}``; with
    ``python`` it is no command, but Python or the like. ``note`` is what else one has to know.
    """

    style: Style
    program: str = ""
    text: str = ""
    note: str = ""
    python: bool = False
    runtime: PluginRuntime = "tensorrt"


_TENSORRT_FIRST = (
    "TensorRT's own library comes first: the plugin registers with the TensorRT that it finds in"
    " the process, and does nothing where there is none yet"
)
_TRITON_OPERATIONS = 'model_operations {{ op_library_filename: "{library}" }}'
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
        "LD_PRELOAD={library} tritonserver --model-repository=MODELS",
        "it registers when the program asks for TensorRT, and does nothing in other processes",
    ),
    "onnxruntime-native": Loader(
        "register",
        "ONNX Runtime on the CPU, in Python",
        "options.register_custom_ops_library({library!r})",
        "options = onnxruntime.SessionOptions(); rmsnorm_export.session_options() has done both",
        python=True,
        runtime="onnxruntime",
    ),
    "onnxruntime-cpp": Loader(
        "register",
        "ONNX Runtime on the CPU, in C++",
        'session_options.RegisterCustomOpsLibrary("{library}");',
        python=True,
        runtime="onnxruntime",
    ),
    "triton-native": Loader(
        "register",
        "Triton Inference Server, ONNX Runtime on the CPU (config.pbtxt)",
        _TRITON_OPERATIONS,
        python=True,
        runtime="onnxruntime",
    ),
    "onnxruntime-cuda": Loader(
        "register",
        "ONNX Runtime on CUDA, in Python",
        "options.register_custom_ops_library({library!r})",
        "has the CPU's kernels too; rmsnorm_export.session_options(cuda=True) has done it; the"
        " session takes providers=['CUDAExecutionProvider', 'CPUExecutionProvider']",
        python=True,
        runtime="onnxruntime-cuda",
    ),
    "triton-cuda": Loader(
        "register",
        "Triton Inference Server, ONNX Runtime on CUDA (config.pbtxt)",
        _TRITON_OPERATIONS,
        "with an instance_group of KIND_GPU",
        python=True,
        runtime="onnxruntime-cuda",
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


def library(loader: str = "load_library", *, cache: StrPath | None = None) -> Path:
    """The library file for a loader, from the build that fits this machine best.

    That is the newest for the installed TensorRT and the GPUs at hand, else the newest.

    Args:
        loader: a name in ``LOADERS``.
        cache: folder of the builds; by default that of ``build``.

    Raises:
        UsageError: the loader is unknown.
        BackendMissingError: nothing is built, or nothing that is whole.
    """
    _check_loader(loader, LOADERS)
    return best_build(cache, _runtime_of(loader)).path(LOADERS[loader])


def _check_loader(loader: str, known: Collection[str]) -> None:
    if loader not in known:
        raise UsageError(
            "The loader is unknown.", found=repr(loader), fix=f"one of {', '.join(known)}"
        )


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
        library: one of the two libraries; the other is looked for beside it; or that for ONNX
            Runtime. None: those of the builds that fit this machine best.
        cache: folder of the builds; by default that of ``build``.

    Raises:
        UsageError: the loader is unknown.
        InputError: ``library`` is no plugin library, or the one that is needed is not beside it.
        BackendMissingError: nothing is built.
    """
    if loader is not None:
        _check_loader(loader, PROGRAMS)
    names = list(PROGRAMS) if loader is None else [loader]
    builds: dict[PluginRuntime, Built] = {}
    if library is None:
        for runtime in dict.fromkeys(map(_runtime_of, names)):
            try:
                builds[runtime] = best_build(cache, runtime)
            except BackendMissingError as error:
                missing = error
        if not builds:
            raise missing
        names = [name for name in names if _runtime_of(name) in builds]
    elif loader is None:
        runtime = "tensorrt"
        if inspect_library(library, creators=False).style == "register":
            runtime = with_cuda("onnxruntime", has_cuda_nodes(library))
        names = [name for name in names if _runtime_of(name) == runtime]
    lines = []
    for name in names:
        style, built = LOADERS[name], builds.get(_runtime_of(name))
        path = built.path(style) if built else sibling(library or "", style)
        version = built.tensorrt if built else version_beside(path)
        lines.append(loader_line(name, os.fspath(model), path, version))
    return CommandLines(os.fspath(model), tuple(lines))


def _runtime_of(loader: str) -> PluginRuntime:
    return TABLE[loader].runtime


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
            return str(read_json(library.parent / name)["tensorrt"])
    return ""
