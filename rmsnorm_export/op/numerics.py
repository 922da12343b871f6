"""The classes of a rewrite: how its rounding steps may differ from those of the source."""

from __future__ import annotations

from typing import Literal

Numerics = Literal["exact", "reordered", "upcast", "unclamped"]
"""The loosest class that is allowed; design: exact keeps every rounding step, reordered moves or
drops one of a half type or forms products in another order, upcast computes in float32 what the
source computed in a half type, unclamped adds an epsilon where the source takes a maximum."""

NUMERICS_MEANING: dict[Numerics, str] = {
    "exact": "Every rounding to a smaller type that the source has, in its place, and no other; "
    "only the order of sums, and x / rms for x * (1 / rms), may differ.",
    "reordered": "One rounding to a half type is moved or dropped: at most 1 ulp of that type "
    "more, and no larger error against float64. Or the scale is multiplied in another order, which "
    "shows where a number on the way overflows or is subnormal, and nowhere else.",
    "upcast": "The source computes the row, or the residual sum, in a half type, the new node in "
    "f32: other numbers, with no larger error against float64.",
    "unclamped": "The source divides by max(rms, epsilon), the new node by sqrt(mean + epsilon ** "
    "2). Rows of zeros stay zeros. A row whose root mean square is near epsilon comes out smaller, "
    "by up to 29 % where it is epsilon; in float32 those above 3,000 and below 1 / 3,000 of it "
    "agree to an ulp. Where codes are made of rows, the source divides a row by at least a number, "
    "the new node does not: rows below it have other codes, and zeros stay zeros. Else as upcast.",
}
"""The promise of each class, for the reader of a report."""

NUMERICS_ORDER: tuple[Numerics, ...] = tuple(NUMERICS_MEANING)
"""From the strictest to the loosest."""
