"""A histogram of ulp distances as a small inline SVG, readable as text as well.

The bars are logarithmic: one stray element among millions is what a reader looks for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rmsnorm_export.show.page.markup import Markup, scroller, svg, tag

_BAR, _STEP, _HEIGHT = 34, 42, 56
_TOP, _FOOT = 14, 15

_NARROW = 330
"""Pixels that fit a phone."""

Buckets = Sequence[tuple[str, int]]


def histogram(buckets: Buckets, what: str) -> Markup | None:
    """Elements per bucket of ulp distance; None where nothing was counted.

    Args:
        buckets: as in ``ErrorMetrics.ulp_histogram``.
        what: what was compared, for the title.
    """
    total = sum(count for _, count in buckets)
    if total <= 0:
        return None
    counts = [(label, max(0, count)) for label, count in buckets]
    scale = (_HEIGHT - 2) / max(1.0, math.log10(1 + max(count for _, count in counts)))
    bars, texts = [], []
    for index, (label, count) in enumerate(counts):
        left = index * _STEP + 4
        height = round(math.log10(1 + count) * scale) + 1 if count else 0
        top = _TOP + _HEIGHT - height
        if count:
            bars.append(f"M{left} {_TOP + _HEIGHT}V{top}h{_BAR}V{_TOP + _HEIGHT}z")
        middle = left + _BAR // 2
        texts.append(tag("text", _short_count(count), x=middle, y=top - 3))
        texts.append(tag("text", _bucket_name(label), x=middle, y=_TOP + _HEIGHT + 12, class_="k"))
    width = max(len(counts) * _STEP + 4, 96)
    base = f"M0 {_TOP + _HEIGHT}H{width}"
    picture = svg(
        tag("title", f"{what}: elements by distance in ulp"),
        tag("desc", _spoken(counts, total)),
        tag("path", d="".join(bars), class_="bar"),
        tag("path", d=base, class_="axis"),
        *texts,
        width=width,
        height=_TOP + _HEIGHT + _FOOT,
        class_="hist",
    )
    return picture if width <= _NARROW else scroller(f"{what}: elements by ulp", picture)


def _bucket_name(bucket: str) -> str:
    """``513-1024`` is too wide below a bar: ``\u22641k``."""
    _, dash, last = bucket.partition("-")
    if bucket == "inf":
        return "\u221e"
    if not dash or len(bucket) <= 5:
        return bucket
    return f"\u2264{_short_count(int(last))}" if last.isdigit() else bucket[:6]


def _short_count(count: int) -> str:
    """At most four characters, in powers of 1000 as people say them; beyond, as 1e15."""
    if count < 10_000:
        return str(count)
    for unit in ("k", "M", "G", "T"):
        count_, rest = divmod(count, 1000)
        if count_ < 1000:
            return f"{count_}.{rest // 100}{unit}" if count_ < 10 else f"{count_}{unit}"
        count = count_
    return f"{float(count) * 1e12:.0e}".replace("e+", "e")


def _spoken(buckets: Buckets, total: int) -> str:
    parts = [f"{label} ulp: {count:,}" for label, count in buckets if count]
    return f"{total:,} elements; " + "; ".join(parts)
