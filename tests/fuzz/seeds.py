"""Seeds from ``tests/spellings``: norms in every spelling, what looks like one, two known ones."""

from __future__ import annotations

from hypothesis import strategies as st
from spellings.case import Case
from spellings.choices import FRAME_OPTIONS, SPELLING_OPTIONS, Frame, Spelling, single
from spellings.place import build
from spellings.strategy import look_alikes, true_norms

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


_NORMS = true_norms(simple=True)  # what a mutation does shows best in simple ones
SPELLED = st.one_of(_NORMS, _NORMS, _NORMS, look_alikes()).map(_seed)
"""Three norms for each look-alike."""
