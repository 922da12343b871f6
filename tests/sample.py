"""Which cases of a large family run by default; the others run with ``--thorough``.

A family is a product (norms by types by exporters, architectures by types): its members differ by
one factor at a time, so that a sample with every value of every factor finds what most defects
do. The sample follows from the family alone: it is the same in every run and on every machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
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
    parameters = [
        pytest.param(
            *(case if "," in names else (case,)),
            marks=() if case in sample else pytest.mark.thorough,
        )
        for case in cases
    ]
    return pytest.mark.parametrize(names, parameters, **options)


def crossed(one_in: int, **factors: Sequence[Any]) -> pytest.MarkDecorator:
    """``pytest.mark.parametrize`` over all combinations; all but one in so many are thorough.

    The sample has every value of every factor; and every pair of values of two factors, where the
    others together have ``one_in`` values.
    """
    places = itertools.product(*(range(len(values)) for values in factors.values()))
    parameters = [
        pytest.param(
            *(values[i] for values, i in zip(factors.values(), place, strict=True)),
            marks=() if sum(place) % one_in == 0 else pytest.mark.thorough,
        )
        for place in places
    ]
    return pytest.mark.parametrize(tuple(factors), parameters)
