"""Everything that looks like an RMSNorm and is not, or is one only in part."""

from __future__ import annotations

from . import alike_factors, alike_numerators, alike_places, alike_values
from .alike import LOOK_ALIKES, LookAlike

__all__ = [
    "LOOK_ALIKES",
    "LookAlike",
    "alike_factors",
    "alike_numerators",
    "alike_places",
    "alike_values",
]
