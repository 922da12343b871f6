"""The intervals of a table as a forest plot: one small SVG per row, on one scale.

Colours are the page's own, for light and dark; shapes say the same: a filled disc is a difference,
an open one is none.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from rmsnorm_export.benchmark.result import Timing
from rmsnorm_export.show.page.markup import Markup, svg, tag

_WIDTH, _HEIGHT, _EDGE = 320, 14, 22
_COLOURS = {"faster": "var(--good)", "slower": "var(--bad)"}
_TICK_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0)
_MOST_TICKS = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Scale:
    """Ratios from ``low`` to ``high``, with a tick every ``step``."""

    low: float
    high: float
    step: float

    @classmethod
    def of(cls, timings: Iterable[Timing]) -> Scale:
        """A scale that holds every interval, and 1."""
        ends = [end for t in timings for end in (t.low, t.high, 1 - t.floor, 1 + t.floor)]
        low, high = min([0.98, *ends]), max([1.02, *ends])
        step = next(
            (s for s in _TICK_STEPS if (high - low) / s <= _MOST_TICKS), (high - low) / _MOST_TICKS
        )
        return cls(low, high, step)

    def x(self, ratio: float) -> float:
        """The place of a ratio."""
        share = (ratio - self.low) / (self.high - self.low)
        return round(_EDGE + min(max(share, 0.0), 1.0) * (_WIDTH - 2 * _EDGE), 1)

    def ticks(self) -> list[float]:
        """Multiples of ``step``, 1 among them."""
        first, last = (
            math.ceil((self.low - 1) / self.step),
            math.floor((self.high - 1) / self.step),
        )
        return [1 + i * self.step for i in range(first, last + 1)]


def axis(scale: Scale) -> Markup:
    """The ticks, for the head of the column."""
    texts = [
        tag("text", f"{tick:.2f}".rstrip("0").rstrip("."), x=scale.x(tick), y=11)
        for tick in scale.ticks()
    ]
    marks = "".join(f"M{scale.x(tick)} 14v4" for tick in scale.ticks())
    return svg(
        tag("title", "Time over raw's time: 1 is equal, left is faster"),
        *texts,
        tag("path", d=marks, class_="axis"),
        width=_WIDTH,
        height=18,
    )


def row_plot(timing: Timing, scale: Scale) -> Markup:
    """The interval of one row, on the band of the noise."""
    middle, one = _HEIGHT / 2, scale.x(1)
    left, right = scale.x(1 - timing.floor), scale.x(1 + timing.floor)
    colour = _COLOURS.get(timing.verdict, "var(--dim)")
    parts = [
        tag("title", f"{timing.ratio:.3f}, from {timing.low:.3f} to {timing.high:.3f}"),
        tag("rect", x=left, y=0, width=round(right - left, 1), height=_HEIGHT, fill="var(--line)"),
        tag("path", d=f"M{one} 0v{_HEIGHT}", class_="axis", stroke_dasharray="3 2"),
    ]
    if timing.verdict != "baseline":
        low, high = scale.x(timing.low), scale.x(timing.high)
        line = f"M{low} {middle}H{high}M{low} {middle - 4}v8M{high} {middle - 4}v8"
        filled = timing.verdict in _COLOURS
        parts += [
            tag("path", d=line, stroke=colour, stroke_width=2, fill="none"),
            tag(
                "circle",
                cx=scale.x(timing.ratio),
                cy=middle,
                r=4,
                stroke=colour,
                stroke_width=2,
                fill=colour if filled else "var(--ground)",
            ),
        ]
    return svg(*parts, width=_WIDTH, height=_HEIGHT)
