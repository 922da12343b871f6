"""Everything that looks like an RMSNorm and is not, or is one only in part."""

from __future__ import annotations

from . import alike_factors, alike_values  # noqa: F401 (register)
from .alike import LOOK_ALIKES

__all__ = ["LOOK_ALIKES"]
