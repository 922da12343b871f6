"""``check``: a plugin library in every TensorRT runtime that is installed."""

from __future__ import annotations

import dataclasses

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.runtime.session import has_cuda_nodes
from rmsnorm_export.runtime.support import CUDA
from rmsnorm_export.system.files import StrPath
from rmsnorm_export.system.packages import is_installed
from rmsnorm_export.tensorrt.plugin.libraries import (
    best_build,
    inspect_library,
    load_problem,
)
from rmsnorm_export.tensorrt.plugin.probe import DIRECT, RUNTIMES, run_probe
from rmsnorm_export.tensorrt.plugin.result import (
    CheckResult,
    LibraryInfo,
    PluginRuntime,
    RuntimeCheck,
    Style,
    with_cuda,
)

_NO_RUNTIME = (
    "no TensorRT runtime is installed: a library was checked by its own self-test only, if it has"
    " one; pip install tensorrt_lean brings a registry that needs no GPU"
)
_NO_LAUNCH = "no kernel was launched: that needs a GPU (bench.gpu)"
_NO_NODE = "no node ran on a GPU: that needs onnxruntime-gpu, whose CUDA provider starts"
_NO_KERNEL = "no kernel was launched: that needs a GPU and an engine (bench.gpu)"


def check(
    library: StrPath | None = None,
    *,
    runtime: PluginRuntime = "tensorrt",
    cuda: bool = False,
    cache: StrPath | None = None,
    timeout: float = 120.0,
) -> CheckResult:
    """Load the plugin as each runtime does, and use its creators as TensorRT would.

    Every pair of library and runtime has a process of its own, so that a crash there is a finding
    here. Creators are looked up by the names that the nodes of a model carry, make a plugin of each
    variant of the attributes, and have to refuse what is wrong with them. The self-test of our own
    libraries needs no runtime; there every plugin is also serialised, made again from that, cloned
    and attached, which must all come out equal. A library that nothing here can try has not passed.

    Args:
        library: a library file. None: those of the build that fits this machine best.
        runtime: of that build. A library for ONNX Runtime computes norms there, of every operator
            and type, which have to be those of the reference. One for PyTorch has to know every
            variant.
        cuda: of ONNX Runtime's builds one with the CUDA kernels, whose nodes have to register, and
            to compute where that ONNX Runtime has a CUDA provider that starts.
        cache: folder of the builds; by default that of ``build``.
        timeout: seconds for one library in one runtime.

    Raises:
        UsageError: the timeout is not positive.
        InputError: ``library`` is missing, no plugin library, or for another machine.
        BackendMissingError: nothing is built.
    """
    if not timeout > 0:
        raise UsageError("The timeout must be positive.", found=f"{timeout}", fix="give seconds")
    infos, trials, passed = [], [], True
    files: list[StrPath] = [] if library is None else [library]
    chosen = with_cuda(runtime, cuda)
    for file in files or [kept.path for kept in best_build(cache, chosen).libraries]:
        info = inspect_library(file)
        if info.style is None:
            raise InputError(
                "The plugin library cannot be used.",
                found=f"{info.path}: {info.problem}",
                fix=info.fix,
            )
        infos.append(info)
        made = _trials(info, info.style, timeout)
        statuses = {trial.status for trial in made} - {"missing", "broken"}
        passed = passed and bool(statuses) and statuses <= {"passed", "incompatible"}
        trials += made
    ran = [trial for trial in trials if trial.status not in ("missing", "broken")]
    if all(info.style == "register" for info in infos):
        ran_there = any(CUDA in check.name for trial in ran for check in trial.checks)
        silent = ran_there or not any(has_cuda_nodes(info.path) for info in infos)
        return CheckResult(tuple(infos), tuple(trials), passed, () if silent else (_NO_NODE,))
    notes = [_NO_KERNEL]
    with_runtime = [trial for trial in ran if trial.runtime != DIRECT]
    if all(info.style == "functions" for info in infos):
        notes = [_NO_LAUNCH]
    elif not with_runtime:
        notes.insert(0, _NO_RUNTIME)
    elif all(trial.status == "incompatible" for trial in with_runtime):
        passed = False
        notes.insert(0, "no installed runtime is of the version that the library was built for")
    return CheckResult(tuple(infos), tuple(trials), passed, tuple(notes))


def _trials(info: LibraryInfo, style: Style, timeout: float) -> list[RuntimeCheck]:
    """One library in every runtime, and without any."""
    registered = style == "register"
    trials = [] if registered else [run_probe(DIRECT, style, info.path, timeout=timeout)]
    if trials and info.problem and trials[0].status != "passed":
        # It cannot be loaded at all; the runtimes would only say so less clearly.
        detail, _ = load_problem(trials[0].detail)
        return [dataclasses.replace(trials[0], version="", detail=detail, creators=())]
    for runtime in {"register": ("onnxruntime",), "functions": ()}.get(style, RUNTIMES):
        if is_installed(runtime):
            trials.append(run_probe(runtime, style, info.path, timeout=timeout))
        else:
            detail = f"pip install {runtime}"
            trials.append(RuntimeCheck(runtime, "", info.path.name, style, "missing", detail))
    return trials
