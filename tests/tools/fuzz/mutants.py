"""Mutants: each is a seed and the steps that changed it, drawn and shrunk by Hypothesis."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Sequence

import onnx
from hypothesis import strategies as st

from tests.tools.feeds import Feeds

# The modules of the mutations fill the table.
from tests.tools.fuzz import around as _around  # noqa: F401
from tests.tools.fuzz import change as _change  # noqa: F401
from tests.tools.fuzz.draft import MUTATIONS, Draft

Step = tuple[str, int]
"""One mutation: its name and the seed of its choices."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Seed:
    """A model that works, an example of its inputs, and how many norms can be one node each."""

    name: str
    model: onnx.ModelProto = dataclasses.field(repr=False)
    feeds: Feeds = dataclasses.field(repr=False)
    norms: int = 0


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Mutated:
    """A changed seed.

    Attributes:
        done: what each step did, in words; those that had nothing to change are not among them.
        keeps: norms stayed norms, of the same numbers up to rounding.
    """

    seed: Seed
    model: onnx.ModelProto = dataclasses.field(repr=False)
    feeds: Feeds = dataclasses.field(repr=False)
    done: tuple[str, ...]
    keeps: bool


def apply(seed: Seed, steps: Sequence[Step]) -> Mutated:
    """Return the seed after the steps that find something to change."""
    model, feeds, done, keeps = seed.model, seed.feeds, [], True
    for tag, (name, number) in enumerate(steps, 1):
        # Nothing to change, or a model whose shapes would no longer fit.
        with contextlib.suppress(
            IndexError, TypeError, ValueError, onnx.shape_inference.InferenceError
        ):
            draft = Draft(model, feeds, random.Random(number), tag)
            words, kept = MUTATIONS[name](draft)
            model, feeds = draft.finished(), draft.feeds
            done.append(f"{name}: {words}")
            keeps = keeps and kept
    return Mutated(seed, model, feeds, tuple(done), keeps)


def mutants(seeds: st.SearchStrategy[Seed]) -> st.SearchStrategy[Mutated]:
    """Seeds after one to three mutations."""
    step = st.tuples(st.sampled_from(sorted(MUTATIONS)), st.integers(0, 2**32 - 1))
    return st.builds(apply, seeds, st.lists(step, min_size=1, max_size=3))
