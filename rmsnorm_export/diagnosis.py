"""What is installed here, what is not and would be of use, and whether the core works.

Whether it does, a norm spelled out tells that is made one node for every target, and run.
"""

from __future__ import annotations

import dataclasses
import platform
import sys
from collections.abc import Iterator
from typing import Any, Literal, get_args

import numpy as np

from rmsnorm_export.errors import BackendMissingError, Error, VerificationError
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.system.machine import gpus
from rmsnorm_export.system.packages import is_installed, pip_install, version_of
from rmsnorm_export.system.process import Child
from rmsnorm_export.system.shown import Shown
from rmsnorm_export.tensorrt.plugin import build_tools, find_builds
from rmsnorm_export.tensorrt.plugin.result import Built, Tool

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
class SelfTest:
    """A tiny model made in memory and optimized for one target.

    Attributes:
        name: what was tested.
        passed: it did what it should.
        detail: what was measured, or what went wrong.
    """

    name: str
    passed: bool
    detail: str


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Diagnosis(Shown):
    """Outcome of `doctor`.

    Attributes:
        version: of this package.
        python: version and executable of the interpreter.
        platform: operating system and machine.
        gpus: NVIDIA GPUs with driver version, () when none is visible.
        components: packages, required ones first.
        build_tools: what building the TensorRT plugin needs.
        plugins: the builds that can be used.
        self_tests: one per target; () when a required package is not ok.
        works: every required package is ok and every self test passed.
    """

    version: str
    python: str
    platform: str
    gpus: tuple[str, ...]
    components: tuple[Component, ...]
    build_tools: tuple[Tool, ...]
    plugins: tuple[Built, ...]
    self_tests: tuple[SelfTest, ...]
    works: bool

    @property
    def error(self) -> Error | None:
        """What does not work; None where the core does."""
        bad = [c for c in self.components if c.required and c.status != "ok"]
        if bad:
            return BackendMissingError(
                "A package that rmsnorm-export needs does not work.",
                found=", ".join(f"{c.name} is {c.status}" for c in bad),
                fix=" && ".join(dict.fromkeys(c.install for c in bad)),
            )
        failed = [f"{test.name}: {test.detail}" for test in self.self_tests if not test.passed]
        if not failed:
            return None
        return VerificationError(
            "The self test failed.",
            found="; ".join(failed),
            fix="install rmsnorm-export again; if that does not help, report what"
            " doctor --format json prints",
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    """A package to look for.

    Attributes:
        packages: that bring it, as for ``pip_install``.
        probe: Python for a remark, in which the package is ``m``.
    """

    name: str
    required: bool
    enables: str
    packages: str
    probe: str = ""


_CUDA = (
    "'CUDA ' + m.version.cuda + ', ' + str(m.cuda.device_count()) + ' GPU'"
    " if m.version.cuda else 'CPU only'"
)
_KNOWN = (
    _Known("onnx", True, "reading, checking and converting models", "onnx"),
    _Known("onnx_ir", True, "graphs, external data", "onnx-ir"),
    _Known("numpy", True, "references", "numpy"),
    _Known("ml_dtypes", True, "bfloat16", "ml_dtypes"),
    _Known("click", True, "the command line", "click"),
    _Known("rich", True, "reports", "rich"),
    _Known(
        "onnxruntime",
        False,
        "verify, optimize --prove",
        "[ort]",
        "' '.join(m.get_available_providers())",
    ),
    _Known("torch", False, "exporting models, the PyTorch operator", "[torch]", _CUDA),
    _Known("onnxscript", False, "torch.onnx.export", "[torch]"),
    _Known("tensorrt", False, "TensorRT engines", "[tensorrt]"),
    _Known("tensorrt_lean", False, "running TensorRT engines", "tensorrt_lean"),
    _Known("tensorrt_rtx", False, "TensorRT-RTX engines", "[tensorrt-rtx]"),
    _Known("polygraphy", False, "building TensorRT engines", "[tensorrt-rtx]"),
)

_ROWS, _N, _EPSILON = 3, 40, 1e-5

_TOLERANCE = 1e-5
"""float32 sums of 40 squares are off by at most 40 * 2**-24 = 2.4e-6, relatively; a wrong norm by
far more."""

_WEIGHT = np.linspace(0.5, 1.5, _N, dtype=np.float32)

_MODEL = f"""
<ir_version: 9, opset_import: ["": 18]>
self_test (float[rows, {_N}] x) => (float[rows, {_N}] y)
<float two = {{2}}, int64[1] axes = {{-1}}, float epsilon = {{{_EPSILON}}},
 float[{_N}] weight = {{{", ".join(map(str, _WEIGHT.tolist()))}}}>
{{
    square = Pow(x, two)
    mean = ReduceMean(square, axes)
    sum = Add(mean, epsilon)
    root = Sqrt(sum)
    inverse = Reciprocal(root)
    normalised = Mul(x, inverse)
    y = Mul(normalised, weight)
}}"""
"""A norm as torch.onnx spells it."""


def doctor() -> Diagnosis:
    """Look at this installation and try its core: packages, GPUs, the plugin, each target.

    Every package is imported in a process of its own, all at the same time, because a broken one
    may raise anything, hang or end the process.
    """
    probes = [_start(known) for known in _KNOWN]
    components = tuple(_finish(known, probe) for known, probe in zip(_KNOWN, probes, strict=True))
    core = all(c.status == "ok" for c in components if c.required)
    runtime = any(c.status == "ok" for c in components if c.name == "onnxruntime")
    self_tests: tuple[SelfTest, ...] = ()
    if core:
        self_tests = tuple(_self_tests(with_runtime=runtime))
    return Diagnosis(
        version=version_of("rmsnorm-export"),
        python=f"{platform.python_version()} ({sys.executable})",
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        gpus=_gpus(),
        components=components,
        build_tools=build_tools(),
        plugins=find_builds(),
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
    install = pip_install(known.packages)
    return Component(known.name, known.required, status, version, detail, known.enables, install)


def _gpus() -> tuple[str, ...]:
    """Name, driver version and memory of every GPU that ``nvidia-smi`` lists."""
    return tuple(f"{gpu.name}, {gpu.driver}, {gpu.memory}" for gpu in gpus())


def _self_tests(*, with_runtime: bool) -> Iterator[SelfTest]:
    """One test per target; ``with_runtime``: the result is run in ONNX Runtime too."""
    for target in get_args(Target):
        try:
            yield _test(target, with_runtime)
        except Exception as error:
            # whatever is wrong with this installation is what the user asked to see
            detail = " ".join(f"{type(error).__name__}: {error}".split())
            yield SelfTest(f"target {target}", False, detail)


def _test(target: Target, with_runtime: bool) -> SelfTest:
    import onnx.parser

    from rmsnorm_export.rewrite.optimize import optimize

    name = f"target {target}"
    result = optimize(onnx.parser.parse_model(_MODEL), target=target)
    if len(result.report.fused) != 1 or result.report.refused:
        reasons = ", ".join(refusal.reason for refusal in result.report.refused)
        return SelfTest(name, False, f"the norm was not made one node; refused: {reasons or '-'}")
    op = result.report.fused[0].op
    if not with_runtime:
        return SelfTest(name, True, f"{op}; not run, as onnxruntime is not installed")
    random = np.random.default_rng(0)
    x = random.standard_normal((_ROWS, _N)).astype(np.float32)
    error = float(np.max(np.abs(_run(result.to_bytes(), x) - _expected(x))))
    if not error <= _TOLERANCE:
        return SelfTest(name, False, f"{op}, wrong by {error:.2g} in ONNX Runtime")
    return SelfTest(name, True, f"{op}, right within {error:.2g}")


def _run(model: bytes, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def _expected(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """``x / sqrt(mean(x ** 2) + epsilon) * weight`` in float64."""
    wide = x.astype(np.float64)
    root = np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + _EPSILON)
    return np.asarray(wide / root * _WEIGHT)
