"""The registry of hostile and odd inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import onnx

from hostile.frames import norm_model, write
from rmsnorm_export.errors import InputError

Maker = Callable[[Path], Path]
Change = Callable[[onnx.ModelProto], object]


@dataclasses.dataclass(frozen=True)
class Case:
    """One hostile or odd input; see the package."""

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


def changed(*words: str, error: type[Exception] | None = InputError) -> Callable[[Change], Change]:
    """Register a change of the sound model under its own name."""

    def register(change: Change) -> Change:
        def make(folder: Path) -> Path:
            model = norm_model()
            change(model)
            return write(folder, model)

        HOSTILE[change.__name__] = Case(make, error, words)
        return change

    return register
