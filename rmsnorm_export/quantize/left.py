"""Which weights a quantization leaves out: by measured loss, until it is allowed."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Callable, Collection, Mapping

_MEASURED = 32
"""How many groups of weights are measured, alone: each runs the model once."""
MOST_TRIALS = 2 + _MEASURED + _MEASURED.bit_length()
"""With all weights, with those that are left out, and while these are searched."""


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """What a quantization costs.

    Attributes:
        compared: in words, or "" where nothing was compared.
        problem: what is more than is allowed, or "".
        unknown: why nothing was compared, or "".
        fails: it is the quantized model that does not run.
        amount: how much is lost, by which weights are ranked.
    """

    compared: str = ""
    problem: str = ""
    unknown: str = ""
    fails: bool = False
    amount: float = 0.0

    @property
    def allowed(self) -> bool:
        return not self.problem and not self.fails


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Weights that follow each other in a graph, and what they lose if no others are quantized."""

    names: tuple[str, ...]
    loss: float

    def words(self, sources: Mapping[str, str]) -> str:
        """Return the name of a weight, or the first and the last of several.

        Args:
            sources: what some were transposed of.
        """
        first, last = (sources.get(name, name) for name in (self.names[0], self.names[-1]))
        count = len(self.names)
        return first if count == 1 else f"{first} to {last}, {count} weights"


def left_out(
    sizes: Mapping[str, int], lose: Callable[[Collection[str], Collection[str]], Loss]
) -> list[Group]:
    """Return the fewest groups of weights without which the loss is allowed; none if that fails.

    The group of the largest loss is halved, again and again, so that single weights that lose much
    are found among hundreds. Those that lose most for their size are left out first.

    Args:
        sizes: elements of each weight, by name, in the order of the graph.
        lose: measures a quantization of the first ones, with the second ones left out.
    """
    groups = [Group(tuple(sizes), math.inf)]
    for _ in range(_MEASURED // 2):
        several = [group for group in groups if len(group.names) > 1]
        if not several:
            break
        worst = max(several, key=lambda group: group.loss)
        groups.remove(worst)
        middle = len(worst.names) // 2
        for names in (worst.names[:middle], worst.names[middle:]):
            loss = lose(names, ()).amount
            groups.append(Group(names, math.inf if math.isnan(loss) else loss))
    groups.sort(key=lambda one: one.loss / sum(sizes[name] for name in one.names), reverse=True)

    def holds(count: int) -> bool:
        left = {name for group in groups[:count] for name in group.names}
        return lose([name for name in sizes if name not in left], left).allowed

    counts = range(1, len(groups))
    place = bisect.bisect_left(counts, True, key=holds)
    return groups[: counts[place]] if place < len(counts) else []
