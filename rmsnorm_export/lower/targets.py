"""The targets of a rewrite."""

from __future__ import annotations

from typing import Literal

Target = Literal["portable", "onnx", "ort"]
