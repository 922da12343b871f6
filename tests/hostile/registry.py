"""The registry of hostile and odd inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from rmsnorm_export.errors import InputError

Maker = Callable[[Path], Path]


@dataclasses.dataclass(frozen=True)
class Case:
    """One hostile or odd input; see the module."""

    make: Maker
    error: type[Exception] | None
    words: tuple[str, ...]


HOSTILE: dict[str, Case] = {}


def hostile(*words: str, error: type[Exception] | None = InputError) -> Callable[[Maker], Maker]:
    """Register a maker under its own name."""

    def register(make: Maker) -> Maker:
        HOSTILE[make.__name__] = Case(make, error, words)
        return make

    return register


def odd(*words: str) -> Callable[[Maker], Maker]:
    """Register a maker of a model that is odd but must be read."""
    return hostile(*words, error=None)
