"""Element types: what each Triton backend takes.

Sources: ``DataType`` of Triton's model_config.proto; the conversion in onnxruntime_backend
(src/onnxruntime_utils.cc), which has no bfloat16; TensorRT's ``DataType``.
"""

from __future__ import annotations

from rmsnorm_export.errors import InputError
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.serving.result import Backend

_INTEGERS = {f"{u}int{bits}": f"TYPE_{u.upper()}INT{bits}" for u in ("", "u") for bits in (8, 32)}

TRITON_TYPES: dict[Backend, dict[str, str]] = {
    "onnxruntime": {
        "float16": "TYPE_FP16",
        "float32": "TYPE_FP32",
        "float64": "TYPE_FP64",
        "bool": "TYPE_BOOL",
        "string": "TYPE_STRING",
        **_INTEGERS,
        "int16": "TYPE_INT16",
        "uint16": "TYPE_UINT16",
        "int64": "TYPE_INT64",
        "uint64": "TYPE_UINT64",
    },
    "tensorrt": {
        "float16": "TYPE_FP16",
        "bfloat16": "TYPE_BF16",
        "float32": "TYPE_FP32",
        "bool": "TYPE_BOOL",
        "int8": "TYPE_INT8",
        "uint8": "TYPE_UINT8",
        "int32": "TYPE_INT32",
        "int64": "TYPE_INT64",
    },
}

_LABELS = {"onnxruntime": "ONNX Runtime", "tensorrt": "TensorRT"}


def triton_type(backend: Backend, name: str, dtype: str) -> str:
    """Triton's name for the element type of input or output ``name``.

    Args:
        backend: that will run the model.
        name: for the message.
        dtype: as this package calls it, e.g. ``float16``.

    Raises:
        InputError: the server's backend has no such type.
    """
    known = TRITON_TYPES[backend]
    if dtype in known:
        return known[dtype]
    raise InputError(
        f"Triton's {_LABELS[backend]} backend has no such element type.",
        found=f"{quoted(name)} is {short(dtype)}; it takes {', '.join(sorted(known))}",
        fix="export with float32 or float16 inputs and outputs, e.g. with a Cast inside the model"
        + ("; or build a TensorRT engine" if dtype in TRITON_TYPES["tensorrt"] else ""),
    )
