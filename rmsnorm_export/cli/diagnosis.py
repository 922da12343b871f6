"""What is installed here, what is not and would be of use, and whether the core works."""

from __future__ import annotations

import dataclasses
import json
import platform
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from typing import Literal

from rmsnorm_export.cli.selftest import SelfTest, run_self_tests
from rmsnorm_export.system.gpu import gpus
from rmsnorm_export.tensorrt.plugin import Entry, Tool, build_tools, list_plugins

Status = Literal["ok", "missing", "broken"]

_TIMEOUT = 120
"""Seconds for the import of one package; torch takes ten on a cold disk."""


@dataclasses.dataclass(frozen=True, slots=True)
class Component:
    """A package that this one uses or works with.

    Attributes:
        name: as imported.
        required: the core does not work without it.
        status: ok, missing, or broken (found, but its import fails).
        version: "" when unknown.
        detail: e.g. execution providers, or why the import failed.
        enables: what it is for.
        install: the command that brings it.
    """

    name: str
    required: bool
    status: Status
    version: str
    detail: str
    enables: str
    install: str


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnosis:
    """Outcome of ``diagnose``.

    Attributes:
        version: of this package.
        python: version and executable of the interpreter.
        platform: operating system and machine.
        gpus: NVIDIA GPUs with driver version, () when none is visible.
        components: packages, required ones first.
        build_tools: what building the TensorRT plugin needs.
        plugins: the builds of the plugin that are kept.
        self_tests: one per target; () when a required package is not ok.
        works: every required package is ok and every self test passed.
    """

    version: str
    python: str
    platform: str
    gpus: tuple[str, ...]
    components: tuple[Component, ...]
    build_tools: tuple[Tool, ...]
    plugins: tuple[Entry, ...]
    self_tests: tuple[SelfTest, ...]
    works: bool


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    """A package to look for; ``probe`` is Python that leaves a remark in ``detail``."""

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
        "detail = ' '.join(m.get_available_providers())",
    ),
    _Known(
        "torch",
        False,
        "exporting models, the PyTorch operator",
        'pip install "rmsnorm-export[torch]"',
        "detail = 'CUDA ' + m.version.cuda + ', ' + str(m.cuda.device_count()) + ' GPU'"
        " if m.version.cuda else 'CPU only'",
    ),
    _Known("onnxscript", False, "torch.onnx.export", 'pip install "rmsnorm-export[torch]"'),
    _Known("tensorrt", False, "TensorRT engines", _TENSORRT),
    _Known("tensorrt_lean", False, "running TensorRT engines", "pip install tensorrt_lean"),
    _Known("tensorrt_rtx", False, "TensorRT-RTX engines", _TENSORRT_RTX),
    _Known("polygraphy", False, "building TensorRT engines", _TENSORRT_RTX),
)

_PROBE = """
import json, sys
path, name, probe = json.loads(sys.argv[1])
sys.path[:] = path
import importlib
m = importlib.import_module(name)
scope = {"m": m}
if probe:
    exec("detail = ''\\n" + probe, scope)
print("\\n" + json.dumps([str(getattr(m, "__version__", "")), scope.get("detail", "")]))
"""


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
        version=_distribution_version("rmsnorm-export"),
        python=f"{platform.python_version()} ({sys.executable})",
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        gpus=_gpus(),
        components=components,
        build_tools=build_tools(),
        plugins=list_plugins().entries,
        self_tests=self_tests,
        works=core and all(test.passed for test in self_tests),
    )


def _start(known: _Known) -> subprocess.Popen[str] | None:
    """Import ``known`` in a process with this one's module path; None if there is none.

    ``-I`` keeps the working directory out of the path until it is replaced.
    """
    try:
        spec = find_spec(known.name)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:  # nothing, or a mere folder of that name
        return None
    argument = json.dumps([sys.path, known.name, known.probe])
    return subprocess.Popen(
        [sys.executable, "-I", "-c", _PROBE, argument],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def _finish(known: _Known, probe: subprocess.Popen[str] | None) -> Component:
    """The component that ``probe`` found."""
    status: Status = "missing"
    version = detail = ""
    if probe is not None:
        status = "broken"
        try:
            out, err = probe.communicate(timeout=_TIMEOUT)
        except subprocess.TimeoutExpired:
            probe.kill()
            probe.communicate()
            detail = f"its import did not end within {_TIMEOUT} s"
        else:
            if probe.returncode == 0:
                status = "ok"
                version, detail = json.loads(out.splitlines()[-1])
            else:
                last = (err.strip().splitlines() or ["no message"])[-1]
                detail = f"its import failed with exit code {probe.returncode}: {last}"
        version = version or _distribution_version(known.name)
    return Component(
        known.name, known.required, status, version, detail, known.enables, known.install
    )


def _distribution_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _gpus() -> tuple[str, ...]:
    """Name, driver version and memory of every GPU that ``nvidia-smi`` lists."""
    return tuple(f"{gpu.name}, {gpu.driver}, {gpu.memory}" for gpu in gpus())
