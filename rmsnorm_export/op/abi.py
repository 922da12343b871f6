"""The CUDA kernels as C functions: the structures of plugins/kernels/rmsnorm.h, for ctypes."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from rmsnorm_export.errors import InputError
from rmsnorm_export.op.spec import FLOAT, NormSpec

TYPES = {"float32": 0, "float16": 1, "bfloat16": 2, "float8_e4m3": 3, "int8": 4}
KINDS = {"RMSNorm": 0, "SkipRMSNorm": 1, "GatedRMSNorm": 2, "RotaryRMSNorm": 3}
ACTIVATIONS = {"silu": 0, "sigmoid": 1}
STATIC, PER_ROW, BLOCKS = 1, 2, 3
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
        ("rotary_dim", ctypes.c_int64),
        ("rotary_interleaved", ctypes.c_bool),
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
        ("table", ctypes.c_int32),
        ("table_width", ctypes.c_int64),
        ("runs", ctypes.c_int64 * 2),
        ("strides", ctypes.c_int64 * 3),
    )

    def __init__(self, *, inner: int = 1, **values: Any) -> None:
        super().__init__(inner=inner, runs=(1, 1), strides=(1, 0, 0), **values)

    def set_norm(self, spec: NormSpec) -> None:
        """Take the attributes over; with angles for every element that is turned."""
        for name, _ in Norm._fields_:
            if hasattr(spec, name):
                value = getattr(spec, name)
                words = {"kind": KINDS, "activation": ACTIVATIONS}.get(name)
                setattr(self.norm, name, value if words is None else words[value])
        self.norm.stash_half = spec.stash_type != FLOAT
        self.table_width = spec.rotary_dim or self.n


class Pointers(ctypes.Structure):
    """Device pointers, null where the problem has no such tensor."""

    _fields_ = tuple(
        (name, ctypes.c_void_p)
        for name in (
            *("x", "other", "scale", "bias", "quant_scale", "y", "sum", "row_scale", "cos", "sin"),
        )
    )


def functions(path: Path) -> ctypes.CDLL:
    """The library of plugins/torch/c_api.cpp.

    Raises:
        InputError: it cannot be loaded, or its structures are not those above.
    """
    try:
        library = ctypes.CDLL(str(path))
        there = int(library.rmsnorm_problem_bytes())
    except (OSError, AttributeError) as error:
        raise InputError(
            "The library of CUDA kernels for PyTorch cannot be loaded.",
            found=f"{path}: {error}",
            fix="rmsnorm-export plugin build --runtime torch",
        ) from error
    here = ctypes.sizeof(Problem)
    if there != here:
        raise InputError(
            "The library of CUDA kernels for PyTorch belongs to another version of this package.",
            found=f"{path}: its problem has {there} bytes, that of this version {here}",
            fix="rmsnorm-export plugin build --runtime torch",
        )
    library.rmsnorm_refusal.restype = ctypes.c_char_p
    library.rmsnorm_broadcast_tables.restype = ctypes.c_char_p
    library.rmsnorm_error.restype = ctypes.c_char_p
    library.rmsnorm_launch.argtypes = [
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int, ctypes.c_void_p)
    ]
    return library
