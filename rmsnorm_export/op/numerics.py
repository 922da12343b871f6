"""The classes of a rewrite: how its rounding steps may differ from those of the source."""

from __future__ import annotations

from typing import Literal

Numerics = Literal["exact", "reordered", "upcast"]
"""The loosest class that is allowed; design: exact keeps every rounding step, reordered moves or
drops one of a half type, upcast computes in float32 what the source computed in a half type."""

NUMERICS_ORDER: tuple[Numerics, ...] = ("exact", "reordered", "upcast")
"""From the strictest to the loosest."""
