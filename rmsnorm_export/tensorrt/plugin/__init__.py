"""Build and load the TensorRT plugin and the kernels of ONNX Runtime::

    import rmsnorm_export as rx
    rx.plugin.build(tensorrt_include="/opt/tensorrt/include")
    rx.plugin.build(runtime="onnxruntime")   # and rx.session_options() has them
    rx.plugin.find_build().path("dlopen")    # the file for programs that dlopen it

Only the standard library is imported here.
"""

from rmsnorm_export.tensorrt.plugin.building import build
from rmsnorm_export.tensorrt.plugin.libraries import find_build, onnxruntime_library

__all__ = ["build", "find_build", "onnxruntime_library"]
