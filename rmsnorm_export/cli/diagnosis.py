"""What is installed here, what is not and would be of use, and whether the core works."""

from __future__ import annotations

import dataclasses
import platform
import sys

from rmsnorm_export.cli.selftest import run_self_tests
from rmsnorm_export.show.doctor import Component, Diagnosis, SelfTest, Status
from rmsnorm_export.system.gpu import gpus
from rmsnorm_export.system.packages import is_installed, version_of
from rmsnorm_export.system.process import Child
from rmsnorm_export.tensorrt.plugin import build_tools, list_plugins

_TIMEOUT = 120
"""Seconds for the import of one package; torch takes ten on a cold disk."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    """A package to look for; ``probe`` is Python for a remark, in which the package is ``m``."""

    name: str
    required: bool
    enables: str
    install: str
    probe: str = ""


_CORE = "pip install --upgrade rmsnorm-export"
_TENSORRT = 'pip install "rmsnorm-export[tensorrt]"'
_TENSORRT_RTX = 'pip install "rmsnorm-export[tensorrt-rtx]"'

_KNOWN = (
    _Known("onnx", True, "reading, checking and converting models", _CORE),
    _Known("onnx_ir", True, "graphs, external data", _CORE),
    _Known("numpy", True, "references", _CORE),
    _Known("ml_dtypes", True, "bfloat16", _CORE),
    _Known("click", True, "the command line", _CORE),
    _Known("rich", True, "reports", _CORE),
    _Known(
        "onnxruntime",
        False,
        "verify, optimize --prove",
        'pip install "rmsnorm-export[ort]"',
        "' '.join(m.get_available_providers())",
    ),
    _Known(
        "torch",
        False,
        "exporting models, the PyTorch operator",
        'pip install "rmsnorm-export[torch]"',
        "'CUDA ' + m.version.cuda + ', ' + str(m.cuda.device_count()) + ' GPU'"
        " if m.version.cuda else 'CPU only'",
    ),
    _Known("onnxscript", False, "torch.onnx.export", 'pip install "rmsnorm-export[torch]"'),
    _Known("tensorrt", False, "TensorRT engines", _TENSORRT),
    _Known("tensorrt_lean", False, "running TensorRT engines", "pip install tensorrt_lean"),
    _Known("tensorrt_rtx", False, "TensorRT-RTX engines", _TENSORRT_RTX),
    _Known("polygraphy", False, "building TensorRT engines", _TENSORRT_RTX),
)


def diagnose() -> Diagnosis:
    """Look at this installation and try its core.

    Every package is imported in a process of its own, all at the same time, because a broken one
    may raise anything, hang or end the process.
    """
    probes = [_start(known) for known in _KNOWN]
    components = tuple(_finish(known, probe) for known, probe in zip(_KNOWN, probes, strict=True))
    core = all(c.status == "ok" for c in components if c.required)
    runtime = any(c.status == "ok" for c in components if c.name == "onnxruntime")
    self_tests: tuple[SelfTest, ...] = ()
    if core:
        self_tests = tuple(run_self_tests(with_runtime=runtime))
    return Diagnosis(
        version=version_of("rmsnorm-export"),
        python=f"{platform.python_version()} ({sys.executable})",
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        gpus=_gpus(),
        components=components,
        build_tools=build_tools(),
        plugins=list_plugins().entries,
        self_tests=self_tests,
        works=core and all(test.passed for test in self_tests),
    )


def _start(known: _Known) -> Child | None:
    """Import ``known`` in a process of its own; None if there is no such package."""
    if not is_installed(known.name):
        return None
    request = {"module": known.name, "remark": known.probe}
    target = "rmsnorm_export.system.packages:try_import"
    return Child(target, request, time_limit=_TIMEOUT)


def _finish(known: _Known, probe: Child | None) -> Component:
    """The component that ``probe`` found."""
    status: Status = "missing"
    version = detail = ""
    if probe is not None:
        ended = probe.end()
        imported = ended.first("imported")
        if imported is not None:
            status, version, detail = "ok", imported["version"], imported["remark"]
        else:
            status = "broken"
            last = ended.last_line() or "no message"
            detail = f"its import failed with exit code {ended.code}: {last}"
            if ended.code is None:
                detail = f"its import did not end within {_TIMEOUT} s"
        version = version or version_of(known.name)
    return Component(
        known.name, known.required, status, version, detail, known.enables, known.install
    )


def _gpus() -> tuple[str, ...]:
    """Name, driver version and memory of every GPU that ``nvidia-smi`` lists."""
    return tuple(f"{gpu.name}, {gpu.driver}, {gpu.memory}" for gpu in gpus())
