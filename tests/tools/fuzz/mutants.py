"""Seeds, and mutants: each is a seed and the numbers that say how it was changed."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence

import onnx

# The modules of the mutations fill the table.
from tests.tools.fuzz import around as _around  # noqa: F401
from tests.tools.fuzz import change as _change  # noqa: F401
from tests.tools.fuzz.draft import MUTATIONS, Draft
from tests.tools.fuzz.feeds import Signature, signature_of

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
        keeps: norms stayed norms, of the same numbers up to rounding.
    """

    model: onnx.ModelProto
    signature: Signature
    steps: tuple[Step, ...]
    done: tuple[str, ...]
    keeps: bool


class _Changes:
    """A seed on its way to a mutant."""

    def __init__(self, seed: Seed) -> None:
        self.draft = Draft(seed.model, seed.signature)
        self.steps: list[Step] = []
        self.done: list[str] = []
        self.keeps = True

    def take(self, step: Step) -> None:
        draft = self.draft
        before, signature = onnx.ModelProto(), draft.signature.copy()
        before.CopyFrom(draft.model)
        try:
            # The tag makes the names of one step unlike those of another.
            draft.begin(random.Random(step.number), len(self.steps) + 1)
            outcome = MUTATIONS[step.mutation](draft)
        # A model that no longer fits, or a node that is odd already: nothing to change.
        except (IndexError, TypeError, ValueError, onnx.shape_inference.InferenceError):
            outcome = None
        if outcome is None:
            draft.model, draft.signature = before, signature
            return
        self.steps.append(step)
        self.done.append(f"{step.mutation}: {outcome[0]}")
        self.keeps = self.keeps and outcome[1]

    def mutated(self) -> Mutated:
        draft = self.draft
        try:
            draft.begin(random.Random(0), 0)
            draft.forget_wrong_shapes()
        except onnx.shape_inference.InferenceError:
            pass  # the judge drops it
        return Mutated(
            draft.model, draft.signature, tuple(self.steps), tuple(self.done), self.keeps
        )


def apply(seed: Seed, steps: Sequence[Step]) -> Mutated:
    """The seed after the steps that find something to change."""
    changes = _Changes(seed)
    for step in steps:
        changes.take(step)
    return changes.mutated()


def draw(seeds: Sequence[Seed], seed: int, index: int) -> tuple[Seed, Mutated]:
    """Mutant number ``index`` of the sequence that ``seed`` names: one to three mutations."""
    rng = random.Random(f"{seed}/{index}")
    norms = [one for one in seeds if one.norms]
    chosen = rng.choice(norms if norms and rng.random() < _WITH_NORMS else seeds)
    wanted = rng.choice((1, 2, 2, 3))
    names = sorted(MUTATIONS)
    changes = _Changes(chosen)
    for _ in range(_TRIES):
        if len(changes.steps) == wanted:
            break
        changes.take(Step(rng.choice(names), rng.randrange(2**32)))
    return chosen, changes.mutated()


def corpus_seeds(only: str = "") -> Iterator[Seed]:
    """Every norm class of transformers and torch, RMSNorm or not, by three exporters."""
    from tests.tools.corpus.exporters import norm_exports

    for export in norm_exports(only=only, rmsnorm=None):
        if export.path is None:
            continue
        model = onnx.load(export.path)
        names = [value.name for value in model.graph.input]
        examples = dict(zip(names, export.inputs(), strict=True))
        yield Seed(export.key, model, signature_of(model, examples), export.expected)
