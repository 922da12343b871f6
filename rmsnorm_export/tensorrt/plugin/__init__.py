"""Build, check and load the TensorRT plugin and the kernels of ONNX Runtime and PyTorch::

    import rmsnorm_export as rx
    rx.plugin.build(tensorrt_include="/opt/tensorrt/include")
    rx.plugin.check().passed
    rx.plugin.build(runtime="onnxruntime")   # and rx.session_options() has them
    rx.plugin.build(runtime="torch")         # and rx.plugin.use_in_torch() takes them
    rx.plugin.library("polygraphy")          # the file for programs that dlopen it
    rx.plugin.command_lines("model.onnx")    # for trtexec, Polygraphy, ONNX Runtime, Triton, Python

Only the standard library is imported here.
"""

from rmsnorm_export.tensorrt.plugin.building import build, build_tools
from rmsnorm_export.tensorrt.plugin.checking import check
from rmsnorm_export.tensorrt.plugin.libraries import (
    find_builds,
    onnxruntime_library,
    open_library,
    use_in_torch,
)
from rmsnorm_export.tensorrt.plugin.lines import LOADERS, command_lines, library

__all__ = [
    "LOADERS",
    "build",
    "build_tools",
    "check",
    "command_lines",
    "find_builds",
    "library",
    "onnxruntime_library",
    "open_library",
    "use_in_torch",
]
