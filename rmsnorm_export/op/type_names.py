"""The types of tensors as people write them."""

from __future__ import annotations

from typing import Literal

from rmsnorm_export.errors import UsageError

FloatName = Literal["f32", "f16", "bf16"]

_FLOATS: dict[str, FloatName] = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}

_SPELLED = (
    ("float", ("f", "fp", "float"), (16, 32, 64)),
    ("int", ("i", "int"), (8, 16, 32, 64)),
    ("uint", ("u", "uint"), (8,)),
)
TYPE_NAMES = {"bool": "bool", "bf16": "bfloat16", "bfloat16": "bfloat16", "half": "float16"} | {
    f"{spelling}{bits}": f"{kind}{bits}"
    for kind, spellings, sizes in _SPELLED
    for bits in sizes
    for spelling in spellings
}
"""Every spelling of a type -> its name in NumPy and PyTorch."""


def float_name(text: str) -> FloatName:
    """The short name of a float type, e.g. ``f16`` for ``fp16``, ``float16`` and ``half``.

    Raises:
        UsageError: it is no float type that a model is exported in.
    """
    name = _FLOATS.get(TYPE_NAMES.get(text.strip().lower(), ""))
    if name is None:
        what = "There is no type of this name."
        raise UsageError(what, found=repr(text), fix=f"use {', '.join(_FLOATS.values())}")
    return name
