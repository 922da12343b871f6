"""Packages and tools that are installed here or would be of use, and a test of the core.

For that, a norm spelled out is made one node for every target, and proven.
"""

from __future__ import annotations

import dataclasses
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

from rmsnorm_export.errors import BackendMissingError, Error, VerificationError
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.system import packages
from rmsnorm_export.system.machine import gpus
from rmsnorm_export.system.packages import Component, Status, pip_install, version_of
from rmsnorm_export.system.process import ask
from rmsnorm_export.system.shown import Shown
from rmsnorm_export.tensorrt.plugin.building import build_tools
from rmsnorm_export.tensorrt.plugin.libraries import Built, find_builds

_TIMEOUT = 120
"""Seconds for the import of one package; torch takes ten on a cold disk."""


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
        self_tests: a tiny model made in memory and optimized for each target; () when a required
            package is not ok.
        works: every required package is ok and every self test passed.
    """

    version: str
    python: str
    platform: str
    gpus: tuple[str, ...]
    components: tuple[Component, ...]
    build_tools: tuple[Component, ...]
    plugins: tuple[Built, ...]
    self_tests: tuple[Component, ...]
    works: bool

    @property
    def error(self) -> Error | None:
        """Return what does not work; None where the core does."""
        broken = [c for c in self.components if c.required and c.status != "ok"]
        if broken:
            what = "A package that rmsnorm-export needs does not work."
            found = ", ".join(f"{c.name} is {c.status}" for c in broken)
            fix = " && ".join(dict.fromkeys(c.install for c in broken))
            return BackendMissingError(what, found=found, fix=fix)
        failed = [f"{one.name}: {one.detail}" for one in self.self_tests if one.status != "ok"]
        fix = "install rmsnorm-export again, or report what doctor --format json prints"
        what = "The self test failed."
        return VerificationError(what, found="; ".join(failed), fix=fix) if failed else None


_OPTIONAL = {
    "onnxruntime": ("verify, optimize --prove", "[ort]"),
    "torch": ("exporting models, the PyTorch operator", "[torch]"),
    "onnxscript": ("torch.onnx.export, --quantize", "[torch]"),
    "transformers": ("export --task generation, Hugging Face folders", "[decoder]"),
    "tensorrt": ("TensorRT engines", "[tensorrt]"),
    "tensorrt_lean": ("running TensorRT engines", "tensorrt_lean"),
    "tensorrt_rtx": ("TensorRT-RTX engines", "[tensorrt-rtx]"),
    "polygraphy": ("building TensorRT engines", "[tensorrt-rtx]"),
}
"""Package as imported -> what it is for, and what brings it, as for `pip_install`."""

_REMARKS = {
    "onnxruntime": "' '.join(m.get_available_providers())",
    "torch": "'CUDA ' + m.version.cuda + ', ' + str(m.cuda.device_count()) + ' GPU'"
    " if m.version.cuda else 'CPU only'",
}
"""Package -> expression of its detail, in which it is ``m``."""

_MODEL = """
<ir_version: 9, opset_import: ["": 18]>
self_test (float[rows, 40] x) => (float[rows, 40] y)
<float two = {2}, int64[1] axes = {-1}, float epsilon = {1e-5}, float scale = {1.5}>
{
    square = Pow(x, two)
    mean = ReduceMean(square, axes)
    sum = Add(mean, epsilon)
    root = Sqrt(sum)
    inverse = Reciprocal(root)
    normalised = Mul(x, inverse)
    y = Mul(normalised, scale)
}"""
"""A norm as torch.onnx spells it."""


def doctor() -> Diagnosis:
    """Look at this installation and try its core: packages, GPUs, the plugin, each target.

    Every package is imported in a process of its own, all at the same time, because a broken one
    may raise anything, hang or end the process.
    """
    listed = {name: ("the core", name) for name in packages.required_packages()} | _OPTIONAL
    with ThreadPoolExecutor(len(listed)) as pool:
        components = tuple(pool.map(_look_for, listed, *zip(*listed.values(), strict=True)))
    core = all(c.status == "ok" for c in components if c.required)
    runtime = any(c.status == "ok" for c in components if c.name == "onnxruntime")
    self_tests = tuple(_try(target, runtime) for target in get_args(Target) if core)
    return Diagnosis(
        version=version_of("rmsnorm-export"),
        python=f"{platform.python_version()} ({sys.executable})",
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        gpus=tuple(f"{gpu.name}, {gpu.driver}, {gpu.memory}" for gpu in gpus()),
        components=components,
        build_tools=build_tools(),
        plugins=find_builds(),
        self_tests=self_tests,
        works=core and all(test.status == "ok" for test in self_tests),
    )


def _look_for(name: str, enables: str, brings: str) -> Component:
    """Import a package, which ``brings`` installs as for `pip_install`."""
    status: Status = "missing"
    version, detail = version_of(name), ""
    if packages.is_installed(name):
        request = {"module": name, "remark": _REMARKS.get(name, "''")}
        ended = ask("rmsnorm_export.system.packages:try_import", request, time_limit=_TIMEOUT)
        if ended.result is None:
            status, detail = "broken", f"{ended.how()}: {ended.last_line() or 'no message'}"
        else:
            status = "ok"
            version, detail = ended.result["version"] or version, ended.result["remark"]
            if "<" in (tried := packages.tried_versions(name)):
                words = packages.untried(tried) or f"tried: {tried}"
                detail = f"{detail}; {words}".removeprefix("; ")
    required, install = name not in _OPTIONAL, pip_install(brings)
    return Component(name, status, detail, version, install, required=required, enables=enables)


def _try(target: Target, with_runtime: bool) -> Component:
    """Optimize the norm for a target; ``with_runtime``: prove it in ONNX Runtime, too."""
    import onnx.parser

    from rmsnorm_export.api import optimize

    name = f"target {target}"
    try:
        report = optimize(onnx.parser.parse_model(_MODEL), target=target, prove=with_runtime).report
        reasons = [refusal.reason for refusal in report.refused]
        if reasons or len(report.fused) != 1:
            detail = f"the norm was not made one node: {', '.join(reasons)}"
            return Component(name, "broken", detail, required=True)
    except Exception as error:  # whatever is wrong here is what the user asked to see
        detail = " ".join(f"{type(error).__name__}: {error}".split())
        return Component(name, "broken", detail, required=True)
    (site,) = report.fused
    if site.proof is None:
        detail = f"{site.op}; not run, as onnxruntime is not installed"
        return Component(name, "ok", detail, required=True)
    status: Status = "ok" if site.proof.passed else "broken"
    return Component(name, status, f"{site.op}, run in ONNX Runtime and in float64", required=True)
