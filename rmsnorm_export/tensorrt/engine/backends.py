"""Which backend builds: what is installed, the choice that ``auto`` makes, and its engines.

Nothing is imported here; an installed package may still be broken, which its own process tells.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rmsnorm_export.errors import BackendMissingError, Error, InputError
from rmsnorm_export.op.native import KINDS
from rmsnorm_export.printable import one_line, quoted, short
from rmsnorm_export.system import machine
from rmsnorm_export.system.packages import is_installed, pip_install, require_package
from rmsnorm_export.system.process import Ended, ask
from rmsnorm_export.system.reading import open_regular
from rmsnorm_export.tensorrt.engine.result import Backend


@dataclasses.dataclass(frozen=True, slots=True)
class BackendInfo:
    """One backend, with the ``label`` that its maker gives it."""

    name: Backend
    label: str
    module: str

    @property
    def pip(self) -> str:
        """The command that brings it."""
        return pip_install(f"[{self.name}]")

    def require(self) -> None:
        """Raise ``BackendMissingError`` where it or Polygraphy is not installed."""
        for module in (self.module, "polygraphy"):
            require_package(module, self.label, f"[{self.name}]")


TENSORRT = BackendInfo("tensorrt", "TensorRT", "tensorrt")
"""This one alone has plugin layers; it builds only where a GPU is."""
RTX = BackendInfo("tensorrt-rtx", "TensorRT-RTX", "tensorrt_rtx")
BACKENDS: dict[str, BackendInfo] = {info.name: info for info in (TENSORRT, RTX)}

_FIRST_BYTES = (b"vtrt", b"ptrt", b"ftrt")
"""Of an engine; TensorRT-RTX 1.7.1 puts its own in front of what TensorRT begins with."""

_ENGINE_SUFFIXES = (".engine", ".plan", ".trt")


def engines_in(folder: Path) -> list[Path]:
    """Return the engines in a folder, in the order of their names; [] where it is none."""
    try:
        return [path for path in sorted(folder.iterdir()) if path.is_file() and is_engine(path)]
    except OSError:
        return []


def is_engine(source: object) -> bool:
    """Return whether a path is of an engine, by its suffix or else its first bytes."""
    if not isinstance(source, str | os.PathLike):
        return False
    suffix = Path(source).suffix.lower()
    if suffix in (*_ENGINE_SUFFIXES, ".onnx"):
        return suffix in _ENGINE_SUFFIXES
    try:
        with open_regular(source) as file:
            return file.read(4) in _FIRST_BYTES
    except (OSError, ValueError):  # it cannot be read, or is no plain file
        return False


def gpu_visible() -> bool:
    """Return whether the driver shows an NVIDIA GPU; ``dxg`` is that of WSL."""
    places = (("/proc/driver/nvidia/gpus", "*"), ("/dev", "nvidia[0-9]*"), ("/dev", "dxg"))
    try:
        return any(next(Path(folder).glob(name), None) for folder, name in places)
    except OSError:
        return False


def gpus() -> tuple[str, ...]:
    """Return ``name, compute capability, driver version`` of every GPU that is listed."""
    return tuple(
        f"{gpu.name}, {gpu.capability}, {gpu.driver}" for gpu in machine.gpus() if gpu.capability
    )


def choose(choice: str) -> tuple[BackendInfo, str]:
    """Return the backend to build with, and why that one.

    Args:
        choice: ``auto`` or the name of a backend. ``auto`` takes TensorRT where it and a GPU are,
            else TensorRT-RTX, which needs none, else TensorRT.

    Raises:
        BackendMissingError: it, or Polygraphy, is not installed.
    """
    info, reason = BACKENDS.get(choice, RTX), "as asked"
    if choice == "auto":
        here = [one for one in (TENSORRT, RTX) if is_installed(one.module)]
        visible = gpu_visible()
        info = next((one for one in here if visible or one is RTX), here[0] if here else RTX)
        reason = "auto: a GPU is visible" if visible else "auto: no GPU is visible"
    info.require()
    return info, reason


def run_backend(command: str, request: Mapping[str, object], info: BackendInfo) -> Ended:
    """Call a function of ``worker`` in a new process.

    The parser and the builder are C++ that may abort, and Polygraphy reads once, at its import,
    which backend it is to use.
    """
    environment = {
        "POLYGRAPHY_USE_TENSORRT_RTX": "1" if info is RTX else "0",
        "POLYGRAPHY_AUTOINSTALL_DEPS": "0",
    }
    return ask(
        f"rmsnorm_export.tensorrt.engine.worker:{command}",
        {**request, "module": info.module},
        environment=environment,
    )


_OF_ONNX_RUNTIME = r"(Skip)?(Simplified)?LayerNormalization"

_NO_GPU = re.compile(r"cuda driver|no cuda-capable device|cudaerror 35\b|cudaerror 100\b", re.I)
"""Words of a runtime where no GPU, or no driver for it, is; TensorRT-RTX 1.7.1: cudaError 35."""

_FIXES = (
    (r"SIGKILL|MemoryError", "the memory ran out: use a machine with more"),
    (r"No space left|File too large|quota", "free some space, or write to another folder"),
    (
        r"load_library|getCreators|no shared library|cut short",
        "rmsnorm-export plugin build --force makes it anew; or use --plugin never",
    ),
    (r"profile", "change --shapes: the profile does not fit the model"),
    (r"memory|workspace", "raise --memory-limit, lower the largest shapes, or free the GPU"),
)


def cause(answer: Ended) -> str:
    """Return the last errors of the backend and how its process ended."""
    lines = [line for line in answer.tail.splitlines() if line.startswith("error: ")]
    last = dict.fromkeys([*lines[-3:], answer.last_line()])
    return "; ".join([answer.how(), *(one_line(line, 400) for line in last if line)])


def failure(answer: Ended, info: BackendInfo, file: str, what: str, fix: str = "") -> Error:
    """Return the error for a process that ended without a result; ``what`` became of a file."""
    text = f"{file}: {cause(answer)}"
    own = answer.last_line().startswith("ValueError: ")  # of worker
    if _NO_GPU.search(text) and not own:
        fix = f"use a machine with a GPU{'' if info is RTX else ', or --backend tensorrt-rtx'}"
        return BackendMissingError(f"{info.label} finds no GPU.", found=text, fix=fix)
    if re.search(r"\b(ImportError|ModuleNotFoundError)\b", text):
        return BackendMissingError(f"{info.label} cannot be imported.", found=text, fix=info.pip)
    fixes = (words for pattern, words in _FIXES if re.search(pattern, text, re.I))
    otherwise = fix or "try another --target of optimize, or the raw model"
    return InputError(f"{info.label} {what}", found=text, fix=next(fixes, otherwise))


def refused(errors: Sequence[dict[str, Any]], answer: Ended, info: BackendInfo) -> InputError:
    """Return the error for a model that the parser does not take."""
    if not errors:
        fix = "check the model with onnx.checker, and export it again"
        return InputError(f"{info.label} cannot read the model.", found=cause(answer), fix=fix)
    first = errors[0]
    op, inside = str(first["op"]), str(first["inside"])
    unnamed = f"the file, in {short(str(first['function']))} of the parser"
    where = f"node {quoted(str(first['node']))} ({short(op)})" if op else unnamed
    where += f" inside {quoted(inside)}" if inside else ""
    fix = "export the model with other operators there, or at another opset"
    if op in KINDS or re.fullmatch(_OF_ONNX_RUNTIME, op) or op == "RMSNormalization":
        fix = "make the model with optimize --target portable: it has a function body for it"
    found = f"{where}: {one_line(str(first['text']), 300)} [{short(str(first['code']))}]"
    return InputError(f"{info.label} cannot take the model.", found=found, fix=fix)
