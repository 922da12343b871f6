"""Where a value stands in a graph: the values that all of it is computed from, and what is between.

The dominator of a value is the last one through which every way from the inputs of the graph to it
leads, constants and sizes apart: the value is a function of its dominator alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rmsnorm_export.audit.operators import Traits


class Place:
    """A value in the tree of dominators.

    Attributes:
        sums, roots, pieces, ends: the most on a way to it.
        mixes: the fewest.
    """

    __slots__ = ("depth", "ends", "jump", "mixes", "parent", "pieces", "roots", "sums", "value")

    def __init__(self, value: ir.Value | None, parent: Place | None) -> None:
        self.value = value
        self.parent: Place = self if parent is None else parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.jump: Place = self if parent is None else _jump(parent)
        self.sums = self.roots = self.pieces = self.ends = self.mixes = 0

    def through(self, before: Sequence[Place], traits: Traits) -> None:
        """Count what is on the ways that lead here through a node behind ``before``."""
        for name in ("sums", "roots", "pieces", "ends"):
            most = max((getattr(one, name) for one in before), default=0)
            setattr(self, name, most + getattr(traits, name))
        self.mixes = min((one.mixes for one in before), default=0) + traits.mixes

    def explained(self, x: Place) -> None:
        """Forget what is between ``x`` and here."""
        self.sums, self.roots, self.pieces = x.sums, x.roots, x.pieces
        self.ends, self.mixes = x.ends, x.mixes

    def may_be_of(self, x: Place) -> bool:
        """Return whether a sum and a root are between ``x`` and here, and a way beside the sum."""
        return x.sums < self.sums and x.roots < self.roots and x.mixes == self.mixes


TOP = Place(None, None)
"""Behind every input."""


def _jump(parent: Place) -> Place:
    """Return the ancestor that a child of ``parent`` jumps to: any is reached in log(depth)."""
    first, second = parent.jump, parent.jump.jump
    even = parent.depth - first.depth == first.depth - second.depth
    return second if even else parent


def common(before: Sequence[Place]) -> Place:
    """Return the last place that leads to all of ``before``."""
    a = before[0]
    for b in before[1:]:
        if a.depth < b.depth:
            a, b = b, a
        while a.depth > b.depth:
            a = a.jump if a.jump.depth >= b.depth else a.parent
        while a is not b:
            a, b = (a.parent, b.parent) if a.jump is b.jump else (a.jump, b.jump)
    return a
