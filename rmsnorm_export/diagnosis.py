"""Versions of what is installed here, and a test of the core.

For that, a norm spelled out is made one node for every target, and proven.
"""

from __future__ import annotations

import dataclasses
import platform
import sys
from typing import get_args

from rmsnorm_export.errors import VerificationError
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.system import packages
from rmsnorm_export.system.machine import gpus
from rmsnorm_export.system.packages import version_of
from rmsnorm_export.system.shown import Shown


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Diagnosis(Shown):
    """Outcome of `doctor`.

    Attributes:
        version: of this package.
        python: version and executable of the interpreter.
        platform: operating system and machine.
        gpus: NVIDIA GPUs with driver version, () when none is visible.
        packages: those that this one can use -> version, and which were tried where that is none of
            them; "" where it is not installed.
        self_tests: target -> why a tiny model was not optimized for it, or "".
    """

    version: str
    python: str
    platform: str
    gpus: tuple[str, ...]
    packages: dict[str, str]
    self_tests: dict[str, str]

    @property
    def error(self) -> VerificationError | None:
        """Return what does not work; None where the core does."""
        failed = [f"{target}: {why}" for target, why in self.self_tests.items() if why]
        fix = "install rmsnorm-export again, or report what doctor --format json prints"
        what = "The self test failed."
        return VerificationError(what, found="; ".join(failed), fix=fix) if failed else None


_OPTIONAL = (
    *("onnxruntime", "torch", "onnxscript", "transformers", "tensorrt", "tensorrt_lean"),
    *("tensorrt_rtx", "polygraphy"),
)

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
    """Look at this installation and try its core: versions, GPUs, each target."""
    listed = (*packages.required_packages(), *_OPTIONAL)
    return Diagnosis(
        version=version_of("rmsnorm-export"),
        python=f"{platform.python_version()} ({sys.executable})",
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        gpus=tuple(f"{gpu.name}, {gpu.driver}, {gpu.memory}" for gpu in gpus()),
        packages={name: _version(name) for name in listed},
        self_tests={target: _try(target) for target in get_args(Target)},
    )


def _version(name: str) -> str:
    """Return the version of a package, and those that were tried where it is none of them."""
    version, tried = version_of(name), packages.tried_versions(name)
    words = packages.untried(tried) if version and "<" in tried else ""
    return f"{version}; {words}" if words else version


def _try(target: Target) -> str:
    """Optimize the norm for a target, with a proof in ONNX Runtime where it is; say what failed."""
    import onnx.parser

    from rmsnorm_export.api import optimize

    prove = packages.is_installed("onnxruntime")
    try:
        report = optimize(onnx.parser.parse_model(_MODEL), target=target, prove=prove).report
    except Exception as error:  # whatever is wrong here is what the user asked to see
        return " ".join(f"{type(error).__name__}: {error}".split())
    if report.refused or len(report.fused) != 1:
        reasons = ", ".join(f"{one.reason}, {one.found}" for one in report.refused)
        return f"the norm was not made one node: {reasons}"
    return ""
