"""Which cases of a large family run by default; the others run with ``--thorough``.

A family is a product (norms by types by exporters, architectures by types): its members differ by
one factor at a time, so that a sample with every value of every factor finds what most defects
do. The sample follows from the family alone: it is the same in every run and on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable
from typing import Any

import pytest


def one_each(cases: Iterable[Any], key: Callable[[Any], Hashable]) -> set[Any]:
    """One case for every value of ``key``, each from another place of its group."""
    groups: dict[Hashable, list[Any]] = {}
    for case in cases:
        groups.setdefault(key(case), []).append(case)
    return {group[i % len(group)] for i, group in enumerate(groups.values())}


def sampled(
    names: str, cases: Iterable[Any], sample: Container[Any], **options: Any
) -> pytest.MarkDecorator:
    """``pytest.mark.parametrize``; cases that are not in ``sample`` are thorough."""
    several = "," in names
    parameters = [
        pytest.param(
            *(case if several else (case,)), marks=() if case in sample else pytest.mark.thorough
        )
        for case in cases
    ]
    return pytest.mark.parametrize(names, parameters, **options)
