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
STATIC = 1
THROUGHPUT, LOW_LATENCY = 1, 2


def _fields(of: Any, *names: str) -> list[tuple[str, Any]]:
    return [(name, of) for name in names]


class Norm(ctypes.Structure):
    """The attributes of the operator."""

    _fields_ = (
        *_fields(ctypes.c_int32, "kind"),
        *_fields(ctypes.c_float, "epsilon", "scale_offset"),
        *_fields(ctypes.c_bool, "epsilon_outside", "epsilon_clamp", "scale_before_cast"),
        *_fields(ctypes.c_bool, "round_rstd", "stash_half", "gate_first"),
        *_fields(ctypes.c_int32, "association", "activation"),
        *_fields(ctypes.c_int64, "partial_size", "group_size", "rotary_dim"),
        *_fields(ctypes.c_bool, "rotary_interleaved"),
    )


class Problem(ctypes.Structure):
    """Everything that is known before the number of rows is."""

    _fields_ = (
        ("norm", Norm),
        *_fields(ctypes.c_int64, "n", "inner"),
        *_fields(ctypes.c_int32, "x", "scale", "bias", "y"),
        *_fields(ctypes.c_bool, "has_scale", "has_bias"),
        *_fields(ctypes.c_int32, "quantize", "table"),
        *_fields(ctypes.c_int64, "table_width"),
        ("runs", ctypes.c_int64 * 2),
        ("strides", ctypes.c_int64 * 3),
    )

    def __init__(self, *, inner: int = 1, **values: Any) -> None:
        super().__init__(inner=inner, runs=(1, 1), strides=(1, 0, 0), **values)

    def set_norm(self, spec: NormSpec) -> None:
        """Take the attributes over; with angles for every element that is turned."""
        for name in (field[0] for field in Norm._fields_):
            if hasattr(spec, name):
                value = getattr(spec, name)
                words = {"kind": KINDS, "activation": ACTIVATIONS}.get(name)
                setattr(self.norm, name, value if words is None else words[value])
        self.norm.stash_half = spec.stash_type != FLOAT
        self.table_width = spec.rotary_dim or self.n


class Pointers(ctypes.Structure):
    """Device pointers, null where the problem has no such tensor."""

    _fields_ = (
        *_fields(ctypes.c_void_p, "x", "other", "scale", "bias", "quant_scale"),
        *_fields(ctypes.c_void_p, "y", "sum", "row_scale", "cos", "sin"),
    )


def functions(path: Path) -> ctypes.CDLL:
    """Load the library of plugins/torch/c_api.cpp.

    Raises:
        InputError: it cannot be loaded, or its structures are not those above.
    """
    try:
        library = ctypes.CDLL(str(path))
        own, expected = int(library.rmsnorm_problem_bytes()), ctypes.sizeof(Problem)
        if own != expected:
            raise OSError(f"its problem has {own} bytes, that of this version {expected}")
    except (OSError, AttributeError) as error:
        raise InputError(
            "The library of CUDA kernels for PyTorch is not one of this version.",
            found=f"{path}: {error}",
            fix="rmsnorm-export plugin build --runtime torch",
        ) from error
    for name in ("refusal", "broadcast_tables", "error"):
        getattr(library, f"rmsnorm_{name}").restype = ctypes.c_char_p
    pointer = ctypes.c_void_p
    library.rmsnorm_launch.argtypes = [pointer, pointer, ctypes.c_longlong, ctypes.c_int, pointer]
    return library
