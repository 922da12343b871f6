"""Seeds from ``tests/spellings``: norms by hand in every spelling, and look-alikes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from spellings.case import Case
from spellings.choices import FRAME_OPTIONS, SPELLING_OPTIONS, Frame, Spelling
from spellings.graph import CONSTANTS
from spellings.look_alikes import LOOK_ALIKES
from spellings.place import build

from tests.tools.fuzz.feeds import signature_of
from tests.tools.fuzz.mutants import Seed

_CHANGED = 0.3  # of the choices: the others are the simplest


def _drawn(options: dict[str, tuple[Any, ...]], rng: random.Random) -> dict[str, Any]:
    return {
        name: rng.choice(values) if rng.random() < _CHANGED else values[0]
        for name, values in options.items()
    }


def cases(count: int, seed: int = 0) -> Iterator[Case]:
    """Three norms for each look-alike."""
    rng = random.Random(seed)
    names = sorted(LOOK_ALIKES)
    for index in range(count):
        if index % 4 == 3:
            opset, constants = rng.choice(FRAME_OPTIONS["opset"]), rng.choice(CONSTANTS)
            build_one = LOOK_ALIKES[rng.choice(names)].build
            yield build_one(opset, constants, rng.random() < 0.5, rng.randrange(1000))
            continue
        frame = Frame(**_drawn(FRAME_OPTIONS, rng), seed=rng.randrange(1000))
        yield build([Spelling(**_drawn(SPELLING_OPTIONS, rng))], frame)


def spelled_seeds(count: int, seed: int = 0) -> list[Seed]:
    """What `cases` gives, ready to be mutated."""
    return [
        Seed(case.variant, case.model, signature_of(case.model, case.feeds), case.norms)
        for case in cases(count, seed)
    ]
