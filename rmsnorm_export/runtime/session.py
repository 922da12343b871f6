"""Run models in ONNX Runtime: small cuts on the CPU, kept by content, and whole files."""

from __future__ import annotations

import ctypes
import functools
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import BackendMissingError, NotRunError, VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.spec import BFLOAT16, CODE_TYPES
from rmsnorm_export.printable import first_line
from rmsnorm_export.runtime.metrics import BFLOAT16_DTYPE
from rmsnorm_export.runtime.support import CPU, CUDA
from rmsnorm_export.system.elf import check_library
from rmsnorm_export.system.packages import pip_install
from rmsnorm_export.system.reading import LARGEST_LIBRARY, read_file

Device = Literal["cpu", "cuda"]

# Equal cuts of the layers of a model are adjacent, so a handful is enough; sessions hold memory.
_KEPT_SESSIONS = 16
_sessions: OrderedDict[tuple[bytes, str | None], Any] = OrderedDict()


class NoKernelError(NotRunError):
    """ONNX Runtime accepts the model but has no kernel for an operator in this type."""


_UNKNOWN_OPERATOR = "is not a registered function/op"
"""What ONNX Runtime 1.31 says of an operator of another's, whose library is not there."""


def onnxruntime() -> Any:
    """The module, imported when it is first needed.

    Raises:
        BackendMissingError: it is not installed.
    """
    try:
        import onnxruntime as module
    except ImportError as error:
        raise BackendMissingError(
            "This needs ONNX Runtime, which cannot be imported.",
            found=str(error),
            fix=pip_install("[ort]"),
        ) from error
    return module


def runtime_name(device: Device = "cpu") -> str:
    """For example ``onnxruntime 1.31.1 (CPU)``."""
    return f"onnxruntime {onnxruntime().__version__} ({device.upper()})"


def open_session(
    source: bytes | str | os.PathLike[str],
    *,
    optimize: bool = False,
    threads: int = 0,
    external_folder: str | None = None,
    device: Device = "cpu",
    kernels: str | os.PathLike[str] | None = None,
) -> Any:
    """An ``InferenceSession``.

    Args:
        source: a serialised model, or the path of one (needed above 2 GB).
        optimize: leave ONNX Runtime's own graph optimization on; on CUDA, TF32 products too.
        threads: of one operator; 0 lets ONNX Runtime choose.
        external_folder: where the external data of serialised bytes lies.
        device: ``cuda``: the CUDA provider, and the CPU for what that has no kernel for.
        kernels: a library of custom operators to register.

    Raises:
        BackendMissingError: ONNX Runtime is not installed, or cannot use the GPU.
        NoKernelError: an operator has no kernel for its types.
        NotRunError: an operator is not known.
        VerificationError: ONNX Runtime rejects the model.
    """
    ort = onnxruntime()
    options = session_options(optimize=optimize, threads=threads, kernels=kernels)
    if external_folder is not None:
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", external_folder
        )
    model = source if isinstance(source, bytes) else os.fspath(source)
    providers: list[Any] = [CPU]
    if device == "cuda":
        providers.insert(0, (CUDA, {"use_tf32": str(int(optimize))}))
    try:
        session = ort.InferenceSession(model, options, providers=providers)
    # The binding raises classes of its own that share no public base.
    except Exception as error:
        raise _error_class(error)(
            "ONNX Runtime does not load the model.",
            found=first_line(error, 400, otherwise=type(error).__name__),
            fix="check the model with onnx.checker, or update onnxruntime",
        ) from error
    # A provider that does not start is left out with a warning.
    if device == "cuda" and CUDA not in session.get_providers():
        raise BackendMissingError(
            "ONNX Runtime does not start its CUDA provider.",
            found=f"the session runs on {', '.join(session.get_providers())}",
            fix="check the CUDA and cuDNN libraries that this onnxruntime needs, and the driver",
        )
    return session


def _error_class(error: Exception) -> type[VerificationError]:
    """Of the error for what ONNX Runtime raised."""
    if type(error).__name__ == "NotImplemented":
        return NoKernelError
    return NotRunError if _UNKNOWN_OPERATOR in str(error) else VerificationError


def session_options(
    *, optimize: bool, threads: int, kernels: str | os.PathLike[str] | None = None
) -> Any:
    """``SessionOptions`` without warnings; ``optimize`` and ``threads`` as of ``open_session``.

    Args:
        kernels: a library of custom operators to register.

    Raises:
        BackendMissingError: ONNX Runtime is not installed, or does not take the library.
    """
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if kernels is not None:
        try:
            check_library(Path(kernels))
            options.register_custom_ops_library(os.fspath(kernels))
        # As of a session, of no class that is public.
        except Exception as error:
            raise BackendMissingError(
                "ONNX Runtime does not take the library of kernels.",
                found=f"{os.fspath(kernels)}: {first_line(error, 400)}",
                fix="build it on this machine with rmsnorm-export plugin build --runtime"
                " onnxruntime; it needs ONNX Runtime 1.17 or newer",
            ) from error
    return options


def has_cuda_nodes(library: str | os.PathLike[str]) -> bool:
    """Whether a library of kernels has some for the CUDA provider."""
    return CUDA.encode() in read_file(library, LARGEST_LIBRARY)


@functools.lru_cache(maxsize=4)
def place_of_kernels(library: str) -> tuple[Device, str]:
    """Where a library of kernels is run, and that in words, "" for one that has none for CUDA."""
    if not has_cuda_nodes(library):
        return "cpu", ""
    if CUDA in onnxruntime().get_available_providers():
        return "cuda", " on CUDA"
    return "cpu", " on the CPU, for it has no CUDA provider"


def run_onnxruntime(
    model: ir.Model, feeds: Mapping[str, Array], *, kernels: str | None = None
) -> dict[str, Array]:
    """Outputs of a small model, graph optimization disabled, one thread; bfloat16 included.

    Args:
        model, feeds: the model, and its inputs by name.
        kernels: a library of custom operators to register; nodes of its own run where
            `place_of_kernels` says.

    Raises:
        BackendMissingError, NoKernelError, VerificationError: as ``open_session``; or the run
            fails.
    """
    content = ir.serde.serialize_model(model).SerializeToString()
    key = (content, kernels)
    session = _sessions.get(key)
    if session is None:
        device: Device = "cpu" if kernels is None else place_of_kernels(kernels)[0]
        session = open_session(content, threads=1, device=device, kernels=kernels)
        _sessions[key] = session
        while len(_sessions) > _KEPT_SESSIONS:
            _sessions.popitem(last=False)
    else:
        _sessions.move_to_end(key)
    return run_session(session, feeds)


def run_session(
    session: Any, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None
) -> dict[str, Array]:
    """Outputs of ``session`` by name.

    Args:
        session: of ``open_session``.
        feeds: its inputs.
        outputs: names of those wanted; None: every one.

    Raises:
        NoKernelError, VerificationError: the run fails, for example because the shapes do not fit.
    """
    every = [output.name for output in session.get_outputs()]
    names = every if outputs is None else list(outputs)
    by_bytes = any(
        word in argument.type
        for argument in (*session.get_inputs(), *session.get_outputs())
        for word in ("bfloat16", "float8")
    )
    try:
        if not by_bytes:
            return dict(zip(names, session.run(names, dict(feeds)), strict=True))
        values = {name: _to_ort(array) for name, array in feeds.items()}
        results = session.run_with_ort_values(names, values)
        return {name: _from_ort(value) for name, value in zip(names, results, strict=True)}
    except Exception as error:
        raise _error_class(error)(
            "ONNX Runtime cannot run the model on these inputs.",
            found=first_line(error, 400, otherwise=type(error).__name__),
            fix="give inputs, or their shapes, that the model accepts",
        ) from error


_BY_BYTES = {BFLOAT16: BFLOAT16_DTYPE, CODE_TYPES["fp8"][0]: np.dtype(ml_dtypes.float8_e4m3fn)}


def _to_ort(array: Array) -> Any:
    value = onnxruntime().OrtValue
    array = np.asarray(array, order="C")  # which leaves a scalar one
    if array.dtype == BFLOAT16_DTYPE:
        return value.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), BFLOAT16)
    return value.ortvalue_from_numpy(array)


def _from_ort(value: Any) -> Array:
    """ONNX Runtime does not hand bfloat16 and float8 to NumPy: the bytes are copied out."""
    dtype = _BY_BYTES.get(value.element_type()) if value.is_tensor() else None
    if dtype is None:
        return np.asarray(value.numpy())
    size = value.tensor_size_in_bytes()
    content = ctypes.string_at(value.data_ptr(), size) if size else b""
    array: Array = np.frombuffer(content, dtype=dtype)
    return array.reshape(tuple(value.shape()))
