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
    options: dict[str, tuple[Any, ...]], **sets: st.SearchStrategy[Any]
) -> dict[str, st.SearchStrategy[Any]]:
    return {name: st.sampled_from(values) for name, values in options.items()} | sets


def true_norms() -> st.SearchStrategy[Case]:
    """Models with one to three RMSNorms in a row, spelled one by one."""
    spellings = st.builds(Spelling, **_drawn(SPELLING_OPTIONS, identities=_STAGE_SETS))
    frames = st.builds(Frame, **_drawn(FRAME_OPTIONS, leaks=_LEAKS), seed=st.integers(0, 999))
    return st.builds(build, st.lists(spellings, min_size=1, max_size=3), frames)


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
