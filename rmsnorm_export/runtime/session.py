"""Run models in ONNX Runtime: small cuts on the CPU, kept by content, and whole files.

A session is in a fork of this process: a model that ends ONNX Runtime by a signal, when it is
loaded or run, is an error as any other that it does not load or run. Those that are timed, or that
others call, are in this process (`load_session`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from rmsnorm_export.errors import BackendMissingError, Error, NotRunError, VerificationError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.native import RMS_NORMALIZATION, SIMPLIFIED, SKIP_SIMPLIFIED
from rmsnorm_export.op.spec import BFLOAT16, CODE_TYPES, DOMAIN
from rmsnorm_export.printable import first_line
from rmsnorm_export.runtime.metrics import BFLOAT16_DTYPE
from rmsnorm_export.runtime.support import CPU, CUDA
from rmsnorm_export.system.libraries import loadable
from rmsnorm_export.system.packages import pip_install
from rmsnorm_export.system.process import Fork, ForkEndedError, limits, signal_name
from rmsnorm_export.system.reading import LARGEST_LIBRARY, read_file

Device = Literal["cpu", "cuda"]

_NOT_LOADED = "ONNX Runtime does not load the model."
_NOT_RUN = "ONNX Runtime cannot run the model on these inputs."
_OTHER_INPUTS = "give inputs, or their shapes, that the model accepts"
_CHECK_MODEL = "check the model with onnx.checker, or update onnxruntime"
_RUNTIME_ENDED = "run it in another release of onnxruntime, and report the model to its maintainers"

_MEMORY, _SECONDS = 2**30, 10
"""What loading an empty model may take."""

LEVEL = "accuracy_level"
"""An attribute of MatMulNBits: how activations are rounded. ONNX Runtime 1.31 computes zeros by it
where the scales of the weights are none that are stored, as those that a Cast gives."""

_cuda_used = False
"""CUDA was started here, and cannot be used in a fork any more."""

_NORMS = (RMS_NORMALIZATION, SIMPLIFIED, SKIP_SIMPLIFIED)


class NoKernelError(NotRunError):
    """ONNX Runtime accepts the model but has no kernel for an operator in this type."""


def onnxruntime() -> Any:
    """Return the module, imported when it is first needed.

    Raises:
        BackendMissingError: it is not installed.
    """
    try:
        import onnxruntime as module
    except ImportError as error:
        what, fix = "This needs ONNX Runtime, which cannot be imported.", pip_install("[ort]")
        raise BackendMissingError(what, found=str(error), fix=fix) from error
    return module


def runtime_name(device: Device = "cpu") -> str:
    """Return, for example, ``onnxruntime 1.31.1 (CPU)``."""
    return f"onnxruntime {onnxruntime().__version__} ({device.upper()})"


class Session:
    """A session in a fork of this process.

    Args:
        load: returns the ``InferenceSession``, there.
        size: bytes of the model, by which memory and time are limited; None: they are not. A few
            hundred bytes can ask for shapes of 2**40 axes, or call functions 2**20 times.
    """

    def __init__(self, load: Callable[[], Any], size: int | None = None) -> None:
        def make() -> Callable[..., dict[str, Array]]:
            if size is None:
                return functools.partial(run_session, load())
            with limits(_MEMORY + 4 * size, _SECONDS + size // 10_000):
                return functools.partial(run_session, load())

        with _translated(_NOT_LOADED, _CHECK_MODEL):
            self._fork = Fork(make)

    def answer(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None) -> dict[str, Array]:
        """Return outputs by name, see `run_session`."""
        with _translated(_NOT_RUN, _OTHER_INPUTS):
            answer: dict[str, Array] = self._fork(feeds, outputs)
            return answer


def open_session(source: bytes | str | os.PathLike[str], **options: Any) -> Any:
    """Return a session in a process of its own, for `run_session`.

    Args:
        source, **options: as for `load_session`; size: as of `Session`.

    Raises:
        BackendMissingError, NoKernelError, NotRunError, VerificationError: as `load_session`; or
            ONNX Runtime itself ends.
    """
    size = options.pop("size", None)
    load = functools.partial(load_session, source, **options)
    return load() if _keeps_processes(options.get("device", "cpu")) else Session(load, size)


def _keeps_processes(device: Device) -> bool:
    """Return whether a fork could not do what this process does: CUDA cannot be used in both."""
    torch: Any = sys.modules.get("torch")
    used = _cuda_used or (torch is not None and torch.cuda.is_initialized())
    return sys.platform != "linux" or (device == "cuda" and used)


def load_session(
    source: bytes | str | os.PathLike[str],
    *,
    optimize: bool = False,
    threads: int = 0,
    external_folder: str | None = None,
    device: Device = "cpu",
    kernels: str | os.PathLike[str] | None = None,
    frugal: bool = False,
    written: str | None = None,
) -> Any:
    """Return an ``InferenceSession`` in this process.

    Args:
        source: a serialised model, or the path of one (needed above 2 GB).
        optimize: leave ONNX Runtime's own graph optimization on.
        threads: of one operator; 0 lets ONNX Runtime choose.
        external_folder: where the external data of serialised bytes lies.
        device: ``cuda``: the CUDA provider without TF32, and the CPU for what it has no kernel for.
        kernels: a library of custom operators to register.
        frugal: keep no memory that is not in use, and run the nodes as they stand; else what is an
            output alone runs at the end, and what it reads is kept. Weights are not packed, but
            where products round what they multiply: ONNX Runtime rounds in packed ones alone.
        written: where the graph that it executes is to be written, its large weights beside it.

    Raises:
        BackendMissingError: ONNX Runtime is not installed, or cannot use the GPU.
        NoKernelError: an operator has no kernel for its types.
        NotRunError: an operator is not known.
        VerificationError: ONNX Runtime rejects the model.
    """
    options = session_options(optimize=optimize, threads=threads, kernels=kernels)
    if frugal:
        options.execution_order = onnxruntime().ExecutionOrder.PRIORITY_BASED
        options.enable_cpu_mem_arena = False
        # Buffers are freed after their last use in any case; to plan which share one takes time
        # that grows with the square of the nodes.
        options.enable_mem_reuse = False
        if not (isinstance(source, bytes) and LEVEL.encode() in source):
            options.add_session_config_entry("session.disable_prepacking", "1")
    if external_folder is not None:
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", external_folder
        )
    if written is not None:
        options.optimized_model_filepath = written
        apart = "session.optimized_model_external_initializers_"
        options.add_session_config_entry(f"{apart}file_name", f"{os.path.basename(written)}.data")
        options.add_session_config_entry(f"{apart}min_size_in_bytes", "1024")
    model = source if isinstance(source, bytes) else os.fspath(source)
    providers = [(CUDA, {"use_tf32": "0"}), CPU] if device == "cuda" else [CPU]
    global _cuda_used
    _cuda_used |= device == "cuda"
    with _translated(_NOT_LOADED, _CHECK_MODEL):
        session = onnxruntime().InferenceSession(model, options, providers=providers)
    # A provider that does not start is omitted with a warning.
    if device == "cuda" and CUDA not in session.get_providers():
        found = f"the session runs on {', '.join(session.get_providers())}"
        fix = "check the CUDA and cuDNN libraries that this onnxruntime needs, and the driver"
        if CUDA not in onnxruntime().get_available_providers():
            fix = f"{pip_install('[ort-gpu]')}, in place of onnxruntime"
        what = "ONNX Runtime does not start its CUDA provider."
        raise BackendMissingError(what, found=found, fix=fix)
    return session


@contextlib.contextmanager
def _translated(what: str, fix: str) -> Iterator[None]:
    """Raise errors of this package for those of ONNX Runtime, which have no public base."""
    try:
        yield
    except Error:  # told where it was raised, in a fork
        raise
    except ForkEndedError as error:
        raise VerificationError(what, found=_end_of(error.code), fix=_RUNTIME_ENDED) from error
    except Exception as error:
        kind, name = VerificationError, type(error).__name__
        if name == "NotImplemented" or "is implemented only on" in str(error):
            kind = NoKernelError
        elif "is not a registered function/op" in str(error):  # another's, without its library
            kind = NotRunError
        found = first_line(error, 400, otherwise=name)
        raise kind(what, found=found, fix=fix) from error


def _end_of(code: int | None) -> str:
    """Return how ONNX Runtime ended."""
    if code is not None and code < 0:
        name = signal_name(-code)
        too_long = ", as it took too long" if name == "SIGXCPU" else ""
        return f"ONNX Runtime itself ended with signal {-code} ({name}{too_long})"
    return "ONNX Runtime itself ended" + ("" if code is None else f" with exit code {code}")


def session_options(
    *, optimize: bool, threads: int, kernels: str | os.PathLike[str] | None = None
) -> Any:
    """Return ``SessionOptions`` without warnings; arguments as of ``open_session``.

    Raises:
        BackendMissingError: ONNX Runtime is not installed or does not take the library, or others
            can write to that.
    """
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = 4  # errors are raised as well
    options.intra_op_num_threads = threads
    # Idle threads of one session would otherwise spin on the core that another one needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if kernels is not None:
        try:
            options.register_custom_ops_library(loadable(kernels))
        except Error:
            raise
        # As of a session, of no class that is public.
        except Exception as error:
            what = "ONNX Runtime does not take the library of kernels."
            found = f"{os.fspath(kernels)}: {first_line(error, 400)}"
            fix = "build it here with rmsnorm-export plugin build --runtime onnxruntime; ONNX "
            fix += "Runtime 1.17 or newer is needed"
            raise BackendMissingError(what, found=found, fix=fix) from error
    return options


def executed_graph(model: bytes | str | os.PathLike[str], **options: Any) -> onnx.GraphProto:
    """Return the graph that a session executes, after ONNX Runtime's default optimization.

    Large weights in it have no values.

    Args:
        model: as ``source`` of ``open_session``.
        **options: size, kernels and external_folder, as there.

    Raises:
        BackendMissingError, NoKernelError, NotRunError, VerificationError: as ``open_session``.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "executed.onnx")
        how = {"optimize": True, "threads": 1, "frugal": True, "written": path}
        _ = open_session(model, **how, **options)
        return onnx.load(path, load_external_data=False).graph


def is_norm(node: onnx.NodeProto | ir.Node) -> bool:
    """Return whether a node is a norm, by its operator."""
    return node.op_type in _NORMS or node.domain == DOMAIN


def has_cuda_nodes(library: str | os.PathLike[str]) -> bool:
    """Return whether a library of kernels has some for the CUDA provider."""
    return CUDA.encode() in read_file(library, LARGEST_LIBRARY)


@functools.lru_cache(maxsize=4)
def place_of_kernels(library: str) -> tuple[Device, str]:
    """Return where a library of kernels is run, and that in words; "" without any for CUDA."""
    if not has_cuda_nodes(library):
        return "cpu", ""
    if CUDA in onnxruntime().get_available_providers():
        return "cuda", " on CUDA"
    return "cpu", " on the CPU, for it has no CUDA provider"


def run_onnxruntime(
    model: ir.Model,
    feeds: Mapping[str, Array],
    *,
    optimize: bool = False,
    kernels: str | None = None,
) -> dict[str, Array]:
    """Return the outputs of a small model: one thread, any float type.

    Args:
        model, feeds: the model, and its inputs by name.
        optimize: leave ONNX Runtime's own graph optimization on.
        kernels: a library of custom operators to register; nodes of its own run where
            `place_of_kernels` says.

    Raises:
        BackendMissingError, NoKernelError, VerificationError: as ``open_session``; or the run
            fails.
    """
    content = ir.serde.serialize_model(model).SerializeToString()
    outputs: dict[str, Array] = _in_fork(_run_small, content, optimize, kernels, dict(feeds))
    return outputs


def _in_fork(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of this module in the fork for small models."""
    if _keeps_processes("cuda"):
        return function(*arguments)
    fork = _fork_for_small_models(os.getpid())
    try:
        with _translated(_NOT_RUN, _OTHER_INPUTS):
            return fork(function, *arguments)
    finally:
        if fork.ended:  # the next model has another
            _fork_for_small_models.cache_clear()


@functools.lru_cache(maxsize=1)
def _fork_for_small_models(process: int) -> Fork:
    """Return the fork of a process; one that a caller forks has its own."""
    del process
    return Fork(lambda: lambda function, *arguments: function(*arguments))


def end_fork() -> None:
    """End the fork for small models, which keeps what this process has given up since it began."""
    _fork_for_small_models.cache_clear()


def _run_small(
    content: bytes, optimize: bool, kernels: str | None, feeds: dict[str, Array]
) -> dict[str, Array]:
    return run_session(_small_session(content, optimize, kernels), feeds)


# Equal cuts of the layers of a model are adjacent, so a handful is enough; sessions hold memory.
@functools.lru_cache(maxsize=16)
def _small_session(content: bytes, optimize: bool, kernels: str | None) -> Any:
    device: Device = "cpu" if kernels is None else place_of_kernels(kernels)[0]
    return load_session(content, optimize=optimize, threads=1, device=device, kernels=kernels)


def run_session(
    session: Any, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None
) -> dict[str, Array]:
    """Return outputs of ``session`` by name.

    Args:
        session: of ``open_session`` or ``load_session``.
        feeds: its inputs.
        outputs: names of some; None: every one.

    Raises:
        NoKernelError, VerificationError: the run fails, for example because the shapes do not fit.
    """
    if isinstance(session, Session):
        return session.answer(feeds, outputs)
    names = list(outputs or (output.name for output in session.get_outputs()))
    types = {argument.type for argument in (*session.get_inputs(), *session.get_outputs())}
    by_bytes = any("bfloat16" in name or "float8" in name for name in types)
    with _translated(_NOT_RUN, _OTHER_INPUTS):
        if not by_bytes:
            return dict(zip(names, session.run(names, dict(feeds)), strict=True))
        values = {name: ort_value(array) for name, array in feeds.items()}
        results = session.run_with_ort_values(names, values)
        return dict(zip(names, map(_from_ort, results), strict=True))


_BY_BYTES = {BFLOAT16: BFLOAT16_DTYPE, CODE_TYPES["fp8"][0]: np.dtype(ml_dtypes.float8_e4m3fn)}


def ort_value(array: Array) -> Any:
    """Return an array, of bfloat16, too, as an ``OrtValue`` of the same memory if it is dense."""
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
    shape = tuple(value.shape())
    size = math.prod(shape) * dtype.itemsize
    content = ctypes.string_at(value.data_ptr(), size) if size else b""
    array: Array = np.frombuffer(content, dtype=dtype)
    return array.reshape(shape)
