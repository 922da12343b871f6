"""Seeds from ``tests/spellings``: norms in every spelling, what looks like one, two known ones."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from spellings.case import Case
from spellings.choices import FRAME_OPTIONS, SPELLING_OPTIONS, Frame, Spelling, single
from spellings.place import build
from spellings.strategy import look_alikes

from tests.tools.fuzz.mutants import Seed

ROW = 12


def _seed(case: Case) -> Seed:
    return Seed(case.variant, case.model, case.feeds, case.norms)


def norm(order: str = "llama", dtype: str = "float16", opset: int = 18) -> Seed:
    """One norm of rows of ``ROW`` elements, in the spelling of torch.onnx.export, all dynamic."""
    rounding = order if dtype in ("float16", "bfloat16") else "plain"
    spelling = Spelling(rounding=rounding, epsilon_value=1e-3, inverse="reciprocal")
    shape = {"lead": (2, 5), "row": (ROW,), "symbolic": True}
    frame = Frame(dtype=dtype, opset=opset, value_infos=False, **shape)
    return _seed(build(spelling, frame))


def singles() -> list[Seed]:
    """Return norms that differ from the simplest in one choice each."""
    options = {**FRAME_OPTIONS, **SPELLING_OPTIONS}.items()
    return [_seed(build(*single(name, value))) for name, values in options for value in values]


def _mostly_simple(options: dict[str, tuple[Any, ...]]) -> dict[str, st.SearchStrategy[Any]]:
    """Two of three choices are the simplest: what a mutation does shows best there."""
    simplest = {name: st.just(values[0]) for name, values in options.items()}
    return {
        name: st.one_of(simplest[name], simplest[name], st.sampled_from(values))
        for name, values in options.items()
    }


_NORMS = st.builds(
    build,
    st.builds(Spelling, **_mostly_simple(SPELLING_OPTIONS)),
    st.builds(Frame, **_mostly_simple(FRAME_OPTIONS), seed=st.integers(0, 999)),
)
SPELLED = st.one_of(_NORMS, _NORMS, _NORMS, look_alikes()).map(_seed)
"""Three norms for each look-alike."""
