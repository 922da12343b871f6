"""The classes of a rewrite: how its rounding steps may differ from those of the source."""

from __future__ import annotations

from typing import Literal, get_args

Numerics = Literal["exact", "reordered", "upcast", "unclamped"]
"""The loosest class that is allowed; design: exact keeps every rounding step, reordered moves or
drops one of a half type or forms products in another order, upcast computes in float32 what the
source computed in a half type or quantized, unclamped adds an epsilon where the source takes a
maximum."""

NUMERICS_ORDER: tuple[Numerics, ...] = get_args(Numerics)
"""From the strictest to the loosest."""
