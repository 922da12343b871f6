"""Say what a file that is given for an ONNX model by mistake is."""

from __future__ import annotations

_BEGINNINGS = (
    (0, b"PK\x03\x04", "a PyTorch file (.pt, .pth) or another zip archive"),
    (0, b"\x80\x02", "a PyTorch checkpoint or another Python pickle"),
    (0, b"ftrt", "a TensorRT engine"),
    (4, b"TFL3", "a TensorFlow Lite model"),
    (8, b'{"', "a safetensors file"),
    (0, b"\x89HDF", "a TensorFlow (Keras) file"),
    (0, b"version https://git-lfs", "a Git LFS pointer; the model itself was not downloaded"),
)


def looks_like(data: bytes) -> str:
    """Return what ``data`` seems to be, as a noun phrase; "" when nothing is recognised."""
    return next((name for at, start, name in _BEGINNINGS if data.startswith(start, at)), "")
