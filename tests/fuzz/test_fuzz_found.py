"""Norms are found behind mutations that keep their value, and none is lost without a reason."""

from __future__ import annotations

import collections

from fuzz.norms import norm
from fuzz.spelled import spelled_seeds
from tests.tools.fuzz.found import Share, shares

FLOORS = {"into_loop": 0.3}
"""A part of a norm in a loop is told, not found."""

LEAST = 0.9


def test_share_of_each_mutation() -> None:
    found = shares([*spelled_seeds(60), norm(), norm("gemma", "bfloat16")], 1, 420)
    assert len(found) >= 15
    assert sum(share.kept for share in found.values()) >= 100
    for name, share in found.items():
        assert "" not in share.reasons, f"{name}, silent: {share.examples['']}"
        assert share.found >= FLOORS.get(name, LEAST) * share.kept - 1, f"{name}: {share}"
    whole = [share for name, share in found.items() if name not in FLOORS]
    assert sum(s.found for s in whole) >= 0.98 * sum(s.kept for s in whole)


def test_several_mutations_at_once() -> None:
    found = shares(spelled_seeds(60), 2, 240, most=3)
    kept, good = (sum(getattr(s, name) for s in found.values()) for name in ("kept", "found"))
    assert kept >= 50
    assert good >= 0.9 * kept  # most of the others are cut by a loop
    # A chain that is cut by a function and a loop at once may end where nothing speaks of it.
    silent = sum(share.reasons[""] for share in found.values())
    assert silent <= 0.03 * kept


def test_a_loss_is_counted() -> None:
    share = Share(2, 1, collections.Counter({"": 1}))
    assert str(share) == "1 of 2 (SILENT 1)"
