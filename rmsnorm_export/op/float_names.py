"""The float types as people write them."""

from __future__ import annotations

from typing import Literal

from rmsnorm_export.errors import UsageError

FloatName = Literal["f32", "f16", "bf16"]

FLOAT_NAMES: dict[str, FloatName] = {
    "float32": "f32", "f32": "f32", "fp32": "f32",
    "float16": "f16", "f16": "f16", "fp16": "f16", "half": "f16",
    "bfloat16": "bf16", "bf16": "bf16",
}  # fmt: skip
"""Every spelling; the first of each type is that of NumPy and PyTorch."""


def float_name(text: str) -> FloatName:
    """The one name of a float type, e.g. ``f16`` for ``fp16``, ``float16`` and ``half``.

    Raises:
        UsageError: it is no float type that a model is exported in.
    """
    name = FLOAT_NAMES.get(text.strip().lower())
    if name is None:
        raise UsageError(
            "There is no type of this name.",
            found=repr(text),
            fix=f"use {', '.join(dict.fromkeys(FLOAT_NAMES.values()))}",
        )
    return name
