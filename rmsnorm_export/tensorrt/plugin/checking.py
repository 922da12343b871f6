"""``check``: a library in every runtime that is installed, each time in a process of its own."""

from __future__ import annotations

from rmsnorm_export.system.files import StrPath
from rmsnorm_export.system.packages import Component, is_installed, version_of
from rmsnorm_export.system.process import ask
from rmsnorm_export.tensorrt.plugin.libraries import (
    CheckResult,
    Library,
    PluginRuntime,
    find_build,
    open_library,
    with_cuda,
)

RUNTIMES = {
    "tensorrt": ("tensorrt", "tensorrt_lean", "tensorrt_rtx"),
    "onnxruntime": ("onnxruntime",),
    "onnxruntime-cuda": ("onnxruntime",),
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
    here. TensorRT's registry has to know a creator for every operator, ONNX Runtime to compute a
    norm that is the reference's. A library that nothing here can
    try has not passed. No kernel is launched on a GPU but by an ONNX Runtime with a CUDA provider.

    Args:
        library: a library file of this package. None: those of the build.
        runtime: of that build.
        cuda: of ONNX Runtime's builds the one with the CUDA kernels, whose nodes have to register,
            and to compute where that ONNX Runtime has a CUDA provider that starts.
        timeout: seconds for one library in one runtime.

    Raises:
        InputError: ``library`` is missing, damaged, or no library of this package.
        BackendMissingError: nothing is built, or others can write to it.
    """
    if library is None:
        chosen = find_build(with_cuda(runtime, cuda)).libraries
    else:
        chosen = (open_library(library),)
    results = [
        _check_in(package, one, timeout) for one in chosen for package in RUNTIMES[one.runtime]
    ]
    tried = {one.enables for one in results if one.status != "missing"}
    failed = any(one.status == "broken" for one in results)
    passed = not failed and tried == {one.path.name for one in chosen}
    return CheckResult(tuple(results), passed)


def _check_in(package: str, library: Library, timeout: float) -> Component:
    """Try a library in a runtime."""
    name = library.path.name
    if not is_installed(package):
        return Component(package, "missing", install=f"pip install {package}", enables=name)
    versions = (version_of(f"{package}{cuda}") for cuda in ("", "_cu13", "_cu12"))
    version = next(filter(None, versions), "")
    request = {"runtime": package, "style": library.style, "library": str(library.path)}
    answer = ask("rmsnorm_export.tensorrt.plugin.probe:probe", request, time_limit=timeout)
    outcome = answer.result or {"passed": False, "detail": answer.how()}
    if outcome["passed"]:
        return Component(package, "ok", outcome["detail"], version, enables=name)
    detail = f"{outcome['detail']}; last message: {answer.last_line() or 'none'}"
    return Component(package, "broken", detail, version, enables=name)
