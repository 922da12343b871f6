"""The TensorRT plugin and the CPU kernels of ONNX Runtime: built, found, checked, and loaded by
whoever needs them.

    import rmsnorm_export as rx
    rx.plugin.build(tensorrt_include="/opt/tensorrt/include")
    rx.plugin.check().passed
    rx.plugin.build(runtime="onnxruntime")   # and rx.session_options() has them
    rx.plugin.build(runtime="torch")         # and rx.plugin.use_in_torch() takes them
    rx.plugin.library("polygraphy")          # the file for programs that dlopen it
    rx.plugin.command_lines("model.onnx")    # for trtexec, Polygraphy, ONNX Runtime, Triton, Python

Only the standard library is imported here.
"""

from rmsnorm_export.tensorrt.plugin.building import build
from rmsnorm_export.tensorrt.plugin.checking import check
from rmsnorm_export.tensorrt.plugin.libraries import (
    inspect_library,
    list_plugins,
    onnxruntime_library,
    use_in_torch,
)
from rmsnorm_export.tensorrt.plugin.lines import LOADERS, PROGRAMS, command_lines, library
from rmsnorm_export.tensorrt.plugin.result import (
    BuildError,
    Built,
    Check,
    CheckResult,
    CommandLines,
    Creator,
    Entry,
    Library,
    LibraryInfo,
    LoaderLine,
    Plugins,
    RuntimeCheck,
    Tool,
)
from rmsnorm_export.tensorrt.plugin.toolchain import build_tools

__all__ = [
    "LOADERS",
    "PROGRAMS",
    "BuildError",
    "Built",
    "Check",
    "CheckResult",
    "CommandLines",
    "Creator",
    "Entry",
    "Library",
    "LibraryInfo",
    "LoaderLine",
    "Plugins",
    "RuntimeCheck",
    "Tool",
    "build",
    "build_tools",
    "check",
    "command_lines",
    "inspect_library",
    "library",
    "list_plugins",
    "onnxruntime_library",
    "use_in_torch",
]
