"""``check``: a library in every runtime that is installed, each time in a process of its own."""

from __future__ import annotations

from rmsnorm_export.system.files import StrPath
from rmsnorm_export.system.packages import is_installed, version_of
from rmsnorm_export.system.process import ask
from rmsnorm_export.tensorrt.plugin.libraries import find_build, open_library
from rmsnorm_export.tensorrt.plugin.result import (
    Check,
    CheckResult,
    Library,
    PluginRuntime,
    RuntimeCheck,
    with_cuda,
)

RUNTIMES = {
    "tensorrt": ("tensorrt", "tensorrt_lean", "tensorrt_rtx"),
    "onnxruntime": ("onnxruntime",),
    "onnxruntime-cuda": ("onnxruntime",),
    "torch": ("torch",),
}
"""Python packages that load the libraries of a build."""


def check(
    library: StrPath | None = None,
    *,
    runtime: PluginRuntime = "tensorrt",
    cuda: bool = False,
    timeout: float = 120.0,
) -> CheckResult:
    """Load the plugin as each runtime does, and use its creators as TensorRT would.

    Every pair of library and runtime has a process of its own, so that a crash there is a finding
    here. Creators are looked up by the names that the nodes of a model carry, have the fields of
    the operator, make a plugin of them, and refuse what is wrong. A library for ONNX Runtime
    computes norms there, of every operator and type, which have to be those of the reference. A
    library that nothing here can try has not passed. No kernel is launched on a GPU, unless a check
    names CUDAExecutionProvider.

    Args:
        library: a library file of this package. None: those of the build.
        runtime: of that build.
        cuda: of ONNX Runtime's builds the one with the CUDA kernels, whose nodes have to register,
            and to compute where that ONNX Runtime has a CUDA provider that starts.
        timeout: seconds for one library in one runtime.

    Raises:
        InputError: ``library`` is missing, damaged, or no library of this package.
        BackendMissingError: nothing is built.
    """
    if library is None:
        built = find_build(with_cuda(runtime, cuda))
        chosen, version = built.libraries, built.tensorrt
    else:
        chosen, version = (open_library(library),), ""
    results = [
        _check_in(package, one, version, timeout)
        for one in chosen
        for package in RUNTIMES[one.runtime]
    ]
    tried = {one.library for one in results if one.status != "missing"}
    failed = any(one.status == "failed" for one in results)
    passed = not failed and tried == {one.path.name for one in chosen}
    return CheckResult(tuple(results), passed)


def _check_in(package: str, library: Library, version: str, timeout: float) -> RuntimeCheck:
    """Try a library in a runtime; ``version`` is that of TensorRT which it was built for."""
    name, style = library.path.name, library.style
    versions = (version_of(f"{package}{cuda}") for cuda in ("", "_cu13", "_cu12"))
    here = next(filter(None, versions), "")
    if not is_installed(package):
        return RuntimeCheck(package, "", name, style, "missing", f"pip install {package}")
    other = version.partition(".")[0] != here.partition(".")[0]
    if package != "tensorrt_rtx" and other and version and here:
        detail = f"the library was built for TensorRT {version}"
        return RuntimeCheck(package, here, name, style, "missing", detail)
    answer = ask(
        "rmsnorm_export.tensorrt.plugin.probe:probe",
        {"runtime": package, "style": style, "library": str(library.path)},
        time_limit=timeout,
    )
    checks = tuple(Check(**one) for one in (answer.result or {"checks": ()})["checks"])
    bad = [f"{one.name}: {one.detail}" for one in checks if not one.passed]
    if not bad and checks:
        return RuntimeCheck(package, here, name, style, "passed", "", checks)
    problem = "; ".join(bad[:3]) or answer.how()
    detail = f"{problem}; last message: {answer.last_line() or 'none'}"
    return RuntimeCheck(package, here, name, style, "failed", detail, checks)
