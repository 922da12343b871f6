"""ONNX Runtime sessions with equal settings, on a named provider."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rmsnorm_export.errors import BackendMissingError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.runtime.metrics import BFLOAT16_DTYPE
from rmsnorm_export.runtime.session import onnxruntime, run_session, session_options
from rmsnorm_export.runtime.support import CPU, CUDA
from rmsnorm_export.system.packages import pip_install
from rmsnorm_export.tensorrt.plugin.libraries import onnxruntime_library

# TF32 rounds the factors of f32 products to 10 bits: outputs could not be compared any more.
_CUDA = (CUDA, {"use_tf32": "0"})

PROVIDERS: dict[str, list[Any]] = {
    "cpu": [CPU],
    "cuda": [_CUDA, CPU],
    "tensorrt": ["TensorrtExecutionProvider", _CUDA, CPU],
}
"""Name -> execution providers in order of preference; the last one takes what others cannot."""


def provider_class(provider: str) -> str:
    """ONNX Runtime's own name, e.g. ``CUDAExecutionProvider``."""
    first = PROVIDERS[provider][0]
    return str(first if isinstance(first, str) else first[0])


_BRINGS = {"cpu": "[ort]", "cuda": "[ort-gpu]", "tensorrt": "[ort-gpu]"}


def choose_providers(wanted: Sequence[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The providers to measure on, and of those that were not asked for by name the absent ones.

    Args:
        wanted: by name; None: all that this ONNX Runtime has.

    Raises:
        BackendMissingError: ONNX Runtime is not installed, or lacks one that is wanted.
    """
    present = onnxruntime().get_available_providers()
    here = tuple(name for name in PROVIDERS if provider_class(name) in present)
    if wanted is None:
        return here, tuple(name for name in PROVIDERS if name not in here)
    for name in wanted:
        if name not in here:
            raise provider_missing(name, f"this ONNX Runtime has {', '.join(present)}")
    return tuple(wanted), ()


def kernels_of(providers: Sequence[str]) -> dict[str, str]:
    """The libraries of kernels for these providers; that for CUDA may be missing beside the CPU's.

    Raises:
        BackendMissingError: nothing is built.
    """
    found = {}
    for name in ("cpu", "cuda"):
        if name in providers:
            try:
                found[name] = os.fspath(onnxruntime_library(cuda=name == "cuda"))
            except BackendMissingError:
                if name == "cpu" or "cpu" not in providers:
                    raise
    return found


def provider_missing(name: str, found: str) -> BackendMissingError:
    """The error for a provider that was asked for by name."""
    return BackendMissingError(
        f"The provider {name} is not available in ONNX Runtime.",
        found=found,
        fix=pip_install(_BRINGS[name]) + ("" if name == "cpu" else ", on a machine with its GPU"),
    )


def settings(threads: int) -> dict[str, int | str]:
    """What every session is opened with, for the record."""
    return {
        "intra_op_num_threads": threads,
        "inter_op_num_threads": 1,
        "execution_mode": "sequential",
        "graph_optimization": "all",
        "allow_spinning": 0,
        "use_tf32": 0,
    }


def open_session(
    path: str, provider: str, *, threads: int, optimize: bool = True, kernels: str | None = None
) -> Any:
    """A session of the file ``path``; raises what ONNX Runtime raises.

    Args:
        path: of the model.
        provider: a key of ``PROVIDERS``.
        threads: of one operator.
        optimize: leave ONNX Runtime's graph optimization on, as a user would run it.
        kernels: a library of custom operators to register.
    """
    ort = onnxruntime()
    options = session_options(optimize=optimize, threads=threads, kernels=kernels)
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    # Idle threads of one session would otherwise spin on the core that another one needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(path, options, providers=PROVIDERS[provider])


def is_on(session: Any, provider: str) -> bool:
    """Whether the session has its provider: ONNX Runtime falls back to the CPU with a log line."""
    return provider_class(provider) in session.get_providers()


def runner(session: Any, feeds: Mapping[str, Array]) -> Callable[[], object]:
    """One run of ``session``, with as little around it as there can be."""
    mine = {item.name: feeds[item.name] for item in session.get_inputs()}
    plain = not any(
        "bfloat16" in item.type for item in (*session.get_inputs(), *session.get_outputs())
    )
    if plain and not any(array.dtype == BFLOAT16_DTYPE for array in mine.values()):
        return lambda: session.run(None, mine)
    return lambda: run_session(session, mine)
