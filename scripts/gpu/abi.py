"""The structures of plugins/kernels/rmsnorm.h, for ctypes."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

TYPES = {"float32": 0, "float16": 1, "bfloat16": 2, "float8_e4m3": 3, "int8": 4}
KINDS = {"RMSNorm": 0, "SkipRMSNorm": 1, "GatedRMSNorm": 2}
STATIC, PER_ROW = 1, 2
THROUGHPUT, LOW_LATENCY = 1, 2


class Norm(ctypes.Structure):
    """The attributes of the operator."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("epsilon", ctypes.c_float),
        ("scale_offset", ctypes.c_float),
        ("epsilon_outside", ctypes.c_bool),
        ("epsilon_clamp", ctypes.c_bool),
        ("scale_before_cast", ctypes.c_bool),
        ("round_rstd", ctypes.c_bool),
        ("stash_half", ctypes.c_bool),
        ("gate_first", ctypes.c_bool),
        ("association", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("partial_size", ctypes.c_int64),
        ("group_size", ctypes.c_int64),
    )


class Problem(ctypes.Structure):
    """Everything that is known before the number of rows is."""

    _fields_ = (
        ("norm", Norm),
        ("n", ctypes.c_int64),
        ("inner", ctypes.c_int64),
        ("x", ctypes.c_int32),
        ("scale", ctypes.c_int32),
        ("bias", ctypes.c_int32),
        ("y", ctypes.c_int32),
        ("has_scale", ctypes.c_bool),
        ("has_bias", ctypes.c_bool),
        ("quantize", ctypes.c_int32),
    )

    def __init__(self, *, inner: int = 1, **values: Any) -> None:
        super().__init__(inner=inner, **values)


class Pointers(ctypes.Structure):
    """Device pointers, null where the problem has no such tensor."""

    _fields_ = tuple(
        (name, ctypes.c_void_p)
        for name in ("x", "other", "scale", "bias", "quant_scale", "y", "sum", "row_scale")
    )


def functions(path: Path) -> ctypes.CDLL:
    """The library of plugins/tests/gpu/c_api.cpp.

    Raises:
        RuntimeError: the structures above are not those of the library.
    """
    library = ctypes.CDLL(str(path))
    library.rmsnorm_refusal.restype = ctypes.c_char_p
    library.rmsnorm_error.restype = ctypes.c_char_p
    library.rmsnorm_launch.argtypes = [
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int, ctypes.c_void_p)
    ]
    there, here = library.rmsnorm_problem_bytes(), ctypes.sizeof(Problem)
    if there != here:
        raise RuntimeError(f"Problem has {there} bytes in the library and {here} here")
    return library
