"""The CUDA kernels as C functions: the structures of plugins/kernels/rmsnorm.h, for ctypes."""

from __future__ import annotations

import ctypes
import dataclasses
from pathlib import Path
from typing import Any, get_args, get_type_hints

from rmsnorm_export.op.spec import FLOAT, IN_KERNELS, NormSpec

TYPES = {"float32": 0, "float16": 1, "bfloat16": 2, "float8_e4m3": 3, "int8": 4}
STATIC = 1

_C_TYPES: dict[type, Any] = {
    bool: ctypes.c_bool, float: ctypes.c_float, int: ctypes.c_int64, str: ctypes.c_int32
}  # fmt: skip
_NAMES = {"kind", *IN_KERNELS} - {"axis", "last_axis", "stash_type"}
"""A problem has the sizes of the axes; of the type it has whether it is a half one."""


def _fields(of: Any, *names: str) -> list[tuple[str, Any]]:
    return [(name, of) for name in names]


class Norm(ctypes.Structure):
    """The attributes of the operator, in its order; of a word the place in its ``Literal``."""

    _fields_ = (
        *(
            (own.name, _C_TYPES[type(own.default)])
            for own in dataclasses.fields(NormSpec)
            if own.name in _NAMES
        ),
        ("stash_half", ctypes.c_bool),
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
        """Take the attributes over; with angles for every element that is rotated.

        Raises:
            ValueError: the kernels do not know one that is not at its default.
        """
        if unknown := spec.beyond(IN_KERNELS):
            raise ValueError(f"the kernels do not know the attribute {unknown}")
        for name, hint in get_type_hints(NormSpec).items():
            value = getattr(spec, name)
            if hasattr(self.norm, name):
                place = get_args(hint).index(value) if isinstance(value, str) else value
                setattr(self.norm, name, place)
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
        OSError: it cannot be loaded, or its structures are not those above.
    """
    library = ctypes.CDLL(str(path))
    own, expected = int(library.rmsnorm_problem_bytes()), ctypes.sizeof(Problem)
    if own != expected:
        raise OSError(f"{path}: its problem has {own} bytes, that of this version {expected}")
    for name in ("refusal", "broadcast_tables", "error"):
        getattr(library, f"rmsnorm_{name}").restype = ctypes.c_char_p
    pointer = ctypes.c_void_p
    library.rmsnorm_launch.argtypes = [pointer, pointer, ctypes.c_longlong, pointer]
    return library
