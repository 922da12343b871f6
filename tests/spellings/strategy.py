"""Hypothesis strategies over everything that can be chosen.

Every option lists its simplest value first, so that a failure shrinks to the few choices that
matter; ``build`` settles what cannot be combined, so that nothing drawn is thrown away.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from .case import Case
from .choices import FRAME_OPTIONS, SPELLING_OPTIONS, STAGES, Frame, Spelling
from .graph import CONSTANTS
from .look_alikes import LOOK_ALIKES
from .place import build

_STAGE_SETS = st.frozensets(st.sampled_from(STAGES), max_size=3)
_LEAKS = st.frozensets(st.sampled_from([s for s in STAGES if s != "weight"]), max_size=2)


def _drawn(
    options: dict[str, tuple[Any, ...]], simple: bool, **sets: st.SearchStrategy[Any]
) -> dict[str, Any]:
    fields = {name: st.sampled_from(values) for name, values in options.items()} | sets
    if not simple:
        return fields
    simplest = {name: st.just(values[0]) for name, values in options.items()}
    return {name: st.one_of(simplest[name], simplest[name], fields[name]) for name in fields}


def true_norms(*, simple: bool = False) -> st.SearchStrategy[Case]:
    """Models with one to three RMSNorms in a row, spelled one by one.

    ``simple``: with one norm, and two of three choices the simplest.
    """
    spellings = st.builds(Spelling, **_drawn(SPELLING_OPTIONS, simple, identities=_STAGE_SETS))
    frames = st.builds(
        Frame, **_drawn(FRAME_OPTIONS, simple, leaks=_LEAKS), seed=st.integers(0, 999)
    )
    return st.builds(build, st.lists(spellings, min_size=1, max_size=1 if simple else 3), frames)


def look_alikes() -> st.SearchStrategy[Case]:
    """Models that look as if they held an RMSNorm, or hold less of one than it seems."""
    return st.builds(
        lambda name, *choices: LOOK_ALIKES[name].build(*choices),
        st.sampled_from(sorted(LOOK_ALIKES)),
        st.sampled_from(FRAME_OPTIONS["opset"]),
        st.sampled_from(CONSTANTS),
        st.booleans(),
        st.integers(0, 999),
    )
