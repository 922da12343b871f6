"""Which backend builds: what is installed, the choice that ``auto`` makes, and its process.

Nothing is imported here; an installed package may still be broken, which its own process tells.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from rmsnorm_export.errors import BackendMissingError
from rmsnorm_export.system import machine
from rmsnorm_export.system.packages import is_installed, pip_install
from rmsnorm_export.system.process import Child, Ended
from rmsnorm_export.system.progress import Progress
from rmsnorm_export.system.reading import open_regular
from rmsnorm_export.tensorrt.engine.result import Backend, sidecar_path


@dataclasses.dataclass(frozen=True, slots=True)
class BackendInfo:
    """One backend, with the ``label`` that its maker gives it and the command that brings it.

    Attributes:
        needs_gpu: it builds only where a GPU is.
        plugins: it has plugin layers.
        versions: it builds engines for other versions of its own.
        hardware: it has levels of hardware compatibility.
        timing_cache: it times kernels and keeps what it measured.
    """

    name: Backend
    label: str
    module: str
    needs_gpu: bool
    plugins: bool
    versions: bool
    hardware: bool
    timing_cache: bool

    @property
    def pip(self) -> str:
        """The command that brings it."""
        return pip_install(f"[{self.name}]")


TENSORRT = BackendInfo(
    "tensorrt", "TensorRT", "tensorrt", needs_gpu=True, plugins=True, versions=True, hardware=True,
    timing_cache=True,
)  # fmt: skip
# Seen on 1.7.1: VERSION_COMPATIBLE fails for want of a lean runtime, the hardware level is ignored
# with a warning, and timing caches are documented as no-ops since 1.2.
RTX = BackendInfo(
    "tensorrt-rtx", "TensorRT-RTX", "tensorrt_rtx", needs_gpu=False, plugins=False, versions=False,
    hardware=False, timing_cache=False,
)  # fmt: skip

BACKENDS: dict[str, BackendInfo] = {info.name: info for info in (TENSORRT, RTX)}

_FIRST_BYTES = {b"vtrt": RTX, b"ptrt": TENSORRT, b"ftrt": TENSORRT}
"""Of an engine; TensorRT-RTX 1.7.1 puts its own in front of what TensorRT begins with."""

_ENGINE_SUFFIXES = (".engine", ".plan", ".trt")


def backend_of_file(path: Path) -> BackendInfo | None:
    """The backend whose engines begin as the file ``path`` does; None when there is none."""
    return _FIRST_BYTES.get(_head(path, 4))


def engines_in(folder: Path) -> list[Path]:
    """The engines in a folder, in the order of their names; [] where it cannot be listed."""
    try:
        return [path for path in sorted(folder.iterdir()) if path.is_file() and is_engine(path)]
    except OSError:
        return []


def is_engine(source: object) -> bool:
    """Whether ``source`` is the path of an engine, by its suffix, else first bytes or record."""
    if not isinstance(source, str | os.PathLike):
        return False
    path = Path(source)
    suffix = path.suffix.lower()
    if suffix in (*_ENGINE_SUFFIXES, ".onnx") or not path.name:
        return suffix in _ENGINE_SUFFIXES
    if backend_of_file(path) is not None:
        return True
    return b'"kind": "engine_record"' in _head(sidecar_path(path), 200)


def _head(path: Path, size: int) -> bytes:
    """The first bytes of a file; b"" of what cannot be read, or is no plain file."""
    try:
        with open_regular(path) as file:
            return file.read(size)
    except (OSError, ValueError):
        return b""


def gpu_visible() -> bool:
    """Whether the driver shows an NVIDIA GPU; ``dxg`` is that of Windows Subsystem for Linux."""
    places = (("/proc/driver/nvidia/gpus", "*"), ("/dev", "nvidia[0-9]*"), ("/dev", "dxg"))
    try:
        return any(next(Path(folder).glob(name), None) for folder, name in places)
    except OSError:
        return False


def gpus() -> tuple[str, ...]:
    """``name, compute capability, driver version`` of every GPU that ``nvidia-smi`` lists."""
    # Without its capability a GPU cannot be told from another one.
    return tuple(
        f"{found.name}, {found.capability}, {found.driver}"
        for found in machine.gpus()
        if found.capability
    )


def choose(choice: str) -> tuple[BackendInfo, str]:
    """The backend to build with, and why that one.

    Args:
        choice: ``auto`` or the name of a backend. ``auto`` takes TensorRT where it and a GPU are,
            else TensorRT-RTX, which needs none, else TensorRT.

    Raises:
        BackendMissingError: it, or Polygraphy, is not installed.
    """
    if choice != "auto":
        info, reason = BACKENDS[choice], "asked for"
    else:
        here = [info for info in BACKENDS.values() if is_installed(info.module)]
        if not here:
            raise BackendMissingError(
                "No backend that builds engines is installed.",
                found="neither tensorrt nor tensorrt_rtx",
                fix=f"{RTX.pip}, which builds without a GPU too, or {TENSORRT.pip}",
            )
        visible = gpu_visible()
        info = next((one for one in here if visible or not one.needs_gpu), here[0])
        seen = "a GPU is visible" if visible else "no GPU is visible"
        reason = f"auto: installed {', '.join(one.label for one in here)}; {seen}"
    for module in (info.module, "polygraphy"):
        if not is_installed(module):
            raise BackendMissingError(
                f"{info.label} cannot build: {module} is not installed.",
                found=f"no package {module}",
                fix=info.pip,
            )
    return info, reason


def run_backend(
    request: Mapping[str, object], info: BackendInfo, progress: Progress | None = None
) -> Ended:
    """Run one request of ``worker`` in a new process, and wait for its end.

    The parser and the builder are C++ that may abort, and Polygraphy reads once, at its import,
    which backend it is to use.
    """
    environment = {
        "POLYGRAPHY_USE_TENSORRT_RTX": "1" if info.name == "tensorrt-rtx" else "0",
        "POLYGRAPHY_AUTOINSTALL_DEPS": "0",
    }
    worker = Child(
        "rmsnorm_export.tensorrt.engine.worker:main",
        dict(request) | {"module": info.module},
        environment=environment,
    )
    return worker.end(progress)
