"""Say what a file that is not an ONNX model looks like."""

from __future__ import annotations

from rmsnorm_export.graph.wire import varint

_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"PK\x03\x04", "a zip archive, as PyTorch (.pt, .pth), .npz and .keras files are"),
    (0, b"\x80\x02", "a Python pickle, as old PyTorch checkpoints are"),
    (0, b"\x80\x04", "a Python pickle"),
    (0, b"\x80\x05", "a Python pickle"),
    (0, b"GGUF", "a GGUF model"),
    (0, b"\x89HDF", "an HDF5 file, as old Keras models are"),
    (0, b"\x93NUMPY", "a NumPy array"),
    (0, b"ftrt", "a TensorRT engine"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"\x28\xb5\x2f\xfd", "a Zstandard archive"),
    (0, b"BZh", "a bzip2 archive"),
    (0, b"\xfd7zXZ", "an xz archive"),
    (0, b"7z\xbc\xaf", "a 7-Zip archive"),
    (0, b"\x7fELF", "an ELF program or library"),
    (0, b"%PDF", "a PDF document"),
    (0, b"version https://git-lfs", "a Git LFS pointer; the model itself was not downloaded"),
    (4, b"ORTM", "an ONNX Runtime .ort model"),
    (4, b"TFL3", "a TensorFlow Lite model"),
    (8, b'{"', "a safetensors file"),
    (257, b"ustar", "a tar archive"),
)
_TEXT_PROTO = (b"ir_version", b"graph", b"opset_import", b"producer_name", b"model_version")
_TOP_LEVEL_FIELDS = frozenset({1, 2, 3, 4, 5, 6, 7, 8, 14, 20, 25, 26})
"""Field numbers of ModelProto (onnx.proto, IR version 13)."""


def looks_like(data: bytes) -> str:
    """What ``data`` seems to be, as a noun phrase; "" when nothing is recognised."""
    for offset, magic, name in _MAGIC:
        if data.startswith(magic, offset):
            return name
    head = data[:512].lstrip(b"\xef\xbb\xbf \t\r\n")
    lower = head.lower()
    if lower.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "an HTML or XML page; a download may have answered with an error page"
    if head.startswith((b"{", b"[")):
        return "JSON text"
    if head.startswith(_TEXT_PROTO) or (head.startswith(b"<") and b"ir_version" in head):
        return "an ONNX model in text form; convert it to binary protobuf first"
    if data and not any(data):
        return "nothing but zero bytes"
    return _truncated(data) or ("plain text" if head and _is_text(head) else "")


def _is_text(head: bytes) -> bool:
    return all(byte in b"\t\r\n" or 32 <= byte < 127 for byte in head)


def _truncated(data: bytes) -> str:
    """Whether ``data`` is a ModelProto whose last field runs past the end; only headers are read.

    Source: the protobuf wire format (tag = field number << 3 | wire type).
    """
    position = fields = 0
    try:
        while position < len(data):
            tag, position = varint(data, position)
            if tag >> 3 not in _TOP_LEVEL_FIELDS or tag & 7 not in (0, 2):
                return ""
            value, position = varint(data, position)
            if tag & 7 == 2:
                position += value
            fields += 1
    except IndexError:
        return "an ONNX model that ends early" if fields > 1 else ""
    short = position - len(data)
    return f"an ONNX model that ends early, {short} bytes short" if short and fields > 1 else ""
