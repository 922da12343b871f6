"""Seeds, and mutants: each is a seed and the numbers that say how it was changed."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import onnx

# The modules of the mutations fill the table.
from tests.tools.fuzz import gains as _gains  # noqa: F401
from tests.tools.fuzz import place as _place  # noqa: F401
from tests.tools.fuzz import scopes as _scopes  # noqa: F401
from tests.tools.fuzz.change import MUTATIONS
from tests.tools.fuzz.draft import Draft
from tests.tools.fuzz.feeds import Signature

_TRIES = 12
_WITH_NORMS = 0.85  # of the mutants, of seeds that hold a norm; the others look like it


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Seed:
    """A model that works, under a readable name; ``norms`` of it can be one node."""

    name: str
    model: onnx.ModelProto
    signature: Signature
    norms: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One mutation: its name and the seed of its choices."""

    mutation: str
    number: int


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Mutated:
    """A changed seed.

    Attributes:
        done: what each step did, in words.
        keeps: whether norms stayed norms, of the same numbers up to rounding.
    """

    model: onnx.ModelProto
    signature: Signature
    steps: tuple[Step, ...]
    done: tuple[str, ...]
    keeps: bool


def apply(seed: Seed, steps: Sequence[Step]) -> Mutated:
    """The seed after the steps that find something to change."""
    changes = _Changes(seed)
    for step in steps:
        changes.take(step)
    return changes.mutated()


class _Changes:
    """A seed on its way to a mutant."""

    def __init__(self, seed: Seed) -> None:
        self.draft = Draft(seed.model, seed.signature)
        self.steps: list[Step] = []
        self.done: list[str] = []
        self.keeps = True
        self.works = True

    def take(self, step: Step) -> None:
        draft = self.draft
        before, signature = onnx.ModelProto(), draft.signature.copy()
        before.CopyFrom(draft.model)
        # The tag makes the names of one step unlike those of another.
        self.works = self.works and draft.begin(random.Random(step.number), len(self.steps) + 1)
        if not self.works:
            return
        try:
            outcome = MUTATIONS[step.mutation](draft)
        except (IndexError, TypeError, ValueError):  # a node that is odd already: nothing to change
            outcome = None
        if outcome is None:
            draft.model, draft.signature = before, signature
            return
        self.steps.append(step)
        self.done.append(f"{step.mutation}: {outcome[0]}")
        self.keeps = self.keeps and outcome[1]

    def mutated(self) -> Mutated:
        draft = self.draft
        if draft.begin(random.Random(0), 0):
            draft.forget_wrong_shapes()
        return Mutated(
            draft.model, draft.signature, tuple(self.steps), tuple(self.done), self.keeps
        )


def draw(seeds: Sequence[Seed], seed: int, index: int) -> tuple[Seed, Mutated]:
    """Mutant number ``index`` of the sequence that ``seed`` names: one to three mutations."""
    rng = random.Random(f"{seed}/{index}")
    norms = [one for one in seeds if one.norms]
    chosen = rng.choice(norms if norms and rng.random() < _WITH_NORMS else seeds)
    wanted = rng.choice((1, 2, 2, 3))
    names = sorted(MUTATIONS)
    changes = _Changes(chosen)
    for _ in range(_TRIES):
        if len(changes.steps) == wanted or not changes.works:
            break
        changes.take(Step(rng.choice(names), rng.randrange(2**32)))
    return chosen, changes.mutated()
