"""The backends that models run on, one row each. Nothing of them is imported here."""

from __future__ import annotations

_ONNX = "rmsnorm_export.compare.onnx_backend:OnnxRuntime"
BACKENDS = {
    "onnxruntime": _ONNX,
    "onnxruntime-native": _ONNX,
    "onnxruntime-cuda": _ONNX,
    "onnxruntime-native-cuda": _ONNX,
    "torch": "rmsnorm_export.compare.pytorch:PyTorch",
    "engine": "rmsnorm_export.compare.engine:Engine",
}
"""By the name that users give: module and class, imported when a model is to run there."""


def backend_choices() -> tuple[str, ...]:
    """List what users may choose."""
    return ("auto", *BACKENDS)
